"""FastRNN and FastGRNN: recurrent networks for devices of a few kilobytes."""

from tvm_rnn import cell, sigmoid, tanh


@cell(init={"alpha": -3.0, "beta": 3.0})
def fastrnn(x: "I", h: "H", *, W: "H I", R: "H H", b: "H", alpha: "", beta: ""):
    """FastRNN (Kusupati, Singh, Bhatia, Kumar, Jain & Varma 2018): a residual connection with two weights.

    alpha and beta are learned scalars, kept in (0, 1) through a sigmoid, as in the authors' code.

        n = tanh(W x + R h + b)
        h' = sigmoid(alpha) n + sigmoid(beta) h
    """
    return sigmoid(alpha) * tanh(W @ x + R @ h + b) + sigmoid(beta) * h


@cell(init={"zeta": 1.0, "nu": -4.0})
def fastgrnn(x: "I", h: "H", *, W: "H I", R: "H H", b: "2 H", zeta: "", nu: ""):
    """FastGRNN (Kusupati et al. 2018), W and R of full rank: the gate shares the matrices. Bias order z n.

    zeta and nu are learned scalars, kept in (0, 1) through a sigmoid.

        z = sigmoid(W x + R h + b),  n = tanh(W x + R h + b)
        h' = (sigmoid(zeta) (1 - z) + sigmoid(nu)) n + z h
    """
    z, n = W @ x + R @ h + b
    z = sigmoid(z)
    return (sigmoid(zeta) * (1.0 - z) + sigmoid(nu)) * tanh(n) + z * h
