"""Large cells from papers, written from their equations: graphs that are several times those of the zoo."""

import numpy as np

import tvm_rnn as rnn


@rnn.cell(states="h c g d")
def hyper_lstm(
    x: "I",
    h: "H",
    c: "H",
    g: "G",
    d: "G",
    *,
    W_g: "4 G I",
    V_g: "4 G H",
    U_g: "4 G G",
    b_g: "4 G",
    E_h: "4 E G",
    E_x: "4 E G",
    E_b: "4 E G",
    e_h: "4 E",
    e_x: "4 E",
    D_h: "4 H E",
    D_x: "4 H E",
    D_b: "4 H E",
    W: "4 H I",
    U: "4 H H",
    b: "4 H",
    a: "5 H",
    s: "5 H",
):
    """HyperLSTM (Ha, Dai & Le 2017, equations 10 to 12), with layer norm: g, d are the small network's states."""
    i, j, f, o = W_g @ x + V_g @ h + U_g @ g + b_g
    d = rnn.sigmoid(f) * d + rnn.sigmoid(i) * rnn.tanh(j)
    g = rnn.sigmoid(o) * rnn.tanh(d)
    gates = []
    for k in range(4):
        of_h = D_h[k] @ (E_h[k] @ g + e_h[k])
        of_x = D_x[k] @ (E_x[k] @ g + e_x[k])
        of_b = D_b[k] @ (E_b[k] @ g) + b[k]
        gates.append(rnn.layer_norm(of_h * (U[k] @ h) + of_x * (W[k] @ x) + of_b) * a[k] + s[k])
    i, j, f, o = gates
    c = rnn.sigmoid(f) * c + rnn.sigmoid(i) * rnn.tanh(j)
    h = rnn.sigmoid(o) * rnn.tanh(rnn.layer_norm(c) * a[4] + s[4])
    return h, c, g, d


def _moved(v, axis, step):
    """v moved by one place along an axis, with zeros where nothing was."""
    if not step:
        return v
    shape = list(v.shape)
    shape[axis] = 1
    keep = [slice(None)] * 3
    keep[axis] = slice(1, None) if step > 0 else slice(None, -1)
    zeros, part = np.zeros(shape), v[tuple(keep)]
    return rnn.concat([part, zeros] if step > 0 else [zeros, part], axis=axis)


@rnn.cell(states="h c", output="y")
def conv_lstm(x: "C*Y*X", h: "H Y X", c: "H Y X", *, W: "9 4 H C", U: "9 4 H H", b: "4 H 1 1"):
    """ConvLSTM (Shi et al. 2015) with kernels of 3 x 3, by nine moved pictures each."""
    x = x.reshape(W.shape[-1], *h.shape[1:])
    gates = b
    for k in range(9):
        for v, weight in ((x, W), (h, U)):
            gates = gates + rnn.einsum("goc,cyx->goyx", weight[k], _moved(_moved(v, 1, k // 3 - 1), 2, k % 3 - 1))
    i, f, j, o = gates
    c = rnn.sigmoid(f) * c + rnn.sigmoid(i) * rnn.tanh(j)
    h = rnn.sigmoid(o) * rnn.tanh(c)
    return h, c, h.reshape(-1)
