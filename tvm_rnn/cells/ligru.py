"""The light gated recurrent unit of speech recognition."""

from tvm_rnn import cell, relu, sigmoid


@cell
def ligru(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """Light GRU (Ravanelli, Brakel, Omologo & Bengio 2018): no reset gate, relu candidate. Gate order z n.

    Without the paper's batch normalisation of W x: fold a trained one into W and b.

        z = sigmoid(W x + R h + b),  n = relu(W x + R h + b)
        h' = z h + (1 - z) n
    """
    z, n = W @ x + R @ h + b
    z = sigmoid(z)
    return z * h + (1.0 - z) * relu(n)
