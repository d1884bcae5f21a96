"""Values of a step at the elements of one lane: demanded from results backwards, each element computed once.

In: the axes of a step, and what gives the values of leaves and keeps registers. Out: `LaneValues`. What phases leave is
in `held`; what lies between is computed where it is read. Written with names in place of memory, the same demands say
what a step reads (`matrix_step.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from tvm import tirx

from tvm_rnn.graph.graph import Node, reduced_axes
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import fit, moved, reduced_value
from tvm_rnn.tir.expr import TirExpr

from .element_index import COLUMN, ROW, Along, ElementIndex, NotOnChip, of
from .matrix_axes import FEW, MatrixAxes, Roles

Index = tuple[ElementIndex | int, ...]
Leaf = Callable[[Node, Index], TirExpr | None]
Lanes = Mapping[str, tuple[Along, ...]]  # a lane's rows and columns, by role


def placed(index: Index, lanes: Lanes) -> Index:
    """An index that a dry run has found, with the rows and columns of a kernel's lanes."""

    def own(i: ElementIndex) -> ElementIndex:
        return replace(i, terms=tuple((lanes[along.role][along.number], factor) for along, factor in i.terms))

    return tuple(own(i) if isinstance(i, ElementIndex) else i for i in index)


@dataclass
class LaneValues:
    """leaf: the value of what lies somewhere; None: it is computed. keep: a value in a register. lanes: what a lane
    has. held: what phases left, and all that was computed since."""

    axes: MatrixAxes
    lanes: Lanes
    leaf: Leaf
    keep: Callable[[TirExpr], TirExpr]
    held: dict[tuple[Node, Index], TirExpr] = field(default_factory=dict)

    def indices(self, node: Node) -> Iterator[Index]:
        """Of what a lane has of a value that is made of states. Raises NotOnChip."""
        return self.along(self.axes.roles[node], node)

    def along(self, roles: Roles, node: Node) -> Iterator[Index]:
        """The same with other roles."""
        ways = list[list[ElementIndex | int]]()
        for role, size in zip(roles, node.shape, strict=True):
            if role is not None and size > 1:
                ways.append([of(along) for along in self.lanes[role]])
                continue
            if size > FEW:
                raise NotOnChip(f"{in_words(node)} runs neither along rows nor along columns")
            ways.append(list(range(size)))
        return product(*ways)

    def element(self, roles: Roles, row: int, column: int) -> Index:
        """Of a matrix's axes: the index of a lane's row and column."""
        return tuple(of(self.lanes[ROW][row] if role == ROW else self.lanes[COLUMN][column]) for role in roles)

    def at(self, node: Node, index: Index) -> TirExpr:
        key = (node, index)
        if key not in self.held:
            self.held[key] = self._make(node, index)
        return self.held[key]

    def _make(self, node: Node, index: Index) -> TirExpr:
        if node.scalar is not None:
            return tirx.const(node.scalar, "float32")
        found = self.leaf(node, index)
        if found is not None:
            return self.keep(found)
        if node.leaf or node.random or node.op in ("sum", "max"):
            raise NotOnChip(f"{in_words(node)} is read where no lane has it")
        if node.pointwise:
            expression = TABLE[node.op].expression
            if expression is None:
                raise NotOnChip(f"a step has {in_words(node)}")
            return self.keep(expression(*(self.at(a, fit(a.shape, index)) for a in node.args)))
        if node.op == "concat":
            return self._joined(node, index)
        if node.op == "einsum" and not reduced_axes(node):
            return self.keep(reduced_value(node, index, (), self.at))
        if TABLE[node.op].kind != "move":
            raise NotOnChip(f"{in_words(node)} is read where no lane has it")
        return self.at(node.args[0], moved(node, index))

    def _joined(self, node: Node, index: Index) -> TirExpr:
        axis = len(node.shape) + node.attrs["axis"]
        place, start = index[axis], 0
        first, last = (place, place) if isinstance(place, int) else (place.first, place.most)
        for part in node.args:
            size = part.shape[axis]
            if start <= first and last < start + size:
                return self.at(part, (*index[:axis], place - start, *index[axis + 1 :]))
            start += size
        raise NotOnChip(f"{in_words(node)} joins parts of rows or columns of the states")

    def summands(self, node: Node, index: Index) -> Iterator[tuple[TirExpr, tuple[Along, ...]]]:
        """What a sum or maximum adds up for one element of its result, with the rows and columns that each is from."""
        ways: list[Sequence[Along | int]] = []
        for letter, size in reduced_axes(node):
            role = self.axes.summed[node][letter]
            ways.append(range(size) if role is None or size == 1 else self.lanes[role])
        for chosen in product(*ways):
            ks = tuple(of(k) if isinstance(k, Along) else k for k in chosen)
            yield reduced_value(node, index, ks, self.at), tuple(k for k in chosen if isinstance(k, Along))
