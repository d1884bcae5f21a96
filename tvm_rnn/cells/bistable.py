"""Bistable cells: units that can hold one of two values for ever."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def brc(x: "I", h: "H", *, W: "3 H I", w: "2 H", b: "3 H"):
    """Bistable recurrent cell (Vecoven, Ernst & Drion 2021), with biases. Order c a n; the gates read only their unit.

    c = sigmoid(W_c x + w_c h + b_c)
    a = 1 + tanh(W_a x + w_a h + b_a)
    h' = c h + (1 - c) tanh(W_n x + a h + b_n)
    """
    c, a, n = W @ x + b
    c = sigmoid(c + w[0] * h)
    a = 1 + tanh(a + w[1] * h)
    return c * h + (1 - c) * tanh(n + a * h)


@cell
def nbrc(x: "I", h: "H", *, W: "3 H I", R: "2 H H", b: "3 H"):
    """Recurrently neuromodulated bistable cell (Vecoven, Ernst & Drion 2021), with biases. Order c a n.

    c = sigmoid(W_c x + R_c h + b_c)
    a = 1 + tanh(W_a x + R_a h + b_a)
    h' = c h + (1 - c) tanh(W_n x + a h + b_n)
    """
    x_c, x_a, x_n = W @ x + b
    h_c, h_a = R @ h
    c = sigmoid(x_c + h_c)
    a = 1 + tanh(x_a + h_a)
    return c * h + (1 - c) * tanh(x_n + a * h)
