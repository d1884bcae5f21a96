"""Operators in the body of an ONNX Scan that move elements: in other shapes, cut, joined or repeated, batch and all.

In: `onnx_rows.py`'s values and a node's attributes, from `onnx_equations.py`. Out: such values, or Unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm_rnn.language import functions as f
from tvm_rnn.language.trace import Value
from tvm_rnn.runtime.runtime_ops import reshaped

from .fields import Fields, Unreadable, integer, integers
from .onnx_rows import (
    BATCH,
    MOST_ELEMENTS,
    Item,
    Items,
    axis_of,
    first_of,
    numbers_of,
    sizes_text,
)

MOST_PARTS = 64  # that one node may cut a value into


def _transpose(items: Items, a: Fields) -> Item:
    item = first_of(items)
    rank = len(item.shape) + item.batched
    perm = integers(a, "perm") if "perm" in a else [*range(rank)][::-1]
    if item.batched:
        if perm[:1] != [0]:
            raise Unreadable("a transposition moves the batch")
        perm = [p - 1 for p in perm[1:]]
    return Item(f.transpose(item.data, perm) if len(perm) > 1 else item.data, item.batched)


def _reshape(items: Items, a: Fields) -> Item:
    item, sizes = first_of(items), numbers_of(items, 1, a, "shape") or []
    if a.get("allowzero") and 0 in sizes:
        raise Unreadable("a reshape to nothing")
    if not item.batched:
        return Item(f.reshape(item.data, reshaped(item.shape, sizes, False)))
    total = math.prod(item.shape)
    if sizes[:1] == [-1]:
        sizes = [0, *sizes[1:]]
    if sizes[:1] not in ([0], [BATCH]) or BATCH in sizes[1:]:
        raise Unreadable(f"a reshape to {sizes_text(sizes)} does not keep the batch")
    own = reshaped((1, *item.shape), [1, *sizes[1:]], False)[1:]
    if math.prod(own) != total:
        raise Unreadable(f"a reshape of {total} elements of a row to {list(own)}")
    return Item(f.reshape(item.data, own), True)


def _squeeze(items: Items, a: Fields) -> Item:
    item, data = first_of(items), first_of(items).data
    axes = numbers_of(items, 1, a, "axes")
    if axes is None:
        raise Unreadable("a squeeze of whatever is 1")
    for axis in sorted(axis_of(item, axis) for axis in axes):
        data = f.squeeze(data, axis)
    return Item(data, item.batched)


def _unsqueeze(items: Items, a: Fields) -> Item:
    item, data = first_of(items), first_of(items).data
    axes = numbers_of(items, 1, a, "axes") or []
    rank = len(item.shape) + item.batched + len(axes)
    for axis in sorted(axis if axis >= 0 else axis + rank for axis in axes):
        if item.batched and axis == 0:
            raise Unreadable("a new axis before the batch")
        data = f.expand(data, axis - item.batched)
    return Item(data, item.batched)


def _slice(items: Items, a: Fields) -> Item:
    item, data = first_of(items), first_of(items).data
    starts, ends = numbers_of(items, 1, a, "starts") or [], numbers_of(items, 2, a, "ends") or []
    axes = numbers_of(items, 3, a, "axes") or list(range(len(starts)))
    steps = numbers_of(items, 4, a, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        own = axis_of(item, axis)
        keys = [slice(None)] * len(item.shape)
        keys[own] = slice(start, end, step)
        data = data[tuple(keys)]
    return Item(data, item.batched)


def _split(items: Items, a: Fields) -> list[Item]:
    item = first_of(items)
    axis = axis_of(item, integer(a, "axis", 0))
    sizes = numbers_of(items, 1, a, "split")
    parts = integer(a, "num_outputs") if sizes is None else sizes
    if (parts if isinstance(parts, int) else len(parts)) > MOST_PARTS:
        raise Unreadable("a Split into so many parts")
    return [Item(part, item.batched) for part in f.split(item.data, parts, axis)]


def _gather(items: Items, a: Fields) -> Item:
    item, index = first_of(items), first_of(items[1:])
    if isinstance(index.data, Value) or index.batched or index.data.ndim > 1:
        raise Unreadable("a Gather whose places are not known, or have several axes")
    axis = axis_of(item, integer(a, "axis", 0))
    size = item.shape[axis]
    runs: list[list[int]] = []  # first place of each run of neighbours, and the one behind it
    for place in (int(n) + size * (n < 0) for n in index.data.reshape(-1)):
        if not 0 <= place < size:
            raise Unreadable(f"a Gather of place {place} of {size}")
        if runs and place == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    if len(runs) > MOST_PARTS:
        raise Unreadable("a Gather of so many parts")
    keys: list[slice | int] = [slice(None)] * len(item.shape)
    picked = []
    for start, end in runs:
        keys[axis] = slice(start, end) if index.data.ndim else start
        picked.append(item.data[tuple(keys)])
    return Item(picked[0] if len(picked) == 1 else f.concat(picked, axis), item.batched)


def _concat(items: Items, a: Fields) -> Item:
    given = [item for item in items if item is not None]
    batched = any(item.batched for item in given)
    if batched and not all(item.batched for item in given):
        raise Unreadable("a Concat of values with and without the batch")
    axis = axis_of(given[0], integer(a, "axis"))
    return Item(f.concat([item.data for item in given], axis), batched)


def _expand(items: Items, a: Fields) -> Item:
    item, sizes = first_of(items), numbers_of(items, 1, a, "shape") or []
    batched = item.batched or sizes[:1] == [BATCH]
    own = sizes[1:] if batched else sizes
    if batched and not item.batched and len(item.shape) == len(sizes) and item.shape[0] == 1:
        item = Item(item.data[0])
    if batched and (BATCH in own or sizes[:1] not in ([BATCH], [1]) or len(own) < len(item.shape)):
        raise Unreadable(f"an Expand of {list(item.shape)} of a row to {sizes_text(sizes)}")
    target = np.broadcast_shapes(item.shape, tuple(own))
    if math.prod(target) > MOST_ELEMENTS:  # before there is an array of zeros so large
        raise Unreadable(f"a value of {math.prod(target)} elements in one step of a row")
    return Item(item.data if target == item.shape else item.data + np.zeros(target), batched)


MOVES: dict[str, Callable[[Items, Fields], Item | list[Item]]] = {
    "Identity": lambda items, a: first_of(items),
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Concat": _concat,
    "Expand": _expand,
}
