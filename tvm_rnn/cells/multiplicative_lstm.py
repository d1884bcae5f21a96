"""The multiplicative LSTM: the transition depends on the input through a factored product."""

from tvm_rnn import cell, sigmoid, tanh


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
