"""Long short-term memory: the form of torch.nn.LSTM, and with peepholes, projection and layer normalisation."""

from tvm_rnn import cell, layer_norm, sigmoid, tanh


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
