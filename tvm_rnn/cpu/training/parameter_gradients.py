"""After all steps: the sums of one layer and direction become the gradients of its parameters.

In: a backward graph and its nodes that sum over T and B. Out: where those sums are, in the flat buffer of row sums, and
the statement that reads them, and parameters, and fills one dense array per parameter. It runs once per call, whatever
T and B are: mostly it joins the gates' gradients to one array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm_rnn.cpu.weight_packing import accumulated
from tvm_rnn.cpu.workspace import Array, dense, each_element, pad, strides_of
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import Index, Reader, element
from tvm_rnn.network.rnn import named_constants
from tvm_rnn.passes.sums_to_gradients import SumsToGradients
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import load, loop, sequence, store

from .weight_gradient_sums import ROW_SUMS


@dataclass
class Finish(SumsToGradients):
    """size: elements of the row sums for one layer and direction."""

    lanes: int
    number: str
    size: int = 0
    places: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for node in (*self.sums, *self.kept):
            self.places[node] = self._reserve(node)

    def _reserve(self, node: Node) -> int:
        at = self.size
        self.size += pad(strides_of(node.shape, self.lanes)[1], 16)
        return at

    def place(self, node: Node, base: Expr) -> Array:
        """One of the sums, or of the values kept on the way, where that layer's part begins at `base`."""
        strides = strides_of(node.shape, self.lanes)[0]
        return Array(ROW_SUMS, base + int64(self.places[node]), 0, strides, node.shape)

    def statement(self, raw: Mapping[str, Buffer], row_sums: Buffer, offset: Expr, gradients: Sequence[Buffer]) -> Stmt:
        """Fills `gradients`, dense, in the order of the parameters. raw: parameters and constants by name, dense."""
        names = {id(value): name for name, value in named_constants(self.graph, self.number).items()}
        ready: dict[Node, Array] = {leaf: self.place(node, offset) for leaf, node in self.inner.items()}

        def read(node: Node, index: Index) -> Expr | None:
            if node in ready:
                return load(row_sums, ready[node].address(0, index if node.shape else ()))
            if node.op == "param" or (node.op == "const" and node.scalar is None):
                name = node.name if node.op == "param" else names[id(node.value)]
                return load(raw[name], dense(node.shape, index))
            return None

        parts = []
        for node in self.kept:
            array = self.place(node, offset)
            parts.append(self._fill(node, array, row_sums, read))
            ready[node] = array
        for node, into in zip(self.graph.weight_gradients, gradients, strict=True):
            parts.append(self._give(node, into, read))
        return sequence(parts)

    def _fill(self, node: Node, array: Array, row_sums: Buffer, read: Reader) -> Stmt:
        def inner(n: Node, index: Index) -> Expr | None:
            return None if n is node else read(n, index)

        def one(index: Index, _: Expr) -> Stmt:
            address = array.address(0, index)
            if TABLE[node.op].kind in ("reduce", "contract"):
                return accumulated(node, index, read, row_sums, address, self.graph.dtype)
            return store(row_sums, address, element(node, index, inner, self.graph.dtype))

        return each_element(node.shape, one)

    def _give(self, node: Node, into: Buffer, read: Reader) -> Stmt:
        """Dense stores of a gradient; of joined gates part by part: one choice per part, not per element."""

        def nest(part: Node, index: tuple[Expr, ...], own: tuple[Expr, ...]) -> Stmt:
            """index: the place in the whole array so far; own: that in the part."""
            at = len(own)
            if at < len(part.shape):
                return loop(f"i{at}", part.shape[at], lambda i: nest(part, (*index, i + shift[at]), (*own, i)))
            return store(into, dense(node.shape, index), element(part, own, read, self.graph.dtype))

        if node.op != "concat":
            shift: list[Expr] = [int64(0)] * len(node.shape)
            return nest(node, (), ())
        axis, begin, parts = len(node.shape) + node.attrs["axis"], 0, []
        for part in node.args:
            shift = [int64(begin if i == axis else 0) for i in range(len(node.shape))]
            parts.append(nest(part, (), ()))
            begin += part.shape[axis]
        return sequence(parts)
