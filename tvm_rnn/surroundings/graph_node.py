"""One node of an ONNX graph: its operands, whose sizes are expressions, and what is to be looked at when it runs.

In: values of Relax and numbers that follow from sizes, attributes. Out: `Node`, which `forms.py` makes values of; what
all nodes of a graph ask for together is in `Asked`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .demands import Demand, text_of
from .sizes import Number, Sizes, sizes_of

Item = Number  # a Relax expression, or Sizes


@dataclass
class Bound:
    """What must be true of an array's elements: low <= element < high."""

    value: relax.Expr
    low: Expr
    high: Expr
    text: str


@dataclass
class Asked:
    """given: the graph's inputs by name, in order. numbers: of inputs whose elements are sizes, these by name. bounds,
    demands: what is to be looked at."""

    bb: relax.BlockBuilder
    given: list[tuple[str, relax.Var]] = field(default_factory=list)
    numbers: dict[str, list[tirx.Var]] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)

    def bound(self, value: relax.Expr, low: Expr, high: Expr, text: str) -> None:
        """Have the elements of an array of whole numbers looked at."""
        self.bounds.append(Bound(self.bb.normalize(relax.op.astype(value, "int64")), low, high, text))

    def demand(self, condition: Expr | bool, text: str) -> None:
        """Have sizes looked at. Raises ValueError where they are known not to fit."""
        if isinstance(condition, bool | tirx.IntImm):
            if not condition:
                raise ValueError(f"needed is {text}")
        else:
            self.demands.append(Demand(condition, text))

    def array(self, item: Item) -> relax.Expr:
        """An item as a value of Relax."""
        if not isinstance(item, np.ndarray):
            return item
        flat = item.reshape(-1).tolist()
        if all(isinstance(n, int) for n in flat):
            return relax.const(np.asarray(item, np.int64), "int64")
        names = [n for n in flat if not isinstance(n, int)]

        def element(*given: Expr) -> te.Tensor:
            known = iter(given)
            numbers = [int64(n) if isinstance(n, int) else wide(next(known)) for n in flat]

            def at(*index: Expr) -> Expr:
                found, place = numbers[-1], index[0] if index else int64(0)
                for i in reversed(range(len(numbers) - 1)):
                    found = tirx.Select(tirx.EQ(wide(place), int64(i)), numbers[i], found)
                return found

            return te.compute((len(flat),) if item.ndim else (), at, name="sizes")

        made = self.bb.emit_te(element, *names)
        return made if item.ndim < 2 else self.bb.normalize(relax.op.reshape(made, item.shape))


