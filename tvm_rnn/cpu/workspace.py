"""Where values live while a module runs: the workspace, the packed weights, and how an element is addressed.

In: graphs with groups, from `lower_network.py`. Out: `Array`s (a base address and strides in one flat buffer) and the
sizes that the manifest tells the runtime. The last axis of every array is padded to whole vectors, so vectors may run
past its end into padding: padding holds arbitrary values and is never read into a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tvm_rnn.graph.ops import Shape
from tvm_rnn.module_file import schema
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import load, loop, store


def pad(size: int, lanes: int) -> int:
    return -(-size // lanes) * lanes


def strides_of(shape: Shape, lanes: int) -> tuple[tuple[int, ...], int]:
    """Strides of a row-major array whose last axis is padded, and its size in elements (a scalar takes one vector)."""
    if not shape:
        return (), lanes
    strides, step = [1], pad(shape[-1], lanes)
    for size in reversed(shape[1:-1]):
        strides.append(step)
        step *= size
    if len(shape) > 1:
        strides.append(step)
        step *= shape[0]
    return tuple(reversed(strides)), step


def row_stride(shape: Shape, lanes: int, itemsize: int) -> int:
    """Elements from one batch row to the next. Rows that are whole pages apart would share cache sets: one vector
    more."""
    size = strides_of(shape, lanes)[1]
    return size + lanes if size * itemsize % 4096 == 0 else size


def dense(shape: Sequence[int], index: Sequence[Expr]) -> Expr:
    """The place of an element in a dense row-major array."""
    flat: Expr = int64(0)
    for i, size in zip(index, shape, strict=True):
        flat = flat * int64(size) + (int64(i) if isinstance(i, int) else i)
    return flat


@dataclass(frozen=True)
class Array:
    """A value in a flat buffer: element (row, index) is at base + row * row_stride + sum(index * stride)."""

    buffer: str  # "workspace" or "packed"
    base: Expr
    row_stride: int  # 0: the same for every row (a parameter)
    strides: tuple[int, ...]
    shape: Shape

    def address(self, row: Expr, index: Sequence[Expr]) -> Expr:
        total = self.base
        if self.row_stride:
            total = total + wide(row) * int64(self.row_stride)
        for i, stride in zip(index, self.strides, strict=True):
            if not (isinstance(i, int) and i == 0):
                total = total + wide(i) * int64(stride)
        return total


@dataclass
class Workspace:
    """Sizes that grow with B, n (steps of a tile) and T, in elements: fixed + per_row B + per_tile_row n B + ..."""

    fixed: int = 0
    per_row: int = 0
    per_tile_row: int = 0
    per_sequence_row: int = 0

    def sizes(self) -> schema.Workspace:
        """What a manifest says of it."""
        return schema.Workspace(self.fixed, self.per_row, self.per_tile_row, self.per_sequence_row)


@dataclass
class Packed:
    """Offsets in the packed weights of one layer and direction."""

    size: int = 0
    names: dict[Any, int] = field(default_factory=dict)

    def reserve(self, key: object, elements: int) -> int:
        self.names[key] = self.size
        self.size += elements
        return self.names[key]


def each_element(shape: Sequence[int], body: Callable[[tuple[Expr, ...], Expr], Stmt]) -> Stmt:
    """for every index of a dense array: body(index, flat position)."""

    def nest(index: tuple[Expr, ...], flat: Expr) -> Stmt:
        if len(index) == len(shape):
            return body(index, flat)
        size = shape[len(index)]
        return loop(f"i{len(index)}", size, lambda i: nest((*index, i), flat * int64(size) + i))

    return nest((), int64(0))


def rows_in(workspace: Buffer, user: Buffer, array: Array, first: Expr, rows: Expr) -> Stmt:
    """Rows first, first + 1, ... of the user's [rows, *shape] to rows 0, 1, ... of `array`."""
    size = int(np.prod(array.shape, dtype=int))

    def one(r: Expr, index: Sequence[Expr], flat: Expr) -> Stmt:
        return store(workspace, array.address(r, index), load(user, (first + r) * int64(size) + flat))

    return loop("r", rows, lambda r: each_element(array.shape, partial(one, r)))
