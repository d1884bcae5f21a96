"""The cell that an architecture search found."""

from tvm_rnn import cell, relu, sigmoid, tanh


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