@dataclass
class Node:
    """operator and attributes as ONNX has them; tvm_custom among these has the number of outputs, as TVM wants it."""

    asked: Asked
    op: str
    inputs: Sequence[Item]
    attributes: dict[str, Item]

    @property
    def bb(self) -> relax.BlockBuilder:
        return self.asked.bb

    def known(self, value: Item) -> np.ndarray | None:
        """Whole numbers that are known, or bools: sizes, or a constant's elements."""
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, tvm.ir.GenericConst) and str(value.ty.dtype).startswith(("int", "bool")):
            found: np.ndarray = value.value.numpy()
            return found
        return None

    def sizes(self, place: int) -> Sizes | None:
        """The numbers of an input that says how large a result is. Raises ValueError where only a run shows them."""
        if place >= len(self.inputs) or self.inputs[place] is None:
            return None
        value = self.inputs[place]
        known = self.known(value)
        if known is not None:
            return sizes_of(known.reshape(-1).tolist())
        name = next((name for name, own in self.asked.given if own is value), "")
        if name in self.asked.numbers:
            return sizes_of(self.asked.numbers[name])
        raise ValueError("sizes that only a run shows")

    def shape(self, value: Item) -> list[Expr]:
        """Raises ValueError where it is not known."""
        if isinstance(value, np.ndarray):
            return [*value.shape]
        kind = value.ty
        if not isinstance(kind, relax.TensorType) or kind.shape is None or not hasattr(kind.shape, "values"):
            raise ValueError("an array whose number of axes, or sizes, only a run shows")
        return [int(n) if isinstance(n, tirx.IntImm) else n for n in kind.shape.values]

    def aligned(self, inputs: Sequence[relax.Expr | None]) -> list[relax.Expr | None]:
        """The operands, each with the sizes of all of them where names differ."""
        shapes = [self.shape(value) for value in inputs if value is not None]
        rank = max(map(len, shapes))
        axes = [
            {str(own[len(own) - i]): own[len(own) - i] for own in shapes if i <= len(own)} for i in range(rank, 0, -1)
        ]
        unlike = [[size for size in own.values() if size != 1] for own in axes]
        if all(len(own) < 2 or all(isinstance(n, int) for n in own) for own in unlike):
            return [*inputs]
        whole = [self.joined(own) for own in unlike]
        return [None if value is None else self.spread(value, whole) for value in inputs]

    def joined(self, sizes: Sequence[Expr]) -> Expr:
        """The size that goes with all of these; that it does is looked at when the model runs."""
        found = _joined(sizes)
        for first, size in itertools.pairwise(sizes):
            equal = tirx.Or(tirx.EQ(wide(size), wide(found)), tirx.EQ(wide(size), int64(1)))
            own = tirx.Or(tirx.EQ(wide(first), wide(found)), tirx.EQ(wide(first), int64(1)))
            self.asked.demand(tirx.And(equal, own), f"{text_of(wide(first))} = {text_of(wide(size))}")
        return found

    def viewed(self, value: relax.Expr, shape: Sequence[Expr]) -> relax.Expr:
        """A value whose sizes have other names."""
        if [*map(str, self.shape(value))] == [*map(str, shape)]:
            return value

        def at(source: te.Tensor) -> te.Tensor:
            return te.compute([wide(n) for n in shape], lambda *index: source(*index), name="view")

        return self.bb.emit_te(at, value)

    def spread(self, value: relax.Expr, shape: Sequence[Expr]) -> relax.Expr:
        """A value on larger axes: those of one element are repeated."""
        own = self.shape(value)
        lead = len(shape) - len(own)

        def at(source: te.Tensor) -> te.Tensor:
            def element(*index: Expr) -> Expr:
                return source(*(_within(i, n) for i, n in zip(index[lead:], source.shape, strict=True)))

            return te.compute([wide(n) for n in shape], element, name="spread")

        return self.bb.emit_te(at, value)


def places_fit(node: Node, places: relax.Expr, size: Expr) -> None:
    """Have looked at that places along an axis are there; they may be counted from the end."""
    known = node.known(places)
    if known is None:
        node.asked.bound(places, int64(0) - wide(size), wide(size), "an index of as many places as there are")
        return
    most = max([*known.reshape(-1).tolist(), *(-1 - known.reshape(-1)).tolist()], default=-1)
    fits = size > most if isinstance(size, int) else tirx.LT(int64(most), wide(size))
    node.asked.demand(fits, f"{most} < {text_of(wide(size))}")


def _within(index: Expr, size: Expr) -> Expr:
    """The place along an axis that is as long as the loop, or has one element."""
    if isinstance(size, tirx.IntImm):
        return int64(0) if int(size) == 1 else index
    return tirx.Min(wide(index), wide(size) - int64(1))


def _joined(sizes: Sequence[Expr]) -> Expr:
    """The size of all: that of any that is not 1."""
    found: Expr = 1
    for size in sorted(sizes, key=lambda own: not isinstance(own, int)):
        found = size if isinstance(found, int) and found == 1 else found
        if found is not size and not isinstance(found, int):
            found = tirx.Select(tirx.EQ(wide(found), int64(1)), wide(size), wide(found))
    return found
