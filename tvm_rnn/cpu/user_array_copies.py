"""Copies between the user's dense arrays and the padded rows of the workspace.

In: addresses and strides from `lower_network.py`. Out: statements. The user's arrays are flat and promise only the
alignment of their elements, so these loops are scalar in TIR; LLVM vectorises them with unaligned moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import load, loop, store

from .workspace import Array


def each(shape: Sequence[int], body: Callable[[tuple[Expr, ...], Expr], Stmt]) -> Stmt:
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

    def row(r: Expr) -> Stmt:
        return each(
            array.shape,
            lambda index, flat: store(workspace, array.address(r, index), load(user, (first + r) * int64(size) + flat)),
        )

    return loop("r", rows, row)


def rows_out(workspace: Buffer, user: Buffer, array: Array, first: Expr, rows: Expr) -> Stmt:
    """Rows 0, 1, ... of `array` to rows first, first + 1, ... of the user's [rows, *shape]."""
    size = int(np.prod(array.shape, dtype=int))

    def row(r: Expr) -> Stmt:
        return each(
            array.shape,
            lambda index, flat: store(user, (first + r) * int64(size) + flat, load(workspace, array.address(r, index))),
        )

    return loop("r", rows, row)
