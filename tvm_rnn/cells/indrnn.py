"""The independently recurrent network."""

from tvm_rnn import cell, relu


@cell
def indrnn(x: "I", h: "H", *, W: "H I", u: "H", b: "H"):
    """Independently recurrent network (Li, Li, Cook, Zhu & Gao 2018): each unit sees only its own past. With relu.

    h' = relu(W x + u h + b)
    """
    return relu(W @ x + u * h + b)
