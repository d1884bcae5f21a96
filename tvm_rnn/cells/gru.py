"""Gated recurrent units: reset after the product (torch, cuDNN) and before it (the paper)."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def gru(x: "I", h: "H", *, W: "3 H I", R: "3 H H", b: "3 H", b_R: "H"):
    """Gated recurrent unit, reset after the product (Cho et al. 2014, version 1 of the paper; the form of cuDNN).

    Gate order r z n, as torch.nn.GRU: b is the sum of its two biases for r and z, and bias_ih for n; b_R is the n part
    of its bias_hh. ONNX calls this linear_before_reset=1.

        r, z = sigmoid(W x + R h + b)
        n = tanh(W x + b + r (R h + b_R))
        h' = (1 - z) n + z h
    """
    r, z, n = W @ x + b
    u_r, u_z, u_n = R @ h
    z = sigmoid(z + u_z)
    n = tanh(n + sigmoid(r + u_r) * (u_n + b_R))
    return (1.0 - z) * n + z * h


@cell
def gru_reset_before(x: "I", h: "H", *, W: "3 H I", R: "2 H H", R_n: "H H", b: "3 H"):
    """Gated recurrent unit, reset before the product (Cho, van Merrienboer, Gulcehre, Bahdanau, Bougares, Schwenk &
    Bengio 2014). ONNX calls this linear_before_reset=0. Gate order r z n; R has r and z.

        r, z = sigmoid(W x + R h + b)
        n = tanh(W x + R_n (r h) + b)
        h' = (1 - z) n + z h
    """
    r, z, n = W @ x + b
    u_r, u_z = R @ h
    z = sigmoid(z + u_z)
    n = tanh(n + R_n @ (sigmoid(r + u_r) * h))
    return (1.0 - z) * n + z * h
