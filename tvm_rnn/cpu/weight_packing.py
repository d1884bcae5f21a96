"""What a layer reads of its parameters: where each value made of them lies, and the statement that puts it there.

In: a graph, and how matrices of products are stored. Out: places in the flat packed memory, and code that fills them
from the raw parameters, once per load. Matrices lie as the tiles read them: [panel][k][gate][lane]. Places are counted
in elements of the network's dtype, also those of matrices whose own elements are smaller.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from tvm import tirx

from tvm_rnn.graph.graph import Graph, Node, reduced_axes
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.scalar import where
from tvm_rnn.graph.tensor_expressions import Index, Reader, element, reduced_value
from tvm_rnn.network.rnn import named_constants
from tvm_rnn.passes.fuse_pointwise import FUNCTION, bases
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, load, loop, sequence, store, vector

from .dot_product import DotProduct
from .saturating_pairs import Words
from .weight_storage import LARGEST, NETWORKS, Storage, Storages, larger
from .workspace import Array, Packed, dense, each_element, pad, strides_of


@dataclass(frozen=True)
class Tail:
    """What the last panel of a product has: `units` of each gate, one gate's behind the other's, in `vectors`."""

    units: int
    vectors: int


class PackedWeights:
    """The packed parameters of one layer and direction.

    packed: places of values; products: of each product's matrices; tails: of products whose last panel takes fewer
    vectors with its gates side by side than with a vector for each; scales: of their rows, where the storage has some;
    sums: of their rows, times minus the offset of levels, where products are of integers;
    kept: values made of parameters that are computed when weights are loaded. free: nodes that depend on parameters
    alone.
    """

    def __init__(self, graph: Graph, free: set[Node], lanes: int, number: int, storages: Storages = NETWORKS) -> None:
        self.graph, self.free, self.lanes, self.number, self.storages = graph, free, lanes, number, storages
        self.packed = Packed()
        self.products: dict[Node, list[int]] = {}
        self.scales: dict[Node, list[int]] = {}
        self.sums: dict[Node, list[int]] = {}
        self.tails = self._tails()
        self.kept = self._reserve(graph.nodes())

    def _tails(self) -> dict[Node, Tail]:
        """Of products of many rows, which are as long as their vectors take."""
        found = dict[Node, Tail]()
        for root in (group.root for group in self.graph.groups if group.kind == "gemm" and group.region == "before"):
            if root is not None and len(root.shape) == 2 and self.storages.of(root) is None:
                units = root.shape[1] % self.lanes
                vectors = -(-root.shape[0] * units // self.lanes)
                if 0 < vectors < root.shape[0]:
                    found[root] = Tail(units, vectors)
        return found

    def ratio(self, product: Node) -> int:
        """Elements of a stored matrix in the room of one of the network's dtype; of integers, words."""
        storage = self.storages.of(product)
        return 1 if storage is None else storage.ratio

    def _reserve(self, nodes: Sequence[Node]) -> list[Node]:
        """Give every product's parameter a packed place, and every other value made of parameters that is read."""
        weights: set[Node] = set()
        for node in nodes:
            if node.op == "gemm":
                gates = node.shape[0] if len(node.shape) == 2 else 1
                panels = pad(node.shape[-1], self.lanes)
                rows, depths = gates * panels, [a.shape[0] for a in node.args[1::2]]
                storage, ratio = self.storages.of(node), self.ratio(node)
                dot = None if storage is None else storage.dot
                sizes = [-(-rows * (d if dot is None else dot.words_of(d)) // ratio) for d in depths]
                if dot is not None and dot.saturates:
                    counts = map(dot.words_of, depths)
                    sizes = [Words(int64(0), panels // self.lanes, n, gates, self.lanes).size for n in counts]
                self.products[node] = [self.packed.reserve((node, i), pad(s, self.lanes)) for i, s in enumerate(sizes)]
                if storage is not None and storage.scaled:
                    self.scales[node] = [self.packed.reserve((node, i, "scale"), rows) for i in range(len(depths))]
                if dot is not None:
                    self.sums[node] = [self.packed.reserve((node, i, "sum"), rows) for i in range(len(depths))]
                weights.update(node.args[::2])
        heavy = [n for n in nodes if n in self.free and n.op in ("sum", "max", "einsum", "gemm")]
        read = [
            base
            for node in nodes
            if node not in self.free
            for arg in node.args
            if arg not in weights or node.op != "gemm"
            for base in self._read(arg)
        ]
        read += [n for root in self.graph.roots for n in self._read(root)]
        kept = [n for n in dict.fromkeys([*heavy, *self._steps(nodes), *read]) if n.scalar is None]
        for node in kept:
            self.packed.reserve(node, strides_of(node.shape, self.lanes)[1])
        self.packed.size = pad(self.packed.size, 16)
        return kept

    def _steps(self, nodes: Sequence[Node]) -> list[Node]:
        """Functions of parameters inside other formulas, and what these use more than once: kept as well, because
        TVM's lowering of one expression is exponential in the depth of both."""
        users = self.graph.users()

        def formulas(node: Node) -> list[Node]:
            """The pointwise values of parameters that read `node`, also through views."""
            return [f for u in users[node] if u in self.free for f in ([u] if u.pointwise else formulas(u))]

        found = []
        for node in nodes:
            if node in self.free and node.pointwise and not node.boolean:
                count = len(formulas(node))
                if count > 1 or (count and TABLE[node.op].cost >= FUNCTION):
                    found.append(node)
        return found

    def _read(self, arg: Node) -> list[Node]:
        if arg in self.free:
            # A pointwise value of parameters is kept as such; a view of a parameter is kept as a compact copy.
            if arg.op == "reshape" or arg.boolean:
                return [n for a in arg.args for n in self._read(a)]
            return [arg]
        return [b for b in bases(arg) if b in self.free] if not arg.leaf else []

    def pack(self, raw: Mapping[str, Buffer], packed: Buffer, offset: Expr, views: Mapping[str, Buffer]) -> Stmt:
        """The statement that fills the packed weights at `offset` from raw parameters (flat buffers by name).

        views: the same memory as elements of storages' dtypes, by `Storage.view`, and as "sums" of integers."""
        names = {id(value): name for name, value in named_constants(self.graph, self.number).items()}
        places: dict[Node, Array] = {}

        def read(node: Node, index: Index) -> Expr | None:
            if node in places:
                return load(packed, places[node].address(0, index))
            if node.op == "param" or (node.op == "const" and node.scalar is None):
                name = node.name if node.op == "param" else names[id(node.value)]
                return load(raw[name], dense(node.shape, index))
            return None

        parts: list[Stmt] = []
        for node in sorted(self.kept, key=self.graph.nodes().index):
            array = self.array(node, offset)
            parts.append(self._pack_array(node, array, packed, read))
            places[node] = array
        for node, offsets in self.products.items():
            for number, at in enumerate(offsets):
                matrix = Matrix(self, node, number, offset + int64(at), packed, read)
                if (storage := self.storages.of(node)) is None:
                    parts.append(matrix.pack())
                else:
                    parts.append(matrix.store(storage, views, offset))
        return sequence(parts)

    def _pack_array(self, node: Node, array: Array, packed: Buffer, read: Reader) -> Stmt:
        target = replace(array, strides=array.strides or (1,))

        def inner(n: Node, i: Index) -> Expr | None:
            return None if n is node and not n.leaf else read(n, i)

        def fill(index: tuple[Expr, ...], _: Expr) -> Stmt:
            own, address = index if node.shape else (), target.address(0, index)
            if node.op in ("sum", "max", "einsum"):
                return accumulated(node, own, inner, packed, address, self.graph.dtype)
            return store(packed, address, element(node, own, inner, self.graph.dtype))

        return each_element(node.shape or (1,), fill)

    def array(self, node: Node, offset: Expr) -> Array:
        """Where a kept value is, in packed weights that begin at `offset`."""
        base = offset + int64(self.packed.names[node])
        return Array("packed", base, 0, strides_of(node.shape, self.lanes)[0], node.shape)


class Matrix:
    """A parameter of a product on its way to its place."""

    def __init__(self, own: PackedWeights, node: Node, number: int, base: Expr, packed: Buffer, read: Reader) -> None:
        self.own, self.node, self.number, self.packed, self.read, self.base = own, node, number, packed, read, base
        self.weight, self.lanes = node.args[2 * number], own.lanes
        self.gates = node.shape[0] if len(node.shape) == 2 else 1
        self.depth = self.weight.shape[-1]
        self.dtype = own.graph.dtype

    def value(self, p: Expr, k: Expr, g: int, v: Expr) -> TirExpr:
        unit = p * int64(self.lanes) + v
        index = (g, unit, k) if len(self.node.shape) == 2 else (unit, k)
        return element(self.weight, index, self.read, self.dtype)

    def pack(self) -> Stmt:
        """[panel][k][gate][lane], zero where a panel runs past the last unit; a tail: [k][gate][unit], then zeros."""
        zero = tirx.const(0.0, self.dtype)
        return self._everywhere(self.packed, self.base, self.value, zero)

    def store(self, storage: Storage, views: Mapping[str, Buffer], offset: Expr) -> Stmt:
        """The same in the storage's dtype; before it the scales of its rows, 1 for a row of zeros."""
        stored, dot = views[storage.view], storage.dot
        base = self.base * int64(self.own.ratio(self.node))
        zero = tirx.const(0, storage.dtype) if storage.dtype != "float16" else tirx.const(0.0, "float16")
        if not storage.scaled and dot is None:
            return self._everywhere(stored, base, lambda *at: storage.encode(self.value(*at)), zero)
        scales = offset + int64(self.own.scales[self.node][self.number] if storage.scaled else 0)

        def at(p: Expr, g: int, v: Expr) -> Expr:
            return scales + (p * int64(self.gates) + int64(g)) * int64(self.lanes) + v

        def quantised(p: Expr, k: Expr, g: int, v: Expr) -> Expr:
            scale = load(self.packed, at(p, g, v)) if storage.scaled else None
            return storage.encode(self.value(p, k, g, v), scale)

        if dot is not None:
            words = self._everywhere(stored, base, partial(self._word, dot, quantised), zero, dot.words_of(self.depth))
            of_levels = dot.offset if storage.scaled else -dot.shift
            sums = self._sums(dot, partial(load, stored), base, views["sums"], offset, of_levels)
            split = None
            if dot.saturates:
                panels = -(-self.node.shape[-1] // self.lanes)
                split = Words(base, panels, dot.words_of(self.depth), self.gates, self.lanes).split(stored)
            return sequence(self._scales(at) if storage.scaled else None, words, sums, split)
        return sequence(self._scales(at), self._everywhere(stored, base, quantised, zero))

    def _word(self, dot: DotProduct, quantised: Callable[..., Expr], p: Expr, w: Expr, g: int, v: Expr) -> Expr:
        """Word w of a row of Q words: its values w, w + Q, w + 2 Q and so on, with zeros for those that it does not
        have."""
        count, total = dot.words_of(self.depth), None
        for j in range(-(-self.depth // count)):
            k, ends = w + int64(j * count), (j + 1) * count > self.depth
            value = tirx.Cast("int32", quantised(p, tirx.min(k, int64(self.depth - 1)) if ends else k, g, v))
            byte = tirx.bitwise_and(value, tirx.const(255, "int32"))
            byte = tirx.Select(k < int64(self.depth), byte, tirx.const(0, "int32")) if ends else byte
            own = tirx.Cast("uint32", byte) << tirx.const(8 * j, "uint32")
            total = own if total is None else total | own
        return tirx.Cast(dot.weights_dtype, tirx.reinterpret("int32", total))

    def _sums(
        self, dot: DotProduct, word: Callable[[Expr], Expr], base: Expr, sums: Buffer, offset: Expr, of_levels: int
    ) -> Stmt:
        """For each row the sum of its levels, times minus the offset of an operand's levels. word: at an address."""
        count, panels = dot.words_of(self.depth), -(-self.node.shape[-1] // self.lanes)
        first = offset + int64(self.own.sums[self.node][self.number])

        def row(p: Expr, g: int) -> list[Stmt]:
            def at(v: Expr) -> Expr:
                return first + (p * int64(self.gates) + int64(g)) * int64(self.lanes) + v

            def levels(w: Expr, v: Expr) -> Expr:
                place = base + ((p * int64(count) + w) * int64(self.gates) + int64(g)) * int64(self.lanes) + v
                shifts = (tirx.const(8 * (3 - j), "int32") for j in range(dot.terms))
                parts = [(tirx.Cast("int32", word(place)) << s) >> tirx.const(24, "int32") for s in shifts]
                return reduce(operator.add, parts)

            def each(value: Callable[[Expr], Expr]) -> Stmt:
                return vector("v", self.lanes, lambda v: store(sums, at(v), value(v)))

            zero, factor = tirx.const(0, "int32"), tirx.const(-of_levels, "int32")
            return [
                each(lambda v: zero),
                loop("w", count, lambda w: each(lambda v: load(sums, at(v)) + levels(w, v))),
                each(lambda v: load(sums, at(v)) * factor),
            ]

        return loop("p", panels, lambda p: [row(p, g) for g in range(self.gates)])

    def _scales(self, at: Callable[..., Expr]) -> Stmt:
        """Each row's largest magnitude / 127; NaN where the row has one."""
        full, rest = divmod(self.node.shape[-1], self.lanes)
        one = tirx.const(1.0, self.dtype)

        def largest(p: Expr, g: int, v: Expr) -> Stmt:
            place, zero = at(p, g, v), tirx.const(0.0, self.dtype)

            def more(k: Expr) -> Stmt:
                return store(self.packed, place, larger(tirx.abs(self.value(p, k, g, v)), load(self.packed, place)))

            found = load(self.packed, place)
            scale = where(tirx.EQ(found, zero), one, found / tirx.const(LARGEST, self.dtype))
            return sequence(
                store(self.packed, place, zero), loop("k", self.depth, more), store(self.packed, place, scale)
            )

        def panel(p: Expr, count: int) -> list[Stmt]:
            def blank(g: int, v: Expr) -> Stmt:
                return store(self.packed, at(p, g, int64(count) + v), one)

            units = [loop("v", count, partial(largest, p, g)) for g in range(self.gates)]
            beyond = range(self.gates) if count < self.lanes else ()
            return [*units, *(loop("v", self.lanes - count, partial(blank, g)) for g in beyond)]

        parts: list[Block] = [loop("p", full, lambda p: panel(p, self.lanes))] if full else []
        return sequence(*parts, *(panel(int64(full), rest) if rest else []))

    def _everywhere(
        self, target: Buffer, base: Expr, value: Callable[..., Expr], zero: Expr, depth: int | None = None
    ) -> Stmt:
        depth, lanes, gates = depth or self.depth, self.lanes, self.gates
        full, rest = divmod(self.node.shape[-1], lanes)
        tail = self.own.tails.get(self.node, Tail(lanes, gates))
        width = tail.vectors * lanes if rest else 0  # of a row of the last panel
        # A bound that LLVM does not know: of few steps it makes straight-line code, a third of a small module's.
        steps = tirx.min(int64(depth), target.shape[0])

        def place(p: Expr, k: Expr, g: int, v: Expr) -> Expr:
            return base + (p * int64(depth * gates) + k * int64(gates)) * int64(lanes) + int64(g * lanes) + v

        def last(k: Expr, g: int, v: Expr) -> Expr:
            """In the last panel."""
            first = base + int64(full * depth * gates * lanes)
            return first + k * int64(tail.vectors * lanes) + int64(g * tail.units) + v

        def row(p: Expr, k: Expr, g: int, v: Expr) -> Stmt:
            return store(target, place(p, k, g, v), value(p, k, g, v))

        def rows(p: Expr, g: int) -> Stmt:
            """A vector of units at a time: left to itself LLVM shuffles 16 of them, in 4 s at H = 512."""
            return loop("k", steps, lambda k: vector("v", lanes, lambda v: row(p, k, g, v)))

        def row_of_rest(k: Expr, g: int, v: Expr) -> Stmt:
            return store(target, last(k, g, v), value(int64(full), k, g, v))

        def blank(k: Expr) -> Stmt:
            return loop("v", width, lambda v: store(target, last(k, 0, v), zero))

        # No condition on the unit inside the loops: LLVM makes 4000 scatters of it at H = 130, in ten seconds.
        def gate(g: int) -> list[Stmt]:
            parts = [loop("p", full, lambda p: rows(p, g))] if full else []
            if rest:
                parts.append(loop("k", steps, lambda k: vector("v", rest, lambda v: row_of_rest(k, g, v))))
            return parts

        blanks = loop("k", steps, blank) if width > gates * rest else None
        return sequence(blanks, [gate(g) for g in range(gates)])


def accumulated(node: Node, index: Index, read: Reader, packed: Buffer, address: Expr, dtype: str) -> Stmt:
    """A reduction over parameters, in place: packed[address] = 0 (or -inf); packed[address] += ... ."""
    axes = reduced_axes(node)
    low = tirx.const(float("-inf") if node.op == "max" else 0.0, dtype)

    def body(ks: tuple[Expr, ...]) -> Stmt:
        if len(ks) < len(axes):
            return loop(f"k{len(ks)}", axes[len(ks)][1], lambda k: body((*ks, k)))
        value = reduced_value(node, index, ks, lambda n, i: element(n, i, read, dtype))
        so_far = load(packed, address)
        if node.op == "max":
            return store(packed, address, larger(value, so_far))
        return store(packed, address, so_far + value)

    return sequence(store(packed, address, low), body(()))
