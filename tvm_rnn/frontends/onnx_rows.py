"""Values of one step of one row, as the body of an ONNX Scan has them: with the batch as their first axis, or without.

In: traced values and arrays, from `onnx_equations.py`. Out: `Item`s, and what a node's numbers
mean for them. ONNX's values have the batch as their first axis; ours leave it out. So an `Item` is data without that
axis and whether it has it there; and what a body computes with the batch size is a list of sizes with BATCH in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_rnn.language.trace import Value

from .fields import Fields, Unreadable, integer, integers

BATCH = -7919  # stands for the batch size among sizes: no size is negative
MOST_ELEMENTS = 1 << 24  # of one value in one step of a row


Data = Value | np.ndarray  # traced, or known now


@dataclass(frozen=True)
class Item:
    """A value. data: traced, or an array known now, without the batch axis. batched: whether ONNX's has that axis."""

    data: Data
    batched: bool = False

    @property
    def known(self) -> bool:
        return not isinstance(self.data, Value)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)


Items = Sequence[Item | None]


def has_batch_size(item: Item | None) -> bool:
    """Whether these are sizes, the batch's among them."""
    if item is None or isinstance(item.data, Value):
        return False
    return item.data.dtype.kind == "i" and bool(np.any(item.data == BATCH))


def sizes_text(shape: Sequence[int]) -> str:
    """Sizes as messages have them."""
    return f"[{', '.join('B' if n == BATCH else str(n) for n in shape)}]"


def aligned(items: Sequence[Item]) -> tuple[bool, list[Data]]:
    """Operands of a pointwise operation, and whether the result has the batch axis."""
    if not any(item.batched for item in items):
        return False, [item.data for item in items]
    ranks = {len(item.shape) for item in items if item.batched}
    if len(ranks) > 1:
        raise Unreadable("values with the batch in different places meet in one operation")
    (rank,) = ranks
    data = []
    for item in items:
        if not item.batched and len(item.shape) > rank:
            if len(item.shape) > rank + 1 or item.shape[0] != 1:
                raise Unreadable(f"an array of shape {list(item.shape)} meets a value of one step of a row")
            data.append(item.data[0])
        else:
            data.append(item.data)
    return True, data


def shape_of(item: Item, attributes: Fields) -> Item:
    """What Shape gives: sizes, the batch's as BATCH."""
    sizes = [*([BATCH] if item.batched else []), *item.shape]
    end = integer(attributes, "end") if "end" in attributes else None
    return Item(np.array(sizes, np.int64)[integer(attributes, "start", 0) : end])


def axis_of(item: Item, axis: int) -> int:
    """A node's axis among ours, counted from the end. Raises Unreadable for the batch's."""
    rank = len(item.shape) + item.batched
    own = axis if axis < 0 else axis - rank
    if not -rank <= own < 0 or (item.batched and own == -rank):
        raise Unreadable(f"axis {axis} of a value of rank {rank} is the batch's, or none")
    return own


def numbers_of(items: Items, at: int, attributes: Fields, name: str) -> list[int] | None:
    """Whole numbers that a node has for an input, or in older versions for an attribute. None for neither."""
    item = items[at] if len(items) > at else None
    if item is not None:
        if not item.known:
            raise Unreadable(f"{name} depends on the step")
        return [int(n) for n in np.asarray(item.data).reshape(-1)]
    return integers(attributes, name) if attributes.get(name) is not None else None


def first_of(items: Items) -> Item:
    """The first input, which must be given."""
    item = items[0]
    if item is None:
        raise Unreadable("its first input is not given")
    return item
