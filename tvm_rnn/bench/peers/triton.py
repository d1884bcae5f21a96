"""LSTM, GRU and Elman's network in Triton, one launch per step, as a user of Triton would write them.

In: a `GpuProblem`. Out: `TritonModel`, a function of a tile's sizes that computes (y, state). A program of the grid
owns a tile of rows and hidden units with all gates, multiplies by the recurrent weights, and finishes the cell: the
sums and the memory cell stay in float32. The product of the inputs is one call of cuBLAS before the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from .gpu import GpuProblem


@triton.jit
def _left(h, rows, start, batch, H: tl.constexpr, K: tl.constexpr):
    """A tile [rows, K] of the previous h [B, H]."""
    k = start + tl.arange(0, K)
    return tl.load(h + rows[:, None] * H + k[None, :], mask=(rows[:, None] < batch) & (k[None, :] < H), other=0.0)


@triton.jit
def _right(r, gate, units, start, H: tl.constexpr, K: tl.constexpr):
    """A tile [K, units] of one gate's recurrent weights [G, H, H], transposed."""
    k = start + tl.arange(0, K)
    place = (gate * H + units[None, :]) * H + k[:, None]
    return tl.load(r + place, mask=(units[None, :] < H) & (k[:, None] < H), other=0.0)


@triton.jit
def _read(x, rows, units, gate, G: tl.constexpr, H: tl.constexpr, inside):
    """One gate's part of the input product [B, G, H], in float32."""
    return tl.load(x + (rows[:, None] * G + gate) * H + units[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _lstm(
    x,
    r,
    extra,
    h,
    c,
    out,
    batch,
    H: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
):
    rows, units = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    inside = (rows[:, None] < batch) & (units[None, :] < H)
    i, f = _read(x, rows, units, 0, 4, H, inside), _read(x, rows, units, 1, 4, H, inside)
    g, o = _read(x, rows, units, 2, 4, H, inside), _read(x, rows, units, 3, 4, H, inside)
    for start in range(0, H, K):
        left = _left(h, rows, start, batch, H, K)
        i = tl.dot(left, _right(r, 0, units, start, H, K), i, input_precision=MODE)
        f = tl.dot(left, _right(r, 1, units, start, H, K), f, input_precision=MODE)
        g = tl.dot(left, _right(r, 2, units, start, H, K), g, input_precision=MODE)
        o = tl.dot(left, _right(r, 3, units, start, H, K), o, input_precision=MODE)
    place = rows[:, None] * H + units[None, :]
    memory = tl.sigmoid(f) * tl.load(c + place, mask=inside, other=0.0) + tl.sigmoid(i) * _tanh(g)
    tl.store(c + place, memory, mask=inside)
    tl.store(out + place, (tl.sigmoid(o) * _tanh(memory)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gru(
    x,
    r,
    extra,
    h,
    c,
    out,
    batch,
    H: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
):
    rows, units = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    inside = (rows[:, None] < batch) & (units[None, :] < H)
    reset, z = _read(x, rows, units, 0, 3, H, inside), _read(x, rows, units, 1, 3, H, inside)
    new = tl.zeros((M, N), dtype=tl.float32) + tl.load(extra + units, mask=units < H, other=0.0).to(tl.float32)
    for start in range(0, H, K):
        left = _left(h, rows, start, batch, H, K)
        reset = tl.dot(left, _right(r, 0, units, start, H, K), reset, input_precision=MODE)
        z = tl.dot(left, _right(r, 1, units, start, H, K), z, input_precision=MODE)
        new = tl.dot(left, _right(r, 2, units, start, H, K), new, input_precision=MODE)
    n = _tanh(_read(x, rows, units, 2, 3, H, inside) + tl.sigmoid(reset) * new)
    place = rows[:, None] * H + units[None, :]
    state = n + tl.sigmoid(z) * (tl.load(c + place, mask=inside, other=0.0) - n)
    tl.store(c + place, state, mask=inside)  # the state itself stays in float32, as the memory cell of an LSTM
    tl.store(out + place, state.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _elman(
    x,
    r,
    extra,
    h,
    c,
    out,
    batch,
    H: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
):
    rows, units = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    inside = (rows[:, None] < batch) & (units[None, :] < H)
    state = _read(x, rows, units, 0, 1, H, inside)
    for start in range(0, H, K):
        left = _left(h, rows, start, batch, H, K)
        state = tl.dot(left, _right(r, 0, units, start, H, K), state, input_precision=MODE)
    place = rows[:, None] * H + units[None, :]
    tl.store(out + place, _tanh(state).to(out.dtype.element_ty), mask=inside)


Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # W, R, b and the bias of the recurrent product
Tile = tuple[int, int, int]  # rows, units, depth
CELLS = {"lstm": (_lstm, 4), "gru": (_gru, 3), "elman": (_elman, 1)}


class TritonModel:
    """A network of one of CELLS: `model((rows, units, depth))` -> (y [T, B, D*H], None)."""

    def __init__(self, problem: GpuProblem) -> None:
        self.problem, self.point = problem, problem.point
        self.kernel, self.gates = CELLS[self.point.cell]
        self.mode = "ieee" if self.point.precision == "float32" else "tf32"
        self.layers = [
            [self._weights(layer, direction) for direction in range(self.point.directions)]
            for layer in range(self.point.layers)
        ]

    def _weights(self, layer: int, direction: int) -> Weights:
        W, R, b = (self.problem.weight(name, layer, direction) for name in "WRb")
        extra = self.problem.weight("b_R", layer, direction) if self.point.cell == "gru" else b.reshape(-1)
        return W.reshape(-1, W.shape[-1]), R.contiguous(), b.reshape(-1), extra

    def __call__(self, tile: Tile) -> tuple[Tensor, None]:
        x = self.problem.inputs[0]
        for directions in self.layers:
            parts = [self._layer(x, weights, index, tile) for index, weights in enumerate(directions)]
            x = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
        return x, None

    def _layer(self, x: Tensor, weights: Weights, direction: int, tile: Tile) -> Tensor:
        W, R, b, extra = weights
        steps, batch = x.shape[:2]
        hidden, (m, n, k) = self.point.hidden, tile
        product = torch.nn.functional.linear(x, W, b)
        y = torch.empty(steps, batch, hidden, dtype=x.dtype, device=x.device)
        h = torch.zeros(batch, hidden, dtype=x.dtype, device=x.device)
        c = torch.zeros(batch, hidden, dtype=torch.float32, device=x.device)
        grid = (triton.cdiv(hidden, n), triton.cdiv(batch, m))
        for t in range(steps)[:: -1 if direction else 1]:
            self.kernel[grid](product[t], R, extra, h, c, y[t], batch, hidden, m, n, k, self.mode)
            h = y[t]
        return y
