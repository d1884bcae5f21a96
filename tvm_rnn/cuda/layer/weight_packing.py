"""Weights on the GPU: what is computed from parameters once, when weights are loaded, and the kernels that do it.

In: a graph with groups, and the packed form that each product wants. Out: `Weights`: the kept values in an order in
which they can be computed, and `pack`, which puts their kernels into the host program. A kept value is dense; values
of parameters that a kernel reads are kept, and so are those that other kept ones are made of. Where weights are stored
in 8 bits, every product's are: as codes, or rounded to what codes can say, with a scale for each row
(`fp8_weights.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.graph.graph import Graph, Group, Node, depends
from tvm_rnn.graph.ops import GEMMS, TABLE
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.rnn import named_constants
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, wide

from . import fp8_weights
from .packed_layout import Pack
from .pointers import Place, arithmetic, dense
from .row_kernels import THREADS, WARP, Values, across_warp, rows_kernel, sources, unravel

SCALES = "scales"


@dataclass
class Weights:
    """The values of one graph that are made of parameters alone. stored: the dtype of products' parameters, where it is
    not the precision's."""

    graph: Graph
    number: int | str  # also in the kernels' names
    precision: str
    stored: str = ""
    kept: list[Node] = field(default_factory=list)
    packs: dict[object, Pack] = field(default_factory=dict)  # by Pack.key
    kernels: dict[object, tuple[Kernel, Sequence[object]]] = field(default_factory=dict)
    scaled: dict[object, Node] = field(default_factory=dict)  # by `scales_of`

    def __post_init__(self) -> None:
        nodes = self.graph.nodes()
        leaves = depends(nodes)
        self.free = {n for n in nodes if not leaves[n]}
        self.order = {n: i for i, n in enumerate(nodes)}
        weights = [w for g in self.graph.groups if g.root is not None and g.kind == "gemm" for w in g.root.args[::2]]
        read = [n for n in nodes if n not in self.free for n in self._read(n)]
        read += [n for root in self.graph.roots for n in self._sources([root])]
        found = dict.fromkeys(read)
        # Parameters are read where they are; what is computed from them and read here is kept as well.
        pending = [*weights, *(a for n in found for a in n.args)]
        while pending:
            made = [n for n in sources(pending, self._computed) if n not in found]
            found.update(dict.fromkeys(made))
            pending = [a for n in made for a in n.args]
        self.kept = sorted(found, key=self.order.__getitem__)
        self.places = frozenset(self.kept)

    def _read(self, node: Node) -> Iterable[Node]:
        """What a value that is not made of parameters alone reads of those that are; a product's parameters apart."""
        if node.op == "at_pixel":
            return node.args[:1]
        args = node.args[1::2] if node.op in GEMMS else node.args
        return self._sources([a for a in args if a in self.free])

    def _sources(self, nodes: Sequence[Node]) -> list[Node]:
        return [n for n in sources(nodes, self._keepable) if n in self.free]

    def _keepable(self, node: Node) -> bool:
        """Worth an array of its own. Other views are changes of index; truth values are computed where they are
        read."""
        if node not in self.free:
            return True  # not looked through
        if node.leaf:
            return node.scalar is None
        return self._computed(node) or node.op in ("transpose", "concat")

    @staticmethod
    def _computed(node: Node) -> bool:
        summed = not node.leaf and TABLE[node.op].kind in ("reduce", "contract")
        return summed or (node.pointwise and not node.boolean)

    def place(self, node: Node) -> Place | None:
        """How a kept value is read, or one that pixels have of it; None for others."""
        if node.op == "at_pixel":
            return Place(arithmetic(self.precision), prod(node.shape), every=prod(node.attrs["image"]))
        return Place(arithmetic(self.precision), 0) if node in self.places else None

    def want(self, pack: Pack) -> None:
        """Have a product's parameter packed; equal keys are packed once."""
        self.packs.setdefault(pack.key, pack)

    # --- kernels -------------------------------------------------------------------------------------------------

    @property
    def raw_dtype(self) -> str:
        return "float64" if self.precision == "float64" else "float32"

    def _reads(self, target: Node | None) -> Callable[[Node], Place | None]:
        """Parameters as the user gave them, kept values as they are."""
        made = {n for n in self.kept if not n.leaf and n is not target}

        def reads(node: Node) -> Place | None:
            if node in made:
                return Place(arithmetic(self.precision), 0)
            return Place(self.raw_dtype, 0) if node.leaf and node.scalar is None else None

        return reads

    def _kept_kernel(self, node: Node) -> tuple[Kernel, list[Node]]:
        kind = "pointwise" if node.leaf or TABLE[node.op].kind in ("pointwise", "move") else "reduce"
        root = node if kind == "reduce" else None
        made = rows_kernel(
            f"g{self.number}_keep{self.kept.index(node)}",
            Group(kind, "weights", 0, root, (node,), (node,)),
            precision=self.raw_dtype,
            reads=self._reads(node),
            writes=lambda n: [Place(arithmetic(self.precision), 0)],
            elsewhere=frozenset([node] if node.leaf else []),
        )
        return made.kernel, [a.node for a in made.arguments if a.role == "read"]

    def _needed(self, node: Node) -> tuple[list[Node], dict[Node, str], list[tuple[str, str]]]:
        """What a parameter's values are made of, the names of the pointers to it, and these with dtypes."""
        reads = self._reads(None)
        needed = sources([node], lambda n: reads(n) is not None)
        pointers = {n: f"r{i}" for i, n in enumerate(needed)}
        return needed, pointers, [(pointers[n], place.dtype) for n in needed if (place := reads(n)) is not None]

    def _pack_kernel(self, number: int, pack: Pack) -> tuple[Kernel, Sequence[object]]:
        needed, pointers, named = self._needed(pack.node)
        blocks = -(-pack.elements // THREADS)

        def value(writer: Writer, index: Sequence[Expr]) -> TirExpr:
            return Values(writer, self.raw_dtype, int64(0), self._reads(None), pointers).at(pack.node, tuple(index))

        def row_scale(writer: Writer, index: Sequence[Expr]) -> TirExpr:
            return writer.keep(writer["scales"][wide(dense(pack.node.shape[:-1], index[:-1]))])

        def code(writer: Writer, at: Expr) -> TirExpr:
            index, valid = pack.index(at)
            found = writer.local(1, "uint32")
            writer.store(found, tirx.const(0, "uint32"), 0)
            with writer.when(valid):
                writer.store(found, fp8_weights.code(writer, value(writer, index), row_scale(writer, index)), 0)
            return found[0]

        def body(writer: Writer) -> None:
            block, thread = I.cta_id([blocks]), I.thread_id([THREADS])
            at = writer.keep(wide(block) * int64(THREADS) + wide(thread))
            with writer.when(at < int64(pack.elements)):
                if pack.coded:
                    codes = [code(writer, at * int64(4) + int64(i)) for i in range(4)]
                    writer.store(writer["packed"], fp8_weights.word(codes, pack.coded), at)
                    return
                index, valid = pack.index(at)
                writer.store(writer["packed"], tirx.const(0.0, pack.dtype), at)
                with writer.when(valid):
                    found = value(writer, index)
                    found = tf32(found) if pack.tf32 else found
                    found = fp8_weights.dequantised(writer, found, row_scale(writer, index)) if self.stored else found
                    writer.store(writer["packed"], converted(found, pack.dtype), at)

        named += [("scales", "float32")] if self.stored else []
        with flavour(self.raw_dtype):
            kernel = write(f"g{self.number}_pack{number}", [*named, ("packed", pack.dtype)], [], body, threads=THREADS)
        return kernel, [*needed, *([scales_of(pack.node)] if self.stored else [])]

    def _scale_kernel(self, number: int, node: Node) -> tuple[Kernel, list[Node]]:
        """A warp for each row: the scale that its largest magnitude needs."""
        needed, pointers, named = self._needed(node)
        *outer, depth = node.shape

        def body(w: Writer) -> None:
            row, lane = I.cta_id([prod(outer)]), I.thread_id([WARP])
            largest = w.local(1, "int32")
            w.store(largest, tirx.const(0, "int32"), 0)
            index = unravel(w, row, tuple(outer))
            with w.loop(-(-depth // WARP)) as turn:
                k = w.keep(turn * WARP + lane)
                with w.when(k < depth):
                    found = Values(w, self.raw_dtype, int64(0), self._reads(None), pointers).at(node, (*index, k))
                    w.store(largest, tirx.Max(largest[0], fp8_weights.magnitude(found)), 0)
            across_warp(w, largest, tirx.Max)
            with w.when(tirx.EQ(lane, 0)):
                w.store(w["scales"], fp8_weights.scale(largest[0], self.precision), wide(row))

        with flavour(self.raw_dtype):
            name = f"g{self.number}_scale{number}"
            return write(name, [*named, ("scales", "float32")], [], body, threads=WARP), needed

    def pack(self, program: Program, layer: int, direction: int) -> Mapping[object, Pointer]:
        """Reserve the packed weights of one layer and direction and fill them: statements of `program.pack`.

        Returns where each kept node, each wanted pack (by its key) and its scales (by `scales_of`) lie.
        """
        if not self.kernels:
            self.kernels = {n: self._kept_kernel(n) for n in self.kept}
            scaled = dict.fromkeys(p.node for p in self.packs.values()) if self.stored else {}
            self.scaled = {scales_of(n): n for n in scaled}
            self.kernels |= {scales_of(n): self._scale_kernel(i, n) for i, n in enumerate(scaled)}
            self.kernels |= {k: self._pack_kernel(i, p) for i, (k, p) in enumerate(self.packs.items())}
        names = {id(value): name for name, value in named_constants(self.graph, self.number).items()}
        places: dict[object, Pointer] = {}

        def source(node: object) -> Pointer:
            if not isinstance(node, Node):
                return places[node]
            if node.op == "param" and program.dropped is not None and node.name in program.dropped.own:
                return program.dropped.weight(program, node, layer, direction, self.raw_dtype)
            if node.op == "param":
                return program.raw(weight_name(node.name, layer, direction), self.raw_dtype)
            return program.raw(names[id(node.value)], self.raw_dtype) if node.op == "const" else places[node]

        for key, (kernel, needed) in self.kernels.items():
            if isinstance(key, Node):
                places[key] = program.packed(prod(key.shape), arithmetic(self.precision))
            elif key in self.packs:
                places[key] = program.packed(self.packs[key].elements, self.packs[key].dtype)
            else:
                places[key] = program.packed(prod(self.scaled[key].shape[:-1]), "float32")
            pointers = [*(source(n) for n in needed), places[key]]
            program.pack.launch(kernel, pointers, [1] if kernel.scalars else [])
        return places | {node: places[node.args[0]] for node in self.order if node.op == "at_pixel"}


def scales_of(node: Node) -> tuple[str, Node]:
    """By which name the scales of a product's parameter are known: one for each of its rows."""
    return SCALES, node


def tf32(value: TirExpr) -> TirExpr:
    """A float32 rounded to nearest with 10 bits of mantissa; NaN and infinities as they are."""
    bits = fp8_weights.bits(value) + tirx.const(0x1000, "int32")
    rounded = fp8_weights.from_bits(tirx.bitwise_and(bits, tirx.const(~0x1FFF, "int32")))
    finite = tirx.call_pure_extern("float32", "fabsf", value) < tirx.const(float("inf"), "float32")
    return tirx.Select(finite, rounded, value)
