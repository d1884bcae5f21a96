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
    from .models import GpuProblem


@triton.jit
def _product(sums, left, right, inside, MODE: tl.constexpr):
    """sums + a tile [rows, K] of the previous h x a tile [K, units] of one gate's recurrent weights."""
    return tl.dot(left, tl.load(right, mask=inside, other=0.0), sums, input_precision=MODE)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _step(arrays, batch, CELL: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr, MODE: tl.constexpr):
    """A tile [rows, units] of one step. arrays: the input product [B, G, H]; recurrent weights [G, H, H]; the bias of
    their product; the previous h [B, H]; an LSTM's memory cell or a GRU's state, in float32; where h goes."""
    x, r, extra, h, kept, out = arrays
    M: tl.constexpr = TILE[0]
    N: tl.constexpr = TILE[1]
    K: tl.constexpr = TILE[2]
    G: tl.constexpr = 4 if CELL == "lstm" else 3 if CELL == "gru" else 1
    rows, units = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    inside = (rows[:, None] < batch) & (units[None, :] < H)
    given, place = x + rows[:, None] * G * H + units[None, :], rows[:, None] * H + units[None, :]
    a = tl.load(given, mask=inside, other=0.0).to(tl.float32)
    b, c, d = a, a, a  # of gates that there are
    if G > 1:
        b = tl.load(given + H, mask=inside, other=0.0).to(tl.float32)
    if CELL == "lstm":
        c = tl.load(given + 2 * H, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(given + 3 * H, mask=inside, other=0.0).to(tl.float32)
    if CELL == "gru":
        c = tl.zeros((M, N), dtype=tl.float32) + tl.load(extra + units, mask=units < H, other=0.0).to(tl.float32)
    for start in range(0, H, K):
        k = start + tl.arange(0, K)
        left = tl.load(h + rows[:, None] * H + k, mask=(rows[:, None] < batch) & (k[None, :] < H), other=0.0)
        right, fits = r + units[None, :] * H + k[:, None], (units[None, :] < H) & (k[:, None] < H)
        a = _product(a, left, right, fits, MODE)
        if G > 1:
            b = _product(b, left, right + H * H, fits, MODE)
            c = _product(c, left, right + 2 * H * H, fits, MODE)
        if G > 3:
            d = _product(d, left, right + 3 * H * H, fits, MODE)
    if CELL == "elman":
        tl.store(out + place, _tanh(a).to(out.dtype.element_ty), mask=inside)
    else:
        before = tl.load(kept + place, mask=inside, other=0.0)
        if CELL == "lstm":
            after = tl.sigmoid(b) * before + tl.sigmoid(a) * _tanh(c)
            result = tl.sigmoid(d) * _tanh(after)
        else:
            new = _tanh(tl.load(given + 2 * H, mask=inside, other=0.0).to(tl.float32) + tl.sigmoid(a) * c)
            after = new + tl.sigmoid(b) * (before - new)
            result = after
        tl.store(kept + place, after, mask=inside)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # W, R, b and the bias of the recurrent product
Tile = tuple[int, int, int]  # rows, units, depth
CELLS = ("lstm", "gru", "elman")


class TritonModel:
    """A network of one of CELLS: `model((rows, units, depth))` -> (y [T, B, D*H], None)."""

    def __init__(self, problem: GpuProblem) -> None:
        self.problem, self.point = problem, problem.point
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
        hidden, (m, n, _) = self.point.hidden, tile
        product = torch.nn.functional.linear(x, W, b)
        y = torch.empty(steps, batch, hidden, dtype=x.dtype, device=x.device)
        h = torch.zeros(batch, hidden, dtype=x.dtype, device=x.device)
        kept = torch.zeros(batch, hidden, dtype=torch.float32, device=x.device)
        grid = (triton.cdiv(hidden, n), triton.cdiv(batch, m))
        for t in range(steps)[:: -1 if direction else 1]:
            _step[grid]((product[t], R, extra, h, kept, y[t]), batch, self.point.cell, hidden, tile, self.mode)
            h = y[t]
        return y
