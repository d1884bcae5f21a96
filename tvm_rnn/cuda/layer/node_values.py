"""Values inside a kernel: each node's expression at an index, loaded or computed once and bound to a variable.

In: nodes, and where stored ones are found. Out: TVM variables, for the statements of `row_kernels.py` and the epilogues
of other kernels. TVM copies an expression wherever it is used, so nothing but variables is handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import Index, element, fit
from tvm_rnn.tir.expr import Expr, TirExpr

from .pointers import Argument, Place, address, arithmetic, dense

Reads = Callable[[Node], Place | None]


def sources(nodes: Iterable[Node], stored: Callable[[Node], bool]) -> list[Node]:
    """The stored nodes that the values of `nodes` are computed from, each once, in order of use."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(reversed(list(nodes)))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if stored(node):
            found[node] = None
        else:
            stack.extend(reversed(node.args))
    return list(found)


@dataclass
class Values:
    """Values of one row in one scope of a kernel. Make a new one (`inner`) for a loop's body: what is bound inside a
    loop is not known after it."""

    writer: Writer
    precision: str
    row: Expr
    reads: Reads
    pointers: dict[Node, str]
    given: dict[Node, Callable[[Index], TirExpr]] = field(default_factory=dict)  # e.g. a product's accumulators
    known: dict[tuple[Node, Index], TirExpr] = field(default_factory=dict)

    def inner(self) -> Values:
        return replace(self, known=dict(self.known))

    def at(self, node: Node, index: Index) -> TirExpr:
        """The value of `node` at `index`, as a variable (or a constant)."""
        key = (node, tuple(index))
        if key not in self.known:
            self.known[key] = self._make(node, index)
        return self.known[key]

    def _make(self, node: Node, index: Index) -> TirExpr:
        dtype = arithmetic(self.precision)
        if node in self.given:
            return self.given[node](index)
        if node in self.pointers:
            place = self.reads(node)
            assert place is not None
            return self.writer.keep(self.load(self.pointers[node], place, node, index))
        if node.scalar is not None:
            return tirx.const(node.scalar, dtype)
        if node.pointwise:
            expression = TABLE[node.op].expression
            assert expression is not None
            return self.writer.keep(expression(*(self.at(a, fit(a.shape, index)) for a in node.args)))
        # A view: the same value at another index.
        return element(node, index, lambda n, i: None if n is node else self.at(n, i), dtype)

    def load(self, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        value = self.writer[pointer][address(place, self.row, dense(node.shape, index))]
        dtype = arithmetic(self.precision)
        return value if place.dtype == dtype else tirx.Cast(dtype, value)


def store(writer: Writer, argument: Argument, place: Place, row: Expr, index: Sequence[Expr], value: Expr) -> None:
    """Store one element of the argument's node at its place, rounded to the place's dtype."""
    writer.store(
        writer[argument.name], converted(value, place.dtype), address(place, row, dense(argument.node.shape, index))
    )
