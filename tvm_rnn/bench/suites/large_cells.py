"""Cells from papers that the zoo has not, written from their equations: graphs several times as large as its own.

In: nothing. Out: `CELLS` by name, and the sizes of axes that they have beside input and hidden ones. The suite of
compile times has them beside the zoo.
"""

import numpy as np

from tvm_rnn.language.cell import cell
from tvm_rnn.language.functions import (
    concat,
    cumprod,
    einsum,
    exp,
    layer_norm,
    logsumexp,
    matvec,
    mod,
    one_hot,
    outer,
    sigmoid,
    softmax,
    sqrt,
    stack,
    sum,
    tanh,
    topk,
    where,
)


@cell(states="h c g d")
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
    d = sigmoid(f) * d + sigmoid(i) * tanh(j)
    g = sigmoid(o) * tanh(d)
    gates = []
    for k in range(4):
        of_h = D_h[k] @ (E_h[k] @ g + e_h[k])
        of_x = D_x[k] @ (E_x[k] @ g + e_x[k])
        of_b = D_b[k] @ (E_b[k] @ g) + b[k]
        gates.append(layer_norm(of_h * (U[k] @ h) + of_x * (W[k] @ x) + of_b) * a[k] + s[k])
    i, j, f, o = gates
    c = sigmoid(f) * c + sigmoid(i) * tanh(j)
    h = sigmoid(o) * tanh(layer_norm(c) * a[4] + s[4])
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
    return concat([part, zeros] if step > 0 else [zeros, part], axis=axis)


@cell(states="h c", output="y")
def conv_lstm_shifted(x: "C*Y*X", h: "H Y X", c: "H Y X", *, W: "9 4 H C", U: "9 4 H H", b: "4 H 1 1"):
    """ConvLSTM (Shi et al. 2015) with kernels of 3 x 3, by nine moved pictures each."""
    x = x.reshape(W.shape[-1], *h.shape[1:])
    gates = b
    for k in range(9):
        for v, weight in ((x, W), (h, U)):
            gates = gates + einsum("goc,cyx->goyx", weight[k], _moved(_moved(v, 1, k // 3 - 1), 2, k % 3 - 1))
    i, f, j, o = gates
    c = sigmoid(f) * c + sigmoid(i) * tanh(j)
    h = sigmoid(o) * tanh(c)
    return h, c, h.reshape(-1)


@cell(states="h c")
def phased_lstm(
    x: "I", h: "H", c: "H", *, W: "4 H I", R: "4 H H", b: "4 H", tau: "H", shift: "H", ratio: "H", leak: "H"
):
    """Phased LSTM (Neil, Pfeiffer & Liu 2016, equations 6 to 10); the first input is the time."""
    period, open_for = exp(tau), sigmoid(ratio)
    phase = mod(x[0] - shift, period) / period
    rising, falling = 2 * phase / open_for, 2 - 2 * phase / open_for
    k = where(phase < open_for / 2, rising, where(phase < open_for, falling, leak * phase))
    i, f, g, o = W @ x + R @ h + b
    new = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return k * sigmoid(o) * tanh(new) + (1 - k) * h, k * new + (1 - k) * c


def _softplus_1(v):
    """1 + log(1 + exp(v)): a strength."""
    return 1 + logsumexp(concat([v.reshape(*v.shape, 1), 0 * v.reshape(*v.shape, 1)]), axis=-1)


def _alike(memory, key):
    """The cosines of a key and of each row of a memory."""
    return matvec(memory, key) / sqrt(sum(memory * memory, axis=-1) * sum(key * key) + 1e-6)


@cell(states="s M L v r", output="y")
def dnc(
    x: "I",
    s: "2 H",
    M: "S A",
    L: "S S",
    v: "3+N S",
    r: "N A",
    *,
    W: "4 H I",
    V: "4 H N*A",
    R: "4 H H",
    b: "4 H",
    K: "N A H",
    B: "N H",
    F: "N H",
    P: "N 3 H",
    W_k: "A H",
    W_b: "1 H",
    W_e: "A H",
    W_v: "A H",
    G: "2 H",
    Y: "H H",
    Y_r: "H N*A",
):
    """Differentiable neural computer (Graves et al. 2016, Methods): a memory of S rows, N heads that read, one that
    writes where content or the least usage says; links L say in which order rows were written.

    s: the LSTM's output and memory cell. v: the usage of rows, their precedence, how they were written and read."""
    (h, c), (u, p, w), q = s, v[:3], v[3:]
    i, f, g, o = W @ x + V @ r.reshape(-1) + R @ h + b
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    rows, heads = v.shape[-1], r.shape[-2]
    kept = 1.0
    for n in range(heads):
        kept = kept * (1 - sigmoid(F[n] @ h) * q[n])
    u = (u + w - u * w) * kept
    least, places = topk(-u, rows)
    free = (1 + least) * concat([np.ones(1), cumprod(-least)[:-1]])
    allocated = free @ one_hot(places, rows)
    gate_a, gate_w = sigmoid(G @ h)
    content = softmax(_softplus_1(W_b @ h) * _alike(M, W_k @ h))
    w = gate_w * (gate_a * allocated + (1 - gate_a) * content)
    M = M * (1 - outer(w, sigmoid(W_e @ h))) + outer(w, W_v @ h)
    spread = w.reshape(rows, 1)
    L = (1 - spread - w) * L + spread * p
    L = L * (1 - np.eye(rows))
    p = (1 - sum(w)) * p + w
    found = []
    for n in range(heads):
        modes = softmax(P[n] @ h)
        read = softmax(_softplus_1(B[n : n + 1] @ h) * _alike(M, K[n] @ h))
        found.append(modes[0] * (q[n] @ L) + modes[1] * read + modes[2] * (L @ q[n]))
    r = stack(found) @ M
    return stack([h, c]), M, L, stack([u, p, w, *found]), r, Y @ h + Y_r @ r.reshape(-1)


CELLS = {own.name: own for own in (hyper_lstm, conv_lstm_shifted, phased_lstm, dnc)}
SIZES = {
    "hyper_lstm": {"G": 32, "E": 16},
    "conv_lstm_shifted": {"C": 4, "Y": 4, "X": 4},
    "dnc": {"S": 16, "A": 8, "N": 2},
}
