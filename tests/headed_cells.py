"""Cells with heads, written from their equations: those whose heads read nothing of one another, and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm_rnn as rnn
from tvm_rnn.bench.suites.gpu import tamed


@rnn.cell(states="h c")
def lstm(x: "I", h: "N D", c: "N D", *, W: "4 N D I", R: "4 N D D", p: "3 N D", b: "4 N D"):
    i, f, g, o = W @ x + rnn.einsum("gnij,nj->gni", R, h) + b
    c = rnn.sigmoid(f + p[1] * c) * c + rnn.sigmoid(i + p[0] * c) * rnn.tanh(g)
    return rnn.sigmoid(o + p[2] * c) * rnn.tanh(c), c


@rnn.cell(states="h c", output="y")
def given(x: "I", h: "N D", c: "N D", *, R: "4 N D D"):
    """I = 4 N D: gates of all heads come as one row, gates outside of heads; no product makes them."""
    i, f, g, o = x.reshape(4, *h.shape) + rnn.matvec(R, h)
    c = rnn.sigmoid(f) * c + rnn.sigmoid(i) * rnn.tanh(g)
    h = rnn.sigmoid(o) * rnn.tanh(c)
    return h, c, h.reshape(-1)


@rnn.cell
def given_whole(x: "I", h: "N D", *, R: "2 N D D"):
    """I = 2 N D: the same, with all gates at once."""
    f, n = rnn.tanh(x.reshape(2, *h.shape) + rnn.matvec(R, h))
    return f * h + (1.0 - f) * n


@rnn.cell
def gru(x: "I", h: "N*D", *, W: "3 N*D I", R: "N 3 D D", b: "3 N*D", r: "N D"):
    """A flat state, heads before gates in the parameter, and the reset before the product."""
    z, f, n = W @ x + b
    own = h.reshape(r.shape)
    z, f = (rnn.sigmoid(u.reshape(r.shape) + rnn.matvec(R[:, k], own)) for k, u in enumerate((z, f)))
    n = rnn.tanh(n.reshape(r.shape) + rnn.matvec(R[:, 2], f * own) + r)
    return ((1.0 - z) * n + z * own).reshape(-1)


@rnn.cell(states="h", output="y")
def normed(x: "I", h: "N D", *, W: "N D I", R: "N D D", w: "N I", g: "D"):
    """A norm of each head, a number of each head, and a gain that all heads share."""
    h = rnn.layer_norm(rnn.tanh(W @ x + rnn.matvec(R, h)), g) * (w @ x)[:, None]
    return h, h.reshape(-1)


@rnn.cell
def shared(x: "I", h: "N D", *, W: "N D I", R: "D D"):
    """All heads have one matrix; nothing says so but the product."""
    return rnn.tanh(W @ x + rnn.einsum("nj,ij->ni", h, R))


@rnn.cell
def mixed(x: "I", h: "N D", *, W: "N D I", R: "N D D", V: "D N*D"):
    return rnn.tanh(W @ x + rnn.matvec(R, h) + V @ h.reshape(-1))


@rnn.cell
def normed_together(x: "I", h: "N D", *, W: "N D I", R: "N D D"):
    return rnn.layer_norm(rnn.tanh(W @ x + rnn.matvec(R, h)).reshape(-1)).reshape(h.shape)


@rnn.cell
def turned(x: "I", h: "N D", *, W: "N D I", R: "N D D"):
    """Each head reads its neighbour."""
    return rnn.tanh(W @ x + rnn.matvec(R, rnn.flip(h, 0)))


@rnn.cell(states="h s", output="y")
def coupled(
    x: "I",
    h: "N D",
    s: "P",
    *,
    W: "N D I",
    R: "2 N D D",
    V: "P N*D",
    S: "P P",
    C: "N*D P",
    g: "N*D",
    b: "2 N D",
):
    """Blocks of unequal coupling: a few units read all heads, each head itself, these units, and a norm of all."""
    s = rnn.tanh(S @ s + V @ h.reshape(-1))
    u = rnn.rms_norm((W @ x).reshape(-1) + C @ s, g).reshape(h.shape)
    f = rnn.sigmoid(rnn.matvec(R[0], h) + b[0])
    h = f * h + (1.0 - f) * rnn.tanh(u + rnn.matvec(R[1], h) + b[1])
    return h, s, h.reshape(-1)


@rnn.cell(states="S h", output="h")
def both_ways(x: "I", S: "K V", h: "H", *, W: "H I", R: "H H", C: "H V", Q: "3 K H", U: "V H", T: "V V"):
    """A matrix and a vector that read each other: h writes S where it looks, and reads it where it looks next."""
    read, write, fade = Q @ h
    S = rnn.sigmoid(fade)[:, None] * S + rnn.outer(rnn.softmax(write), U @ h)
    S = rnn.tanh(S + rnn.matvec(T, rnn.sum(S, 0))[None])
    h = rnn.tanh(W @ x + R @ h + C @ rnn.vecmat(rnn.softmax(read), S))
    return S, h


APART, TOGETHER = (lstm, gru, normed, given, given_whole), (mixed, normed_together, turned)


def inputs_of(cell: rnn.Cell, otherwise: int, sizes: Mapping[str, int]) -> int:
    """The size of x: what other sizes say, or any."""
    gates = {given: 4, given_whole: 2}.get(cell)
    return gates * sizes["N"] * sizes["D"] if gates else otherwise


@dataclass(frozen=True)
class Layer:
    """A cell of heads with sizes. rows: the batch that a module is compiled for; more: sizes, and what RNN takes."""

    cell: rnn.Cell
    dtype: str
    rows: int
    more: dict[str, Any] = field(default_factory=dict)
    precision: str | None = None

    def net(self, inputs: int) -> rnn.RNN:
        net = rnn.RNN(self.cell, inputs_of(self.cell, inputs, self.more), dtype=self.dtype, **self.more).init(seed=1)
        return tamed(net)  # as drawn, lstm_layer_norm makes of x moved by 2^-9 y moved by 8 % in 200 steps


def small(cell: rnn.Cell, dtype: str, precision: str | None = None, **more: Any) -> Layer:
    return Layer(cell, dtype, 3, {"N": 3, **more}, precision)


# For the emulator, in inference and training: 3 heads, 3 rows of the 8 that a tile has.
SMALL = {
    "lstm-bfloat16": small(lstm, "bfloat16", D=16),
    "lstm-float32": small(lstm, "float32", D=8),
    "lstm-odd": small(lstm, "float16", D=9),
    "given-bfloat16": small(given, "bfloat16", D=16),
    "gru-bfloat16": small(gru, "bfloat16", D=16, bidirectional=True),
    "shared-bfloat16": small(shared, "bfloat16", D=16),
    "slstm-bfloat16": small(rnn.cells.slstm, "bfloat16", H=16, num_layers=2),
    "block_gru-bfloat16": small(rnn.cells.block_gru, "bfloat16", H=16, P=24, A=4),
    "slstm-tf32": small(rnn.cells.slstm, "float32", "tf32", H=16),
}
# For GPUs, heads that read one another: products of heads leave out what is 0 for a warp.
COUPLED = {
    "block_gru_8x64": Layer(rnn.cells.block_gru, "bfloat16", 16, {"N": 8, "H": 64, "P": 512, "A": 8}),
    "block_gru_5x40": Layer(rnn.cells.block_gru, "float16", 20, {"N": 5, "H": 40, "P": 96, "A": 3}),
    "coupled_6x48": Layer(coupled, "bfloat16", 16, {"N": 6, "D": 48, "P": 72}),
    "normed_together_8x32": Layer(normed_together, "float16", 9, {"N": 8, "D": 32}),
}
# No heads, and one block: reductions and products meet in its shared memory. Backward has no such kernel.
ALONE = {
    "layer_norm_32": Layer(rnn.cells.lstm_layer_norm, "bfloat16", 16, {"hidden_size": 32}),
    "layer_norm_72": Layer(rnn.cells.lstm_layer_norm, "float16", 5, {"hidden_size": 72}),
}
# The sizes of FlashRNN's and XMA's figures.
WIDE = {
    "lstm_24x32": Layer(lstm, "bfloat16", 16, {"N": 24, "D": 32}),
    "lstm_12x64": Layer(lstm, "bfloat16", 16, {"N": 12, "D": 64}),
    "slstm_12x64": Layer(rnn.cells.slstm, "bfloat16", 16, {"N": 12, "H": 64}),
    "gru_8x64": Layer(gru, "bfloat16", 16, {"N": 8, "D": 64}),
    "given_24x32": Layer(given, "bfloat16", 16, {"N": 24, "D": 32}),
    "given_3x9": Layer(given, "float16", 16, {"N": 3, "D": 9}),
    "shared_64x16": Layer(shared, "bfloat16", 16, {"N": 64, "D": 16}),
}
