"""Simple recurrent networks: one affine map and one activation."""

from tvm_rnn import cell, relu, tanh


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
