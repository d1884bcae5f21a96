"""Additive cells: what is written to the state passes no recurrent non-linearity; or no gate reads the state."""

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


@cell(states="c", output="h")
def sru(x: "I", c: "H", *, W: "4 H I", v: "2 H", b: "2 H"):
    """Simple recurrent unit (Lei, Zhang, Wang, Dai & Artzi 2018, EMNLP version: eq. 1-4, with v and no tanh).

    Order of W: u f r s; of v and b: f r. s is the skip connection, a projection of x because x need not have H features
    (the authors' code does the same then; with s the identity it is the paper's x). Scaling alpha is 1.

        f = sigmoid(W x + v c + b)
        c' = f c + (1 - f) u,  u = W x
        r = sigmoid(W x + v c + b), of the old c
        h = r c' + (1 - r) s,  s = W x
    """
    u, f, r, s = W @ x
    v_f, v_r = v
    b_f, b_r = b
    f = sigmoid(f + v_f * c + b_f)
    r = sigmoid(r + v_r * c + b_r)
    c = f * c + (1.0 - f) * u
    return c, r * c + (1.0 - r) * s


@cell
def min_gru(x: "I", h: "H", *, W: "2 H I", b: "2 H"):
    """minGRU (Feng, Tung, Hajimirsadeghi, Ahmed & Bengio 2024, section 3.1), not the log-space form. Gate order z n.

    z = sigmoid(W x + b),  n = W x + b
    h' = (1 - z) h + z n
    """
    z, n = W @ x + b
    z = sigmoid(z)
    return (1.0 - z) * h + z * n


@cell
def min_lstm(x: "I", h: "H", *, W: "3 H I", b: "3 H"):
    """minLSTM (Feng et al. 2024, section 3.2), gates normalised to sum 1, not the log-space form. Gate order f i n.

    f, i = sigmoid(W x + b),  n = W x + b
    h' = f / (f + i) h + i / (f + i) n
    """
    f, i, n = W @ x + b
    f, i = sigmoid(f), sigmoid(i)
    return (f * h + i * n) / (f + i)
