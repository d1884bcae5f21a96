"""The GRU with attentional update gate: two inputs per step."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def augru(x: "I", a: "1", h: "H", *, W: "3 H I", R: "3 H H", b: "3 H"):
    """AUGRU (Zhou, Mou, Fan, Pi, Bian, Zhou, Zhu & Gai 2019, DIEN): an attention score a scales the update gate.

    Gate order r u n; the reset gate acts after the product, as in the paper.

        r, u = sigmoid(W x + R h + b)
        n = tanh(W x + r (R h) + b)
        h' = (1 - a u) h + a u n
    """
    r, u, n = W @ x + b
    s_r, s_u, s_n = R @ h
    u = a * sigmoid(u + s_u)
    n = tanh(n + sigmoid(r + s_r) * s_n)
    return (1.0 - u) * h + u * n
