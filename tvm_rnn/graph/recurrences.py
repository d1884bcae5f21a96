"""What the rows of kind `scan` mean: a linear recurrence at one step, and what is read of it.

In: operands of one step. Out: shapes and NumPy values for `ops.py`. `passes/parallelise_time.py` writes these rows: all
their operands but the states are known for all steps, so back ends run them over all of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray  # with leading axes of batch
Broadcast = Callable[..., Shape]
T = TypeVar("T")
KEPT_EVERY = 16  # steps between those before which a tape has a matrix, on CPUs
KEPT_EVERY_ON_GPUS = 64  # those of a chunk
BOTH_AXES = 0  # of a read-out: sums run along keys and values


def scanned_shape(broadcast: Broadcast) -> Callable[..., Shape]:
    """The shape rule of `scan` and `scan_max`: that of the first state, which the operands must not pass."""

    def shape(*args: Shape, **attrs: object) -> Shape:
        if broadcast(*args) != args[0]:
            raise ValueError(f"the operands make {broadcast(*args)} of a state of {args[0]}")
        return args[0]

    return shape


def scan(*args: Array) -> Array:
    """h_1..h_n, a_1..a_n, b: the sum of a_i h_i, and b."""
    count = len(args) // 2
    total = args[-1]
    for state, factor in zip(args[:count], args[count:-1], strict=True):
        total = factor * state + total
    return total


def scan_max(state: Array, a: Array, b: Array) -> Array:
    """max(state + a, b)."""
    return np.maximum(state + a, b)


def matrix_operands(args: tuple[T, ...], writes: int) -> tuple[list[tuple[T, T]], list[tuple[T, T]]]:
    """Of the arguments of `scan_matrix` the pairs (k, v) that are written, and the pairs (p, r) of its products."""
    pairs = list(zip(args[2::2], args[3::2], strict=False))  # a number that scales products may stand behind them
    return pairs[:writes], pairs[writes:]


def matrix_shape(broadcast: Broadcast) -> Callable[..., Shape]:
    """The shape rule of `scan_matrix`."""

    def shape(*args: Shape, writes: int, key: int, of: str = "", scaled: bool = False) -> Shape:
        if key not in (-1, -2) or broadcast(*args) != args[0]:
            raise ValueError(f"the operands make {broadcast(*args)} of a state of {args[0]}")
        return args[0]

    return shape


def scan_matrix(*args: Array, writes: int, key: int, of: str = "", scaled: bool = False) -> Array:
    """S, decay, k v of each write, p r of each product: decay S + k v ... + p (r . S) ..., `.` along the axis `key`.
    of: of a `rescan` the state that it belongs to, as it is or its gradient. scaled: products are multiplied with the
    last argument, a number of each head."""
    state = args[0]
    total = args[1] * state
    written, products = matrix_operands(args, writes)
    for k, v in written:
        total = total + k * v
    for p, r in products:
        found = p * np.sum(r * state, axis=key, keepdims=True)
        total = total + (found * args[-1] if scaled else found)
    return total


def read_out(state: Array, q: Array, *, key: int) -> Array:
    """q . S along the axis `key`, or along both (BOTH_AXES)."""
    return np.sum(state * q, axis=(-2, -1) if key == BOTH_AXES else key)


def read_shape(broadcast: Broadcast) -> Callable[..., Shape]:
    """The shape rule of `read_out`: the state's without the axis `key`, or without both."""

    def shape(state: Shape, q: Shape, *, key: int) -> Shape:
        whole = broadcast(state, q)
        if key == BOTH_AXES:
            return whole[:-2]
        return tuple(size for axis, size in enumerate(whole) if axis != len(whole) + key)

    return shape
