"""Recurrent highway networks: several highway layers within one step."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def rhn(x: "I", h: "H", *, W: "2 H I", R: "depth 2 H H", b: "depth 2 H"):
    """Recurrent highway network (Zilly, Srivastava, Koutnik & Schmidhuber 2017, eq. 6-9), carry gate c = 1 - t.

    Gate order h t (the paper's H and T). Only the first of the `depth` highway layers sees x.

        for l in 1..depth:
            g = tanh([l = 1] W x + R_l s + b_l),  t = sigmoid([l = 1] W x + R_l s + b_l)
            s = g t + s (1 - t)
        h' = s, from s = h
    """
    for layer, (R_l, b_l) in enumerate(zip(R, b, strict=True)):
        g, t = R_l @ h + b_l + W @ x if layer == 0 else R_l @ h + b_l
        t = sigmoid(t)
        h = tanh(g) * t + h * (1.0 - t)
    return h
