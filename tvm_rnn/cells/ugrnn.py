"""The update gate recurrent network."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def ugrnn(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """Update gate RNN (Collins, Sohl-Dickstein & Sussillo 2017). Gate order c g; the paper's b_fg is part of b.

    c = tanh(W x + R h + b),  g = sigmoid(W x + R h + b)
    h' = g h + (1 - g) c
    """
    c, g = W @ x + R @ h + b
    g = sigmoid(g)
    return g * h + (1.0 - g) * tanh(c)
