"""Cells that one or two gates mix: with an embedded input, stackable, or without chaos."""

from tvm_rnn import cell, sigmoid, tanh


@cell
def minimal_rnn(x: "I", h: "H", *, W: "H I", b_v: "H", U: "H H", R: "H H", b: "H"):
    """MinimalRNN (Chen 2017): the input is embedded alone, then one gate mixes it with the state.

    v = tanh(W x + b_v)
    z = sigmoid(R h + U v + b)
    h' = z h + (1 - z) v
    """
    v = tanh(W @ x + b_v)
    z = sigmoid(R @ h + U @ v + b)
    return z * h + (1 - z) * v


@cell
def star(x: "I", h: "H", *, W: "2 H I", R: "H H", b: "2 H"):
    """Stackable recurrent cell, STAR (Turkoglu, D'Aronco, Wegner & Schindler 2021). Gate order k v.

    v = tanh(W_v x + b_v)
    k = sigmoid(W_k x + R h + b_k)
    h' = tanh((1 - k) h + k v)
    """
    k, v = W @ x + b
    k = sigmoid(k + R @ h)
    return tanh((1 - k) * h + k * tanh(v))


@cell
def cfn(x: "I", h: "H", *, W: "3 H I", R: "2 H H", b: "2 H"):
    """Chaos-free network (Laurent & von Brecht 2017). Gate order f i, then the input's own matrix, without bias.

    f = sigmoid(W_f x + R_f h + b_f)
    i = sigmoid(W_i x + R_i h + b_i)
    h' = f tanh(h) + i tanh(W_v x)
    """
    f, i = W[:2] @ x + R @ h + b
    return sigmoid(f) * tanh(h) + sigmoid(i) * tanh(W[2] @ x)
