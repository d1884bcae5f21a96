"""JANET: just another network, an LSTM with nothing but its forget gate."""

from tvm_rnn import cell, sigmoid, tanh

BETA = 1.0  # the paper's value: the input gate opens a little less than the forget gate closes


@cell
def janet(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """JANET, the forget-gate LSTM (van der Westhuizen & Lasenby 2018). Gate order s g; beta = 1. Its c is h.

    s = W x + R h + b,  g = tanh(W x + R h + b)
    h' = sigmoid(s) h + (1 - sigmoid(s - beta)) g
    """
    s, g = W @ x + R @ h + b
    return sigmoid(s) * h + (1.0 - sigmoid(s - BETA)) * tanh(g)
