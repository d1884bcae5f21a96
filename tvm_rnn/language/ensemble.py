"""Cells of many members: N networks of one cell, each with parameters, inputs and states of its own, as one cell.

In: a cell. Out: a cell whose every argument has one more axis in front, `members`; its graphs are the cell's, with that
axis (`graph/batched.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from tvm_rnn.graph.batched import NoMembers, batched
from tvm_rnn.graph.graph import Graph
from tvm_rnn.graph.ops import Shape

from .cell import Argument, Cell
from .dims import parse_dims

AXIS = "members"


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(Cell):
    """A cell of many members. base: that of one; parts: directions of the layer below, whose outputs are the first
    input, one after the other."""

    base: Cell = field(kw_only=True)
    parts: int = 1

    def lead(self, sizes: Mapping[str, int]) -> Shape:
        return (sizes[AXIS], *self.base.lead(sizes))

    def joined(self, parts: int) -> Ensemble:
        return self if parts == self.parts else replace(self, parts=parts)

    def trace(self, sizes: Mapping[str, int], dtype: str = "float32") -> Graph:
        """The base's graph with the axis in front."""
        own = self.completed(sizes)
        self._check_sizes(own)
        graph = self.base.trace({name: size for name, size in own.items() if name != AXIS}, dtype)
        try:
            found = batched(graph, own[AXIS], self.parts)
        except NoMembers as reason:
            do = "make a loop over networks of one member"
            raise self._wrong("there are no members of this operation", got=str(reason), do=do) from None
        return replace(found, sizes=dict(own))

    def __reduce__(self) -> tuple[object, ...]:
        return ensemble, (self.base, self.parts)


def ensemble(cell: Cell, parts: int = 1) -> Ensemble:
    """The cell of many members."""
    own = {item.name: getattr(cell, item.name) for item in fields(Cell)}
    for kind in ("inputs", "states", "params"):
        own[kind] = tuple(_longer(argument) for argument in own[kind])
    return Ensemble(**own, base=cell, parts=parts)


def _longer(argument: Argument) -> Argument:
    return Argument(argument.name, parse_dims(f"{AXIS} {argument.dims.text}"))
