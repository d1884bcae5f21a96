"""Weight gradients on the GPU: sums over all rows of a tile of time, for weights, biases and peepholes.

In: a backward graph's nodes that sum over T and B, and where their operands lie. Out: `WeightGradients`: kernels
that write sums of parts of the rows, a kernel that adds the parts up in order, and the statements that launch them.
The order of additions depends on sizes alone: results are deterministic.

Products of two rows (`row_product.py`) are GEMMs over all rows (`weight_gradient_mma.py`, `weight_gradient_wgmma.py`),
those with one right operand and one shape in one launch; of large ones the operands are put in order first. All else is
summed column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ALIGNMENT, ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.pointers import Argument, arithmetic, storage
from tvm_rnn.cuda.layer.row_kernels import Reads, Values, sources, unravel
from tvm_rnn.cuda.rowwise.side_by_side import Word, loaded, word_of
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import int64, wide

from . import weight_gradient_wgmma as wgmma
from .row_product import RowProduct, row_product
from .weight_gradient_block import WeightGradientTile
from .weight_gradient_mma import tile_for

Find = Callable[[Node, bool], Pointer]
Products = list[tuple[Node, RowProduct]]
COLUMNS, LINES = 32, 8  # threads of a block that sums columns: along elements, and along rows
COLUMN_BLOCKS = 8  # of these on a multiprocessor: they wait for memory
TILE_SQUARES = 4  # as wide as tiles are
# Threads of a block that adds parts up, and elements of each where there are many. H200, us with one and with four: 16
# GRUs of 128 units, 1.6 million elements of two parts, 8.8 and 5.0; one, 50 thousand of 16 parts, 1.8 and 2.5.
FOLDERS, FOLDED, SM_THREADS = 128, 4, 2048
LEAST_ROWS = 256  # of a part: fewer, and adding the parts up takes longer than the sums


@dataclass(frozen=True)
class Packed:
    """One side of a product, put in order: a kernel for each of the arguments from number `first` on. squares: of a
    stage."""

    key: tuple[object, ...]
    first: int
    squares: int
    kernels: tuple[Kernel, ...]


@dataclass
class GradientLaunch:
    """Sums of one launch, of one shape. arguments: what the kernel's pointers stand for, but for the last. totals:
    arrays of sums of left operands that it makes too. rights: right operands, each of an equal part of the sums.
    beside, adds: as of `WeightGradientTile`. into: sums of one part are added to what is there as they are made."""

    nodes: tuple[Node, ...]
    kernel: Kernel
    arguments: tuple[Argument, ...]
    blocks: int  # of one part of the rows
    resident: int  # blocks on a multiprocessor at once
    packed: tuple[Packed, ...] = ()  # its operands, where it reads them out of buffers in another order
    totals: tuple[tuple[Node, ...], ...] = ()
    rights: int = 1
    beside: bool = False
    adds: int = 1
    into: bool = False

    @property
    def made(self) -> list[tuple[Node, ...]]:
        """What it makes: for each array the sums in it, which are of one shape; totals last."""
        each = len(self.nodes) // self.rights
        parts = [self.nodes[first : first + each] for first in range(0, len(self.nodes), each)]
        return [*parts, *self.totals]

    @property
    def size(self) -> int:
        """Elements of all sums."""
        return sum(map(elements, self.made))


def _unshaped(node: Node) -> Node:
    """What a value is in another shape, whose elements have the same order."""
    return _unshaped(node.args[0]) if node.op == "reshape" else node


def elements(nodes: Sequence[Node]) -> int:
    """Of sums of one shape."""
    return len(nodes) * prod(nodes[0].shape)


@dataclass
class WeightGradients:
    """All sums of one backward graph. reads: how a stored value is read; operand_places: the same by products.
    accumulated: sums of which the steps have left a part for each batch row, beside `nodes`. beside: sums that lie
    beside each other in each head, in the gradient that they are made in."""

    name: str
    nodes: Sequence[Node]
    precision: str
    reads: Reads
    operand_places: Reads
    arch: str = ""
    sms: int = 132
    accumulated: Sequence[Node] = ()
    beside: Collection[tuple[Node, ...]] = ()
    launches: list[GradientLaunch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dtype = arithmetic(self.precision)
        self.packers: dict[tuple[object, ...], Kernel] = {}
        products: dict[tuple[object, ...], Products] = {}
        columns: dict[tuple[object, ...], list[Node]] = {}
        others = list[Node]()
        for node in self.nodes:
            found = self._product(node)
            if found is None:
                others.append(node)
            else:
                products.setdefault((node.shape, *found.of_right), []).append((node, found))
        for group in self._with_others(products):
            self._add_products(group, others)
        for node in others:
            columns.setdefault((node.shape, node.op if len(node.args) == 1 else node), []).append(node)
        for nodes in columns.values():
            for first in range(0, len(nodes), 8):
                self._add_columns(nodes[first : first + 8])
        self.folds: dict[tuple[int, int], Kernel] = {}  # by how many arrays they are for, and elements of a thread

    # --- kernels ---------------------------------------------------------------------------------------------------

    def _product(self, node: Node) -> RowProduct | None:
        """The product of two rows that is summed, where there is one."""
        try:
            return row_product(node, self.operand_places)
        except ValueError:  # an operand is made of several values: not an array
            return None

    def _tile(self, group: Sequence[tuple[Node, RowProduct]]) -> WeightGradientTile:
        """Of products with one right operand."""
        first, lefts = group[0][1], [product.left for _, product in group]
        tile: WeightGradientTile | None = None
        if first.heads == first.vectors == 1 and not first.turned:
            tile = wgmma.packed_tile_for(self.precision, lefts, first.right, self.arch, self.sms)
        tile = tile or wgmma.wgmma_tile_for(self.precision, lefts, first, self.arch, self.sms)
        return tile or tile_for(self.precision, first)

    def _with_others(self, products: Mapping[tuple[object, ...], Products]) -> list[Products]:
        """Products with one right operand each; of those of one form whose blocks multiply all left operands together,
        with one after the other, as what they read once may be the same."""
        found: dict[object, Products] = {}
        for key, group in products.items():
            node, product = group[0]
            form = (node.shape, len(group), product.form) if self._tile(group).together > 1 else key
            found.setdefault(form, []).extend(group)
        return list(found.values())

    def _add_products(self, group: Products, others: list[Node]) -> None:
        """others: sums that no product is; those that the kernel makes beside its own are taken out."""
        nodes, first = tuple(node for node, _ in group), group[0][1]
        rights = list({product.of_right: product.right for _, product in group}.values())
        lefts = [replace(product.left, name=f"a{i}") for i, (_, product) in enumerate(group)]
        if len(rights) > 1:
            rights = [replace(right, name=f"b{i}") for i, right in enumerate(rights)]
        found = tuple(Argument(o.name, "operand", o.base) for o in (*lefts, *rights))
        tile = self._tile(group[: len(group) // len(rights)])
        packed = isinstance(tile, wgmma.PackedWeightGradientTile)
        found_totals = self._totals(nodes, others) if isinstance(tile, wgmma.WgmmaWeightGradientTile) else {}
        for node in found_totals:
            others.remove(node)
        each = len(nodes) // len(rights)
        beside = first.heads > 1 and all(nodes[n : n + each] in self.beside for n in range(0, len(nodes), each))
        totals = self._arrays([*found_totals], beside)
        size, adds = (lefts[0].depth, rights[0].depth), 1
        if isinstance(tile, wgmma.WgmmaWeightGradientTile) and tile.together > 1:
            tile = wgmma.in_one_cluster(tile, len(nodes), size, self.sms)
            adds = wgmma.added(tile.tiles(len(nodes), *size), self.sms)
        blocks = tile.tiles(len(nodes), *size)
        numbers = tuple(tuple(found_totals[node] for node in array) for array in totals)
        tile = replace(tile, totals=numbers, beside=beside, adds=adds)
        kernel = tile.kernel(f"{self.name}_totals{len(self.launches)}", lefts, *rights)
        sides = (self._packed(0, lefts), self._packed(len(lefts), rights)) if packed else ()
        own = blocks, tile.resident, sides, totals, len(rights), beside, tile.adds, True
        self.launches.append(GradientLaunch(nodes, kernel, found, *own))

    def _arrays(self, totals: Sequence[Node], beside: bool) -> tuple[tuple[Node, ...], ...]:
        """The arrays in which totals lie: one; where those of a head lie beside each other, one for each gradient."""
        if not beside:
            return (tuple(totals),) if totals else ()
        whole = [nodes for nodes in self.beside if {*nodes} <= {*totals}]
        return (*whole, *((node,) for node in totals if not any(node in nodes for nodes in whole)))

    def _totals(self, nodes: Sequence[Node], others: Sequence[Node]) -> dict[Node, int]:
        """Sums over rows of products' left operands, which lie as the products read them, with these operands'
        numbers."""
        found: dict[Node, int] = {}
        for number, node in enumerate(nodes):
            left, (texts, out) = _unshaped(node.args[0]), node.attrs["spec"].split("->")
            place, text = self.reads(left), texts.partition(",")[0]
            if place is not None and place.dtype in wgmma.ONES and text == "".join(t for t in out if t in text):
                for other in others:
                    if other.op == "sum_rows" and _unshaped(other.args[0]) is left and other not in found:
                        found[other] = number
        return found

    def _packed(self, first: int, operands: Sequence[Operand]) -> Packed:
        """Operands of one side. Kernels are shared by all that have the same operand at the same place."""
        key, kernels = tuple((o.base, o.offset, o.depth) for o in operands), list[Kernel]()
        each = wgmma.squares(operands[0].depth)
        for n, one in enumerate(operands):
            mark = (key[n], len(operands), n)
            if mark not in self.packers:
                name, own = f"{self.name}_ordered{len(self.packers)}", replace(one, name="operand")
                facts = {"stage_squares": len(operands) * each, "first": n * each}
                self.packers[mark] = wgmma.pack_kernel(name, own, self.precision, **facts)
            kernels.append(self.packers[mark])
        return Packed(key, first, len(operands) * each, tuple(kernels))

    def _add_columns(self, nodes: Sequence[Node]) -> None:
        read = sources([a for n in nodes for a in n.args], lambda n: self.reads(n) is not None)
        found = tuple(Argument(f"r{i}", "read", n) for i, n in enumerate(read))
        pointers = [(a.name, place.dtype) for a in found if (place := self.reads(a.node)) is not None]
        each = self._side_by_side(nodes)
        kernel = write(
            f"{self.name}_totals{len(self.launches)}",
            [*pointers, ("sums", self.dtype)],
            [("rows", "int64"), ("parts", "int64")],
            lambda w: self._column_sums(w, nodes, found, each),
            threads=COLUMNS * LINES,
        )
        blocks = ceil_div(prod(nodes[0].shape), COLUMNS * each)
        self.launches.append(GradientLaunch(tuple(nodes), kernel, found, blocks, COLUMN_BLOCKS))

    def _side_by_side(self, nodes: Sequence[Node]) -> int:
        """Elements of a thread: as many as lie in a word of every value, where these are summed as they are."""
        found = 4
        for node in nodes:
            own = node.args[0]
            place = self.reads(own) if node.op == "sum_rows" and self.dtype == "float32" else None
            word = None if place is None else word_of(place, own, found)
            found = 1 if word is None else word.elements
        return found if prod(nodes[0].shape) % found == 0 else 1

    def _column_sums(self, w: Writer, nodes: Sequence[Node], found: Sequence[Argument], each: int) -> None:
        """A thread for `each` elements and every 8th row of a part; the 8 sums are added up in order."""
        size = prod(nodes[0].shape)
        across = ceil_div(size, COLUMNS * each)
        cta, thread = I.cta_id([tirx.Cast("int32", w["parts"] * across)]), I.thread_id([COLUMNS * LINES])
        part, column = wide(w.keep(tirx.truncdiv(cta, across))), w.keep(tirx.truncmod(thread, COLUMNS))
        j = w.keep((tirx.truncmod(cta, across) * COLUMNS + column) * each)
        line = w.keep(tirx.truncdiv(thread, COLUMNS))
        count = w.keep(tirx.truncdiv(w["rows"], int64(prod(nodes[0].attrs.get("image", ())))))  # rows, or images
        rows = w.keep(tirx.truncdiv(count + w["parts"] - 1, w["parts"]))
        first = w.keep(part * rows + wide(line))
        last = w.keep(tirx.min(count, part * rows + rows))
        turns = w.keep(tirx.Cast("int32", tirx.truncdiv(rows + (LINES - 1), int64(LINES))))
        sums = w.local(len(nodes) * each, self.dtype)
        shared = I.alloc_buffer((each * LINES * COLUMNS,), self.dtype, scope="shared")
        for n in range(len(nodes) * each):
            w.store(sums, tirx.const(0.0, self.dtype), n)
        with flavour(self.precision), w.loop(turns) as turn:
            row = w.keep(first + wide(turn) * LINES)
            with w.when(tirx.And(row < last, j < size)):
                self._add_row(w, (row, j), nodes, {a.node: a.name for a in found}, sums)
        for n in range(len(nodes)):
            w.do(I.cuda.cta_sync())
            for e in range(each):
                w.store(shared, sums[n * each + e], e * (LINES * COLUMNS) + thread)
            w.do(I.cuda.cta_sync())
            with w.when(tirx.And(line < each, j < size)):
                total, begin = w.local(1, self.dtype), w.keep(line * (LINES * COLUMNS) + column)
                w.store(total, shared[begin], 0)
                for other in range(1, LINES):
                    w.store(total, total[0] + shared[begin + other * COLUMNS], 0)
                w.store(w["sums"], total[0], (part * len(nodes) + n) * size + wide(j + line))

    def _add_row(
        self, w: Writer, place: tuple[Expr, Expr], nodes: Sequence[Node], pointers: Mapping[Node, str], sums: Buffer
    ) -> None:
        """One row's part of a thread's elements. place: the row, or the image, and the first of these."""
        (row, j), each = place, cast("int", sums.shape[0]) // len(nodes)
        if each == 1:
            shape = nodes[0].shape
            if nodes[0].op == "sum_images":
                shape, pixels = nodes[0].args[0].shape, prod(nodes[0].attrs["image"])
                row = w.keep(row * pixels + wide(tirx.truncdiv(j, prod(shape))))
                j = w.keep(tirx.truncmod(j, prod(shape)))
            values = Values(w, self.precision, row, self.reads, dict(pointers))
            for n, node in enumerate(nodes):
                self._add(w, values, node, unravel(w, j, shape), sums, n)
            return
        for n, node in enumerate(nodes):
            found = self.reads(node.args[0])
            assert found is not None
            for e, value in enumerate(loaded(w, pointers[node.args[0]], Word(found, each), row, j)):
                w.store(sums, sums[n * each + e] + value, n * each + e)

    def _add(self, w: Writer, values: Values, node: Node, index: Sequence[Expr], sums: Buffer, n: int) -> None:
        """One row's part of an element."""
        if len(node.args) == 1:
            w.store(sums, sums[n] + values.at(node.args[0], tuple(index)), n)
            return
        inputs, out = node.attrs["spec"].split("->")
        pairs = list(zip(inputs.split(","), node.args, strict=True))
        sizes = {t: size for text, operand in pairs for t, size in zip(text, operand.shape, strict=True)}
        inner = {t: size for t, size in sizes.items() if t not in out}
        with w.loop(prod(inner.values())) as k:
            place = dict(zip([*out, *inner], [*index, *unravel(w, k, tuple(inner.values()))], strict=True))
            own = values.inner()
            a, b = (own.at(operand, tuple(place[t] for t in text)) for text, operand in pairs)
            w.store(sums, sums[n] + a * b, n)

    def fold(self, count: int, of_thread: int = 1) -> Kernel:
        """totals[i] = (what is there, if `add`) + the parts' sums, in order, of so many arrays. of_thread: elements of
        a thread, a block's apart, whose loads are under way at the same time."""
        each = of_thread * FOLDERS

        def body(w: Writer) -> None:
            blocks = [tirx.truncdiv(w[f"size{n}"] + (each - 1), int64(each)) for n in range(count)]
            block = w.keep(wide(I.cta_id([tirx.Cast("int32", sum(blocks[1:], blocks[0]))])))
            thread, first = wide(I.thread_id([FOLDERS])), int64(0)
            for n in range(count):
                at, first = w.keep((block - first) * int64(each) + thread), first + blocks[n]
                with w.when(tirx.And(at >= 0, at < w[f"size{n}"])):
                    self._add_parts(w, n, at, of_thread)

        arrays = [f"{name}{n}" for n in range(count) for name in ("sums", "totals")]
        scalars = [*((f"size{n}", "int64") for n in range(count)), ("parts", "int64"), ("add", "int32")]
        name = f"{self.name}_fold{count if count > 1 else ''}{'_several' if of_thread > 1 else ''}"
        return write(name, [(array, self.dtype) for array in arrays], scalars, body, threads=FOLDERS)

    def _add_parts(self, w: Writer, n: int, at: Expr, of_thread: int) -> None:
        """A thread's elements of the n-th array, from `at` on. Those past its end repeat the last one."""
        size, sums, totals = w[f"size{n}"], w[f"sums{n}"], w[f"totals{n}"]
        places = [w.keep(tirx.min(at + i * FOLDERS, size - 1)) for i in range(of_thread)]
        total = w.local(of_thread, self.dtype)
        for i in range(of_thread):
            w.store(total, tirx.const(0.0, self.dtype), i)
        with w.when(tirx.NE(w["add"], tirx.const(0, "int32"))):
            for i, place in enumerate(places):
                w.store(total, totals[place], i)
        with w.loop(tirx.Cast("int32", w["parts"])) as part:
            for i, place in enumerate(places):
                w.store(total, total[i] + sums[wide(part) * size + place], i)
        for i, place in enumerate(places):
            with w.when(at + i * FOLDERS < size):
                w.store(totals, total[i], place)

    def _fold_all(self, host: Host, arrays: Sequence[tuple[Pointer, Pointer, int]], parts: HostExpr, add: str) -> None:
        """One launch for all of them. Where threads of one element would not all run at once, each has several."""
        pointers, sizes = [p for own, into, _ in arrays for p in (own, into)], [size for *_, size in arrays]
        of_thread = FOLDED if sum(sizes) > self.sms * SM_THREADS else 1
        key = len(arrays), of_thread
        kernel = self.folds.setdefault(key, self.fold(*key))
        host.launch(kernel, pointers, [*sizes, parts, f"({add}) ? 1 : 0"])

    # --- memory and statements -------------------------------------------------------------------------------------

    def reserve(
        self,
        program: Program,
        rows: str,
        copies: HostExpr = 1,
        beside: HostExpr = 1,
        again: str = "1",
        given: tuple[Pointer, str] | None = None,
    ) -> None:
        """Memory for the parts' sums, for so many rows at most; into how many parts they are cut. copies: of all that,
        for layers that run at the same time. beside: so many share the multiprocessors. again: a condition: sums are
        added to those of other rows. Products of one part are made where they go, columns where nothing is there.
        given: memory for operands in their other order, and bytes of a copy: `side_bytes` at least."""
        self.parts = []
        for launch in self.launches:
            most = f"max<int64_t>(1, {launch.resident} * sms / ({launch.blocks} * {beside}))"
            parts = f"max<int64_t>(1, min<int64_t>({most}, ({rows}) / {LEAST_ROWS}))"
            parts = f"max<int64_t>(1, {parts} / {launch.adds}) * {launch.adds}" if launch.adds > 1 else parts
            self.parts.append(program.let("parts", parts))
        aligned, sizes = ALIGNMENT // ITEM_BYTES[self.dtype], "int64_t(1)"
        for parts, launch in zip(self.parts, self.launches, strict=True):
            left = program.let("left", f"{parts} / {launch.adds}")
            apart = f"{left} > 1" if launch.into else f"{again} || {left} > 1"
            sizes = f"max<int64_t>({sizes}, ({apart} ? {left} * {launch.size} : 0))"
        self.size = program.let("size", f"({sizes} + {aligned - 1}) / {aligned} * {aligned}")
        self.sums = program.buffer("sums", f"({copies}) * {self.size}", self.dtype)
        first, second = self.side_bytes(rows)
        if given is None:
            size = program.let("size", f"{first} + {second}")
            given = program.buffer("packed", f"({copies}) * {size}"), size
        place, size = given
        self.sides = [(place, size), (place.at(first), size)]

    def side_bytes(self, rows: str) -> tuple[str, str]:
        """Of the left and the right operands of a product in their other order, one product's at a time."""
        return self._side_bytes(rows, 0), self._side_bytes(rows, 1)

    def _side_bytes(self, rows: str, side: int) -> str:
        most = max((launch.packed[side].squares for launch in self.launches if launch.packed), default=0)
        deep, beyond = wgmma.rows_of_stage(self.precision), 2 * TILE_SQUARES  # what tiles read beside the last squares
        return f"((({rows}) + {deep - 1}) / {deep} * {most * SQUARE_BYTES} + {beyond * SQUARE_BYTES})" if most else "0"

    def pointers(self, program: Program, ready: Mapping[tuple[Node, ...], Pointer]) -> dict[Node, Pointer]:
        """Memory for the sums of one layer and direction, each dense. ready: memory that is there, for these sums in
        this order."""
        found: dict[Node, Pointer] = {}
        for nodes in (nodes for launch in self.launches for nodes in launch.made):
            all_of = ready.get(nodes) or program.buffer("totals", elements(nodes), self.dtype)
            for n, node in enumerate(nodes):
                found[node] = all_of.at(n * prod(node.shape))
        for node in self.accumulated:
            found[node] = ready.get((node,)) or program.buffer("totals", prod(node.shape), self.dtype)
        return found

    @property
    def elements(self) -> int:
        """Of all sums."""
        return sum(launch.size for launch in self.launches)

    @property
    def in_heads(self) -> set[tuple[Node, ...]]:
        """Sums of which those of one head lie beside each other."""
        return {nodes for launch in self.launches if launch.beside for nodes in launch.made}

    def add_parts(self, host: Host, parts: Mapping[Node, Pointer], gradients: Mapping[Node, Pointer], add: str) -> None:
        """The parts that the steps have left, one for each batch row. add: as `run` has it."""
        for node, left in parts.items():
            self._fold_all(host, [(left, gradients[node], prod(node.shape))], "B", add)

    def run(
        self, host: Host, find: Find, rows: str, gradients: dict[Node, Pointer], add: str, copy: HostExpr = 0
    ) -> None:
        """Add the sums over `rows` rows. find: where rows of a value begin. add: whether something is there already.
        copy: which copy of the memory."""
        packed: list[object] = [None, None]
        memory = [(self.sums, self.size), *self.sides]
        parted, *sides = (place if copy == 0 else place.at(f"({copy}) * {size}") for place, size in memory)
        sides = [place.cast(storage(self.precision)) for place in sides]
        for launch, parts in zip(self.launches, self.parts, strict=True):
            pointers = [find(a.node, a.role == "operand") for a in launch.arguments]
            for number, side in enumerate(launch.packed):
                if packed[number] != side.key:
                    for source, kernel in zip(pointers[side.first :], side.kernels, strict=False):
                        host.launch(kernel, [source, sides[number]], [rows])
                packed[number] = side.key
            left = f"{parts} / {launch.adds}"  # what a cluster does not add up
            folded = f"{left} > 1" if launch.into else f"{left} > 1 || ({add})"
            start, arrays = 0, list[tuple[Pointer, Pointer, int]]()
            for nodes in launch.made:
                arrays.append((parted.at(f"{left} * {start}"), gradients[nodes[0]], elements(nodes)))
                start += elements(nodes)
            sums = [Pointer(f"({folded} ? {own.text} : {into.text})", self.dtype) for own, into, _ in arrays]
            more = [f"!({folded}) && ({add}) ? 1 : 0"] if launch.into else []
            host.launch(launch.kernel, [*(sides if launch.packed else pointers), *sums], [rows, parts, *more])
            with host.when(folded):
                self._fold_all(host, arrays, left, add)
