"""Additive cells: what is written to the state passes through no recurrent non-linearity."""

from tvm_rnn import cell, sigmoid, tanh


@cell(states="h c")
def ran(x: "I", h: "H", c: "H", *, V: "H I", W: "2 H I", R: "2 H H", b: "2 H"):
    """Recurrent additive network (Lee, Levy & Zettlemoyer 2017), with tanh at the output. Gate order i f.

    i, f = sigmoid(W x + R h + b)
    c' = i (V x) + f c
    h' = tanh(c')
    """
    i, f = W @ x + R @ h + b
    c = sigmoid(i) * (V @ x) + sigmoid(f) * c
    return tanh(c), c


@cell
def atr(x: "I", h: "H", *, W: "H I", R: "H H"):
    """Addition-subtraction twin-gated network (Zhang, Xiong, Su, Lin & Zhang 2018): two gates from two products.

    p = W x,  q = R h
    i = sigmoid(p + q),  f = sigmoid(p - q)
    h' = i p + f h
    """
    p, q = W @ x, R @ h
    return sigmoid(p + q) * p + sigmoid(p - q) * h


@cell
def t_rnn(x: "I", h: "H", *, W: "2 H I", b: "H"):
    """Strongly typed recurrent network, T-RNN (Balduzzi & Ghifary 2016). Order v f; the recurrence has no matrix.

    v = W_v x
    f = sigmoid(W_f x + b)
    h' = f h + (1 - f) v
    """
    v, f = W @ x
    f = sigmoid(f + b)
    return f * h + (1 - f) * v
