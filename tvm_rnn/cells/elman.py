"""Simple recurrent networks: an affine map and an activation; each unit alone; and highways, several to a step."""

from tvm_rnn import cell, relu, sigmoid, tanh


@cell
def elman(x: "I", h: "H", *, W: "H I", R: "H H", b: "H"):
    """Simple recurrent network (Elman 1990), as torch.nn.RNN with tanh (whose two biases add up to b).

    h' = tanh(W x + R h + b)
    """
    return tanh(W @ x + R @ h + b)


@cell
def elman_relu(x: "I", h: "H", *, W: "H I", R: "H H", b: "H"):
    """Simple recurrent network with rectifiers (Le, Jaitly & Hinton 2015), as torch.nn.RNN with nonlinearity="relu".

    h' = relu(W x + R h + b)
    """
    return relu(W @ x + R @ h + b)


@cell
def indrnn(x: "I", h: "H", *, W: "H I", u: "H", b: "H"):
    """Independently recurrent network (Li, Li, Cook, Zhu & Gao 2018): each unit sees only its own past. With relu.

    h' = relu(W x + u h + b)
    """
    return relu(W @ x + u * h + b)


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
