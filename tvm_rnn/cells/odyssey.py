"""The eight variants of "LSTM: A Search Space Odyssey" (Greff, Srivastava, Koutnik, Steunebrink & Schmidhuber 2017).

Each removes or changes one thing of the paper's base, the peephole LSTM. Its block input is z (g elsewhere); the order
of gates is z i f o, that of peepholes i f o, without those that a variant does not have.
"""

from tvm_rnn import cell, concat, sigmoid, tanh


@cell(states="h c")
def lstm_nig(x: "I", h: "H", c: "H", *, W: "3 H I", R: "3 H H", p: "2 H", b: "3 H"):
    """LSTM with no input gate (NIG; Greff et al. 2017). Gate order z f o; peepholes f o.

    z = tanh(W x + R h + b),  f = sigmoid(W x + R h + p c + b)
    c' = z + f c
    o = sigmoid(W x + R h + p c' + b)
    h' = o tanh(c')
    """
    z, f, o = W @ x + R @ h + b
    p_f, p_o = p
    c = tanh(z) + sigmoid(f + p_f * c) * c
    return sigmoid(o + p_o * c) * tanh(c), c


@cell(states="h c")
def lstm_nfg(x: "I", h: "H", c: "H", *, W: "3 H I", R: "3 H H", p: "2 H", b: "3 H"):
    """LSTM with no forget gate (NFG; Greff et al. 2017). Gate order z i o; peepholes i o.

    z = tanh(W x + R h + b),  i = sigmoid(W x + R h + p c + b)
    c' = i z + c
    o = sigmoid(W x + R h + p c' + b)
    h' = o tanh(c')
    """
    z, i, o = W @ x + R @ h + b
    p_i, p_o = p
    c = sigmoid(i + p_i * c) * tanh(z) + c
    return sigmoid(o + p_o * c) * tanh(c), c


@cell(states="h c")
def lstm_nog(x: "I", h: "H", c: "H", *, W: "3 H I", R: "3 H H", p: "2 H", b: "3 H"):
    """LSTM with no output gate (NOG; Greff et al. 2017). Gate order z i f; peepholes i f.

    z = tanh(W x + R h + b),  i, f = sigmoid(W x + R h + p c + b)
    c' = i z + f c
    h' = tanh(c')
    """
    z, i, f = W @ x + R @ h + b
    p_i, p_f = p
    c = sigmoid(i + p_i * c) * tanh(z) + sigmoid(f + p_f * c) * c
    return tanh(c), c


@cell(states="h c")
def lstm_niaf(x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", p: "3 H", b: "4 H"):
    """LSTM with no input activation function (NIAF; Greff et al. 2017). Gate order z i f o; peepholes i f o.

    z = W x + R h + b,  i, f = sigmoid(W x + R h + p c + b)
    c' = i z + f c
    o = sigmoid(W x + R h + p c' + b)
    h' = o tanh(c')
    """
    z, i, f, o = W @ x + R @ h + b
    p_i, p_f, p_o = p
    c = sigmoid(i + p_i * c) * z + sigmoid(f + p_f * c) * c
    return sigmoid(o + p_o * c) * tanh(c), c


@cell(states="h c")
def lstm_noaf(x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", p: "3 H", b: "4 H"):
    """LSTM with no output activation function (NOAF; Greff et al. 2017). Gate order z i f o; peepholes i f o.

    z = tanh(W x + R h + b),  i, f = sigmoid(W x + R h + p c + b)
    c' = i z + f c
    o = sigmoid(W x + R h + p c' + b)
    h' = o c'
    """
    z, i, f, o = W @ x + R @ h + b
    p_i, p_f, p_o = p
    c = sigmoid(i + p_i * c) * tanh(z) + sigmoid(f + p_f * c) * c
    return sigmoid(o + p_o * c) * c, c


@cell(states="h c")
def lstm_np(x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", b: "4 H"):
    """LSTM with no peepholes (NP; Greff et al. 2017): `lstm` with the paper's gate order z i f o.

    z = tanh(W x + R h + b),  i, f, o = sigmoid(W x + R h + b)
    c' = i z + f c
    h' = o tanh(c')
    """
    z, i, f, o = W @ x + R @ h + b
    c = sigmoid(i) * tanh(z) + sigmoid(f) * c
    return sigmoid(o) * tanh(c), c


@cell(states="h c")
def lstm_cifg(x: "I", h: "H", c: "H", *, W: "3 H I", R: "3 H H", p: "2 H", b: "3 H"):
    """LSTM with coupled input and forget gates (CIFG; Greff et al. 2017). Gate order z i o; peepholes i o.

    z = tanh(W x + R h + b),  i = sigmoid(W x + R h + p c + b)
    c' = i z + (1 - i) c
    o = sigmoid(W x + R h + p c' + b)
    h' = o tanh(c')
    """
    z, i, o = W @ x + R @ h + b
    p_i, p_o = p
    i = sigmoid(i + p_i * c)
    c = i * tanh(z) + (1.0 - i) * c
    return sigmoid(o + p_o * c) * tanh(c), c


@cell(states="h c i f o")
def lstm_fgr(
    x: "I", h: "H", c: "H", i: "H", f: "H", o: "H", *, W: "4 H I", R: "4 H H", Q: "3 H 3*H", p: "3 H", b: "4 H"
):
    """LSTM with full gate recurrence (FGR; Greff et al. 2017): gates also see all gates of the step before.

    Gate order z i f o; peepholes and the rows of Q in the order i f o, the columns of Q too. The gates are states.

        z = tanh(W x + R h + b)
        i', f' = sigmoid(W x + R h + Q [i f o] + p c + b)
        c' = i' z + f' c
        o' = sigmoid(W x + R h + Q [i f o] + p c' + b)
        h' = o' tanh(c')
    """
    z, a_i, a_f, a_o = W @ x + R @ h + b
    q_i, q_f, q_o = Q @ concat([i, f, o])
    p_i, p_f, p_o = p
    i = sigmoid(a_i + q_i + p_i * c)
    f = sigmoid(a_f + q_f + p_f * c)
    c = i * tanh(z) + f * c
    o = sigmoid(a_o + q_o + p_o * c)
    return o * tanh(c), c, i, f, o
