"""The simple recurrent unit: no matrix product reads the state."""

from tvm_rnn import cell, sigmoid


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
