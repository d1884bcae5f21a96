"""Long short-term memory: the form of torch.nn.LSTM, with peepholes, projection, layer normalisation; and kin of it."""

from tvm_rnn import cell, layer_norm, relu, sigmoid, tanh

BETA = 1.0  # of JANET, its paper's value: the input gate opens a little less than the forget gate closes


@cell(states="h c")
def lstm(x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", b: "4 H"):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate: Gers, Schmidhuber & Cummins 2000).

    Gate order i f g o, as torch.nn.LSTM (whose two biases add up to b).

        i, f, o = sigmoid(W x + R h + b),  g = tanh(W x + R h + b)
        c' = f c + i g
        h' = o tanh(c')
    """
    i, f, g, o = W @ x + R @ h + b
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(states="h c")
def lstm_peephole(x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", p: "3 H", b: "4 H"):
    """LSTM whose gates see the memory cell (Gers & Schmidhuber 2000; diagonal peepholes as in Graves 2013).

    Gate order i f g o; peepholes p in the order i f o. The output gate sees the new memory.

        i, f = sigmoid(W x + R h + p c + b),  g = tanh(W x + R h + b)
        c' = f c + i g
        o  = sigmoid(W x + R h + p c' + b)
        h' = o tanh(c')
    """
    i, f, g, o = W @ x + R @ h + b
    p_i, p_f, p_o = p
    c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * tanh(g)
    return sigmoid(o + p_o * c) * tanh(c), c


@cell(states="h c")
def lstm_projection(x: "I", h: "P", c: "H", *, W: "4 H I", R: "4 H P", b: "4 H", W_P: "P H"):
    """LSTM with a recurrent projection (Sak, Senior & Beaufays 2014), as torch.nn.LSTM with proj_size.

    Gate order i f g o. h has P features, c has H; no peepholes, and no non-recurrent projection.

        i, f, o = sigmoid(W x + R h + b),  g = tanh(W x + R h + b)
        c' = f c + i g
        h' = W_P (o tanh(c'))
    """
    i, f, g, o = W @ x + R @ h + b
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return W_P @ (sigmoid(o) * tanh(c)), c


@cell(
    states="h c",
    init={"a_x": "ones", "a_h": "ones", "a_c": "ones", "b_x": "zeros", "b_h": "zeros", "b_c": "zeros", "b": "zeros"},
)
def lstm_layer_norm(
    x: "I",
    h: "H",
    c: "H",
    *,
    W: "4 H I",
    R: "4 H H",
    a_x: "4 H",
    b_x: "4 H",
    a_h: "4 H",
    b_h: "4 H",
    a_c: "H",
    b_c: "H",
    b: "4 H",
):
    """LSTM with layer normalisation (Ba, Kiros & Hinton 2016, supplement).

    Gate order i f g o. LN normalises the four gates together, over 4 H numbers, with eps 1e-5; a are gains, b biases.

        i, f, g, o = a_h LN(R h) + b_h + a_x LN(W x) + b_x + b
        c' = sigmoid(f) c + sigmoid(i) tanh(g)
        h' = sigmoid(o) tanh(a_c LN(c') + b_c)
    """
    from_x = layer_norm((W @ x).reshape(-1)).reshape(4, -1) * a_x + b_x
    from_h = layer_norm((R @ h).reshape(-1)).reshape(4, -1) * a_h + b_h
    i, f, g, o = from_x + from_h + b
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(layer_norm(c, a_c, b_c)), c


@cell
def janet(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """JANET, the forget-gate LSTM (van der Westhuizen & Lasenby 2018). Gate order s g; beta = 1. Its c is h.

    s = W x + R h + b,  g = tanh(W x + R h + b)
    h' = sigmoid(s) h + (1 - sigmoid(s - beta)) g
    """
    s, g = W @ x + R @ h + b
    return sigmoid(s) * h + (1.0 - sigmoid(s - BETA)) * tanh(g)


@cell(states="h c")
def multiplicative_lstm(x: "I", h: "H", c: "H", *, W_m: "H I", R_m: "H H", W: "4 H I", R: "4 H H", b: "4 H"):
    """Multiplicative LSTM (Krause, Lu, Murray & Renals 2016, eq. 18-22). Gate order i f g o (g: the paper's h^).

    m = (W_m x) (R_m h)
    i, f, o = sigmoid(W x + R m + b),  g = tanh(W x + R m + b)
    c' = f c + i g
    h' = o tanh(c')
    """
    m = (W_m @ x) * (R_m @ h)
    i, f, g, o = W @ x + R @ m + b
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(states="h c")
def nas(x: "I", h: "H", c: "H", *, W: "8 H I", R: "8 H H", b: "8 H"):
    """NAS cell (Zoph & Le 2017, appendix), as TensorFlow's NASCell: eight nodes in the order of its code, bias on R h.

    u = W x,  v = R h + b
    a0 = sigmoid(u0 + v0),  a1 = relu(u1 + v1),  a2 = sigmoid(u2 + v2),  a3 = relu(u3 v3)
    a4 = tanh(u4 + v4),  a5 = sigmoid(u5 + v5),  a6 = tanh(u6 + v6),  a7 = sigmoid(u7 + v7)
    c' = tanh(tanh(a0 a1) + c) tanh(a2 + a3)
    h' = tanh(c' tanh(tanh(a4 a5) + sigmoid(a6 + a7)))
    """
    u, v = W @ x, R @ h + b
    s = u + v
    left = tanh(tanh(sigmoid(s[0]) * relu(s[1])) + c)
    c = left * tanh(sigmoid(s[2]) + relu(u[3] * v[3]))
    right = tanh(tanh(s[4]) * sigmoid(s[5])) + sigmoid(tanh(s[6]) + sigmoid(s[7]))
    return tanh(c * tanh(right)), c
