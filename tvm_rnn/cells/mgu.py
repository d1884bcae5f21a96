"""The minimal gated unit."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def mgu(x: "I", h: "H", *, W: "2 H I", R_f: "H H", R_n: "H H", b: "2 H"):
    """Minimal gated unit (Zhou, Wu, Zhang & Zhou 2016): a GRU whose one gate f both resets and updates.

    Gate order f n.

        f = sigmoid(W x + R_f h + b)
        n = tanh(W x + R_n (f h) + b)
        h' = (1 - f) h + f n
    """
    f, n = W @ x + b
    f = sigmoid(f + R_f @ h)
    n = tanh(n + R_n @ (f * h))
    return (1.0 - f) * h + f * n
