"""Gradients that are stored: of inputs, for the layer below or the user, and of parameters, after all steps.

In: a backward graph: its value for each row, and how values are read after all steps; its sums over T and B, and where
they are. Out: `InputGradient`, a kernel over the rows of a tile, which adds directions and layers up, and gives 0 to
rows that have ended; `FinishKernels`, of one layer and direction: a kernel for each intermediate value and for each
parameter's gradient, which is dense and in the dtype that weights are given in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.pointers import Place, address, arithmetic
from tvm_rnn.cuda.layer.row_kernels import (
    EACH,
    THREADS,
    Reads,
    Rows,
    Values,
    elements,
    parts,
    rows_kernel,
    sources,
    unravel,
)
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.graph.graph import Graph, Group, Node, in_order
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.passes.sums_to_gradients import SumsToGradients
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import wide

from .weight_gradient_sums import Find


@dataclass
class InputGradient:
    """The kernel of one value. dtype: of the dense result."""

    name: str
    root: Node
    precision: str
    reads: Reads
    dtype: str

    def __post_init__(self) -> None:
        self.read = sources([self.root], lambda n: self.reads(n) is not None)
        places = [place for n in self.read if (place := self.reads(n)) is not None]
        pointers = [(f"r{i}", place.dtype) for i, place in enumerate(places)]
        scalars = [(name, "int64") for name in ("rows", "batch", "start")]
        scalars += [("has_lengths", "int32"), ("add", "int32")]
        arguments = [*pointers, ("into", self.dtype), ("lengths", "int64")]
        self.kernel: Kernel = write(self.name, arguments, scalars, self._body, threads=THREADS)

    def _body(self, w: Writer) -> None:
        size = prod(self.root.shape)
        each = min(EACH, ceil_div(size, THREADS))
        if each == 1:
            row, j, inside = elements(w, size)
            with w.when(inside):
                self._element(w, row, j)
            return
        parts(w, size, each, lambda row, j: self._element(w, row, j))

    def _element(self, w: Writer, row: Expr, j: Expr) -> None:
        size, dtype = prod(self.root.shape), arithmetic(self.precision)
        total = w.local(1, dtype)
        for part, begin in self._parts():
            end = begin + prod(part.shape)
            with (
                nullcontext() if part is self.root else w.when(tirx.And(j >= begin, j < end)),
                flavour(self.precision),
            ):
                values = Values(w, self.precision, row, self.reads, {n: f"r{i}" for i, n in enumerate(self.read)})
                w.store(total, values.at(part, unravel(w, j - begin, part.shape)), 0)
        with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
            time = w["start"] + tirx.truncdiv(row, w["batch"])
            with w.when(time >= w["lengths"][tirx.truncmod(row, w["batch"])]):
                w.store(total, tirx.const(0.0, dtype), 0)
        at = address(Place(self.dtype, size), wide(row), j)
        with w.when(tirx.NE(w["add"], tirx.const(0, "int32"))):
            w.store(total, total[0] + converted(w["into"][at], dtype), 0)
        w.store(w["into"], converted(total[0], self.dtype), at)

    def _parts(self) -> Iterator[tuple[Node, int]]:
        """What the value is put together of, where nothing but that is done, and at which element each part begins: a
        thread reads of one alone."""
        node, begin = self.root, 0
        parts = node.args if node.op == "concat" and len(node.shape) == 1 and self.reads(node) is None else (node,)
        for part in parts:
            yield part, begin
            begin += prod(part.shape)

    def run(self, host: Host, find: Find, into: Pointer, steps: tuple[HostExpr, HostExpr], add: bool) -> None:
        """Over the rows of `steps`: (the first step, how many)."""
        pointers = [*(find(n, False) for n in self.read), into, host.program.lengths]
        host.launch(self.kernel, pointers, [f"{steps[1]} * B", "B", steps[0], "has_lengths ? 1 : 0", int(add)])


@dataclass
class FinishKernels:
    """Of all layers that share a backward graph. number: of its constants, also in the kernels' names."""

    whole: Graph
    sums: Sequence[Node]
    number: str
    precision: str

    def __post_init__(self) -> None:
        self.finish = SumsToGradients(self.whole, self.sums)
        self.graph = self.finish.graph
        self.weights = Weights(self.graph, self.number, self.precision)
        self.kernels: dict[Node | tuple[str, int], Rows] = {}
        # Values on the way, but for those that packing makes: they are read where it leaves them.
        self.kept = [node for node in self.finish.kept if self.weights.place(node) is None]
        made: list[tuple[Node | tuple[str, int], str, Node, str]] = []
        made += [(n, f"value{i}", n, arithmetic(self.precision)) for i, n in enumerate(self.kept)]
        made += [
            (("gradient", i), f"gradient{i}", n, self.weights.raw_dtype)
            for i, n in enumerate(self.graph.weight_gradients)
        ]
        known = {*self.finish.inner}
        for key, name, node, dtype in made:
            self.kernels[key] = self._kernel(f"g{self.number}_{name}", node, frozenset(known), dtype)
            if isinstance(key, Node):
                known.add(key)

    def _kernel(self, name: str, node: Node, known: frozenset[Node], dtype: str) -> Rows:
        def reads(other: Node) -> Place | None:
            return Place(arithmetic(self.precision), 0) if other in known else self.weights.place(other)

        there, places = reads(node) is not None, [Place(dtype, 0)]
        heavy = not node.leaf and not there and TABLE[node.op].kind in ("reduce", "contract")
        group = Group("reduce" if heavy else "pointwise", "after", 0, node if heavy else None, (node,), (node,))
        own, elsewhere = self.precision, frozenset([node] if there else [])
        return rows_kernel(name, group, precision=own, reads=reads, writes=lambda n: places, elsewhere=elsewhere)

    def joined(self, axis: int = 0) -> dict[tuple[Node, ...], int]:
        """Gradients that are a sum, or sums one after the other, as they lie: which sums, and the gradient's number.
        axis: that the sums lie along; 1: they do so in each head."""
        found: dict[tuple[Node, ...], int] = {}
        for number, node in enumerate(self.graph.weight_gradients):
            if in_order(node) in self.finish.inner:
                found[(self.finish.inner[in_order(node)],)] = number
            elif node.op == "concat" and len(node.shape) + node.attrs["axis"] == axis:
                parts = [in_order(a) for a in node.args]
                if len({*parts}) == len(parts) and all(a in self.finish.inner for a in parts):
                    found[tuple(self.finish.inner[a] for a in parts)] = number
        return found

    def reserve(self, program: Program) -> None:
        """Memory for intermediate values, which all layers use in turn."""
        dtype = arithmetic(self.precision)
        self.values = {n: program.buffer("value", prod(n.shape), dtype) for n in self.kept}

    def run(
        self, host: Host, sums: Mapping[Node, Pointer], weights: Mapping[object, Pointer], gradients: Sequence[Pointer]
    ) -> None:
        """Fill `gradients`, in the order of the parameters. Where sums were made in a gradient, it is there already."""
        places = {leaf: sums[node] for leaf, node in self.finish.inner.items()} | dict(self.values)
        joined = (self.joined() | self.joined(1)).items()
        there = {number for nodes, number in joined if sums[nodes[0]].text == gradients[number].text}
        for key, made in self.kernels.items():
            if not isinstance(key, Node) and key[1] in there:
                continue
            target = places[key] if isinstance(key, Node) else gradients[key[1]]
            read = (target if a.role == "write" else places.get(a.node) or weights[a.node] for a in made.arguments)
            host.launch(made.kernel, list(read), [1])
