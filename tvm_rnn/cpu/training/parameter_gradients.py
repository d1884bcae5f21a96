"""After all steps: the sums of one layer and direction become the gradients of its parameters.

In: a backward graph and its nodes that sum over T and B. Out: where those sums are, in the flat buffer "totals", and
the statement that reads them, and parameters, and fills one dense array per parameter. It runs once per call, whatever
T and B are: mostly it joins the gates' gradients to one array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm_rnn.cpu.user_array_copies import each
from tvm_rnn.cpu.weight_packing import accumulated
from tvm_rnn.cpu.workspace import Array, int64, pad, strides_of
from tvm_rnn.graph.graph import Graph, Node, rewrite
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.network.rnn import named_constants
from tvm_rnn.passes.fuse_pointwise import FUNCTION
from tvm_rnn.tir.statements import Expr, Stmt, load, loop, sequence, store


@dataclass
class Finish:
    """graph: what is made of the sums, which are its inputs. size: elements of "totals" for one layer and direction."""

    whole: Graph
    sums: Sequence[Node]
    lanes: int
    number: str
    size: int = 0
    places: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        leaves = {n: Node("input", shape=n.shape, name=f"sum_{i}") for i, n in enumerate(self.sums)}
        new: dict[Node, Node] = dict(leaves)
        for node in self.whole.nodes():
            if node not in new:
                new[node] = node if node.leaf else replace(node, args=tuple(new[a] for a in node.args))
        graph = rewrite(replace(self.whole, results=(), emitted=()), new, backward=None, groups=())
        # A graph has an output; this one is read for its totals alone.
        self.graph = replace(graph, output=graph.totals[0] if graph.totals else Node("input"))
        for node in self.sums:
            self.places[node] = self._reserve(node)
        self.kept = [n for n in self.graph.nodes() if self._is_kept(n)]
        for node in self.kept:
            self.places[node] = self._reserve(node)
        self.inner = {leaf: node for node, leaf in leaves.items()}

    def _reserve(self, node: Node) -> int:
        at = self.size
        self.size += pad(strides_of(node.shape, self.lanes)[1], 16)
        return at

    def _is_kept(self, node: Node) -> bool:
        """Reductions, functions, and what several read: TVM's lowering of one expression is exponential in both."""
        if node.leaf or node.boolean or node in self.graph.totals:
            return not node.leaf and TABLE[node.op].kind in ("reduce", "contract")
        users = self.graph.users()[node]
        op = TABLE[node.op]
        return op.kind in ("reduce", "contract") or (op.kind == "pointwise" and (len(users) > 1 or op.cost >= FUNCTION))

    def place(self, node: Node, base: Expr) -> Array:
        """One of the sums, or of the values kept on the way, where that layer's part of "totals" begins at `base`."""
        strides = strides_of(node.shape, self.lanes)[0]
        return Array("totals", base + int64(self.places[node]), 0, strides, node.shape)

    def statement(self, raw: Mapping[str, Any], totals: Any, offset: Expr, gradients: Sequence[Any]) -> Stmt:
        """Fills `gradients`, dense, in the order of the parameters. raw: parameters and constants by name, dense."""
        names = {id(value): name for name, value in named_constants(self.graph, self.number).items()}
        ready: dict[Node, Array] = {leaf: self.place(node, offset) for leaf, node in self.inner.items()}

        def read(node: Node, index: Index) -> Expr | None:
            if node in ready:
                return load(totals, ready[node].address(0, index if node.shape else ()))
            if node.op == "param" or (node.op == "const" and node.scalar is None):
                name = node.name if node.op == "param" else names[id(node.value)]
                return load(raw[name], dense(node.shape, index))
            return None

        parts = []
        for node in self.kept:
            array = self.place(node, offset)
            parts.append(self._fill(node, array, totals, read))
            ready[node] = array
        for node, into in zip(self.graph.totals, gradients, strict=True):
            parts.append(self._give(node, into, read))
        return sequence(parts)

    def _fill(self, node: Node, array: Array, totals: Any, read: Any) -> Stmt:
        def one(index: Index, _: Expr) -> Stmt:
            address = array.address(0, index)
            if TABLE[node.op].kind in ("reduce", "contract"):
                return accumulated(node, index, read, totals, address, self.graph.dtype)
            return store(totals, address, element(node, index, _without(node, read), self.graph.dtype))

        return each(node.shape, one)

    def _give(self, node: Node, into: Any, read: Any) -> Stmt:
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


def _without(node: Node, read: Any) -> Any:
    return lambda n, index: None if n is node else read(n, index)


def dense(shape: Sequence[int], index: Index) -> Expr:
    """The place of an element in a dense row-major array."""
    flat: Expr = int64(0)
    for i, size in zip(index, shape, strict=True):
        flat = flat * int64(size) + (int64(i) if isinstance(i, int) else i)
    return flat
