"""One gemm group, and the pointwise work on its accumulators in registers: the epilogue.

In: a group, where its operands and results live, the order of its packed weights; from a kernel: a row, some
consecutive units, and their accumulators. Out: statements that load operands, compute every node of the group, and
store the results, as vectors where alignment allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd, prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.layer.packed_layout import SIZES, Fragments, Lanes
from tvm_rnn.cuda.layer.pointers import Place, arithmetic, storage
from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import int64, wide

from .operands import Operand, known, linear, pack

Keep = Callable[[int, "Item", "Span"], None]
AHEAD = 8  # items of an epilogue that are loaded before the first of them is computed


@dataclass(frozen=True)
class Problem:
    """One gemm group for one precision. reads, writes: what its epilogue loads and stores. names: pointer names by
    (role, node, number); pointers: all of them, with their dtypes. packed: elements of each weight, of a member where
    there are several. members: of a batched GEMM, 0: there is no such axis; member: the one that a kernel is at.

    opens: the kernel behind this one may begin once all that came before this one has ended. given: the
    kernel has a scalar `given`, which is not 0 where the kernel before this one opens, and left operands are of before
    that one: then only the epilogue waits for its end. chained: all kernels of a loop begin early, so that this one may
    begin while several before it run; those for few rows have fetched weights when it is their turn. Those for many
    would take the place of the blocks before them: LSTM 512 with 32,000 results, B = 256, H200, 318 us a step.

    listed: of kernels for many rows there are others, for a list of those to work on (`rowwise/live_rows.py`)."""

    precision: str
    group: Group
    operands: tuple[Operand, ...]
    layout: Fragments | Lanes
    reads: Mapping[Node, Place]
    writes: Mapping[Node, Sequence[Place]]
    names: Mapping[tuple[str, Node, int], str]
    pointers: tuple[tuple[str, str], ...]
    packed: tuple[int, ...] = ()
    members: int = 0
    member: TirExpr | None = None
    opens: bool = False
    given: bool = False
    chained: bool = False
    listed: bool = False

    def at(self, member: TirExpr) -> Problem:
        """That of one member."""
        return replace(self, member=member)

    def further(self, elements: int) -> Expr:
        """Where this member's part begins, of members' parts of so many elements each."""
        return 0 if self.member is None else wide(self.member) * elements

    @property
    def lead(self) -> Index:
        """The index of a value in front of its unit."""
        return () if self.member is None else (self.member,)

    def gates_of(self, node: Node) -> bool:
        """Whether a product has an axis of gates."""
        return len(node.shape) == 2 + bool(self.members)

    @property
    def fragments(self) -> Fragments:
        assert isinstance(self.layout, Fragments)
        return self.layout

    @property
    def compute(self) -> str:
        """The dtype of operands in registers."""
        return storage(self.precision)

    @property
    def arithmetic(self) -> str:
        return arithmetic(self.precision)

    def finish_rows(
        self, w: Writer, row: TirExpr, block: TirExpr, lane: TirExpr, pairs: Sequence[Sequence[TirExpr]]
    ) -> None:
        """The epilogue of one row per group of 4 lanes, and of a block of units; pairs: a lane's two sums of every 8
        columns."""
        span = self.fragments.span
        sums = [value for pair in pairs for value in pair]
        self.finish(w, row, block * (8 * span) + lane % 4 * (2 * span), 2 * span, sums)

    def finish_items(self, w: Writer, items: Sequence[Item], keep: Keep | None = None) -> None:
        """The same of many. What an epilogue reads comes from L2 or memory, and takes as long for one value as for all
        that are asked for at once: of AHEAD items it is loaded before the first of them is computed. GRU 189 fp16, 378
        rows of 56 inputs, H200: 12 us where it was loaded item by item, since the width is odd. keep: what keeps
        the results of an item, by its number, in place of storing them."""
        count, width = 2 * self.fragments.span, self.layout.width
        for first in range(0, len(items), AHEAD):
            spans: list[tuple[TirExpr, Span]] = []
            for item in items[first : first + AHEAD]:
                gates, unit = self._gates(item, count), w.keep(self.unit_of(item.block, item.lane, count))
                # Loads are inside of the arrays, even where the item is not.
                last = int64((width - 1) // count * count)
                at = w.keep(tirx.min(item.row, w["rows"] - 1)), w.keep(tirx.min(unit, last))
                spans.append((tirx.And(item.row < w["rows"], unit < width), Span(self, w, *at, gates)))
                spans[-1][1].fetch()
            for number, (inside, span) in enumerate(spans, first):
                if keep is not None:
                    keep(number, items[number], span)
                    continue
                with w.when(inside):
                    span.run()

    def writes_of(self) -> list[Write]:
        """What is stored of a span of units."""
        root, found = self.group.root, []
        for node in self.group.stored:
            apart = prod(node.shape[1:]) if self.members else 0
            gates = range(self.layout.gates if self.gates_of(node) else 1) if node is root else (None,)
            for number, place in enumerate(self.writes[node]):
                name = self.names["write", node, number]
                found += [Write(node, name, place, gate, (gate or 0) * self.layout.width, apart) for gate in gates]
        return found

    def whole(self, node: Node, place: Place, count: int) -> bool:
        """Whether a row has room for all units of its last span of so many."""
        width = self.layout.width
        return place.spare and prod(node.shape) == width and -(-width // count) * count <= place.row_stride

    def bytes_at_once(self, node: Node, place: Place, offset: int, apart: int, count: int) -> int:
        """The widest access for consecutive units that start at that offset from a whole span of so many: 0, 4, 8 or
        16. apart: elements from one member to the next."""
        size = SIZES[place.dtype]
        if size == 8:
            return 0
        piece = count if self.whole(node, place, count) else gcd(count, self.layout.width)
        strides = (place.row_stride * size, offset * size, apart * size, place.align, piece * size)
        return next((b for b in (16, 8, 4) if all(s % b == 0 for s in strides)), 0)

    @staticmethod
    def unit_of(block: TirExpr, lane: TirExpr, count: int) -> TirExpr:
        """The first of a lane's `count` consecutive units."""
        return tirx.Cast("int64", block * (4 * count) + lane % 4 * count)

    def _gates(self, item: Item, count: int) -> list[list[TirExpr]]:
        """Its sums by gate."""
        sums = [value for pair in item.pairs for value in pair]
        return [sums[gate * count : (gate + 1) * count] for gate in range(self.layout.gates)]

    def finish(self, w: Writer, row: TirExpr, unit: TirExpr, count: int, sums: Sequence[TirExpr]) -> None:
        """The epilogue of `count` consecutive units from `unit` on, in `row`, of those that are there. sums: of the
        first gate's units, then of the next one's."""
        gates = [sums[gate * count : (gate + 1) * count] for gate in range(self.layout.gates)]
        with w.when(row < w["rows"]):
            unit = w.bind(tirx.Cast("int64", unit))
            with w.when(unit < self.layout.width):
                Span(self, w, row, unit, gates).run()


def read_nodes(group: Group, reads: Callable[[Node], Place | None]) -> dict[Node, Place]:
    """The values that the group's epilogue loads, in the order in which it meets them."""
    found: dict[Node, Place] = {}
    unit = tirx.Var("unit", "int64")
    member = (tirx.Var("member", "int64"),) if group.root is not None and group.root.op == "batched_gemm" else ()
    members: set[Node] = set()

    def read(node: Node, index: Index) -> Expr | None:
        if node in members or node is group.root:
            return tirx.Var("value", "float32")
        place = reads(node)
        if place is None:
            return None
        found[node] = place
        return tirx.const(0.0, "float32")

    for node in group.nodes:
        if node is not group.root:
            element(node, (*member, unit), read, "float32")
            members.add(node)
    return found


@dataclass(frozen=True)
class Item:
    """A lane's part of one row and a block of units: its sums, two of every 8 columns."""

    row: TirExpr
    block: TirExpr
    lane: TirExpr
    pairs: Sequence[Sequence[TirExpr]]


@dataclass(frozen=True)
class Write:
    """What a span stores of a node. gate: of the product, where that is stored itself. offset: elements before these
    units in a row; apart: from one member to the next."""

    node: Node
    name: str
    place: Place
    gate: int | None
    offset: int
    apart: int


@dataclass
class Span:
    """One row and some units: emits loads once per operand, a value per node and unit, and the stores.

    Units beyond the last one are computed from the last one's values, or from what a row has to spare, where they are
    stored too; else they are not: a branch for each would wait for loads of its own. Pieces of a span are there as a
    whole or not at all."""

    problem: Problem
    w: Writer
    row: Expr
    unit: TirExpr  # the first one, of which the span's units are a multiple
    sums: Sequence[Sequence[TirExpr]]  # of each gate
    loaded: dict[tuple[Node, Index], list[TirExpr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = len(self.sums[0])
        width = self.problem.layout.width
        self.piece = gcd(self.count, width)
        self.apart: list[Expr] = [*range(self.piece)]  # each unit from the first one
        for first in range(self.piece, self.count, self.piece):
            last = tirx.min(int64(first), int64(width - self.piece) - self.unit)
            start = self.w.keep(tirx.Cast("int32", last))
            self.apart += [start + u if u else start for u in range(self.piece)]
        self.units = [self.unit if u == 0 else self.w.bind(self.unit + apart) for u, apart in enumerate(self.apart)]
        self.values: list[dict[Node, TirExpr]] = [{} for _ in self.units]

    def fetch(self) -> None:
        """Load what is read of these units."""
        own, zero = self.problem, tirx.const(0.0, self.problem.arithmetic)
        inside = {own.group.root}

        def read(node: Node, index: Index) -> Expr | None:
            place = own.reads.get(node)
            if node in inside or place is None:
                return zero if node in inside else None
            return self._vector(node, place, index[:-1])[0] if self._consecutive(index, 0) else zero

        for node in own.group.nodes:
            if node is not own.group.root and not node.boolean:
                element(node, (*own.lead, self.unit), read, own.arithmetic)
                inside.add(node)

    def run(self) -> None:
        """Compute and store."""
        self.compute()
        self.store()

    def compute(self) -> None:
        """Every node's value, in registers."""
        own, root = self.problem, self.problem.group.root
        for node in own.group.nodes:
            if node is root or node.boolean:
                continue
            for u, unit in enumerate(self.units):
                value = element(node, (*own.lead, unit), partial(self._read, u=u), own.arithmetic)
                self.values[u][node] = self.w.keep(value)

    def store(self) -> None:
        """All that is stored, which `compute` has computed."""
        for write in self.problem.writes_of():
            values = self.of(write)
            if self._at_once(write):
                self.put(write, self.words(write, values))
            else:
                buffer, at = self.w[write.name], self._at(write)
                for u, value in enumerate(values):
                    with self._there(u):
                        self.w.store(buffer, tirx.Cast(write.place.dtype, value), at + u if u else at)

    def of(self, write: Write) -> Sequence[TirExpr]:
        """The values of its units."""
        return [values[write.node] for values in self.values] if write.gate is None else self.sums[write.gate]

    def words(self, write: Write, values: Sequence[TirExpr]) -> Sequence[TirExpr]:
        """Values as registers that are stored together: two of 16 bits in each."""
        dtype = write.place.dtype
        return [converted(v, dtype) for v in values] if SIZES[dtype] > 2 else pack(self.w, values, dtype)

    def put(self, write: Write, words: Sequence[TirExpr]) -> None:
        """Store these words, in vectors."""
        size, at, buffer = SIZES[write.place.dtype], self._at(write), self.w[write.name]
        each, whole = max(4, size), self.problem.whole(write.node, write.place, self.count)
        step, kind = self._at_once(write) // each, {4: "f32", 8: "f64"}.get(size, "b32")
        for first in range(0, len(words), step):
            u = first * each // size
            address = buffer.ptr_to([at + u if u else at])
            with nullcontext() if whole else self._there(u):
                self.w.do(I.ptx[f"st.global{_vector_of(step)}.{kind}"](address, *words[first : first + step]))

    def _at(self, write: Write) -> Expr:
        """Where its first unit lies."""
        return self._address(write.place, self.unit + (write.offset + self.problem.further(write.apart)))

    def _at_once(self, write: Write) -> int:
        return self.problem.bytes_at_once(write.node, write.place, write.offset, write.apart, self.count)

    def _read(self, node: Node, index: Index, u: int) -> Expr | None:
        """A value that the u-th unit's nodes are computed from, at that index."""
        own = self.problem
        if node in self.values[u]:
            return self.values[u][node]
        if node is own.group.root:
            return self.sums[int(index[-2]) if own.gates_of(node) else 0][u]
        place = own.reads.get(node)
        if place is None:
            return None
        if self._consecutive(index, u):
            return self._vector(node, place, index[:-1])[u]
        at = self._address(place, linear(node, index))
        return tirx.Cast(own.arithmetic, tirx.BufferLoad(self.w[own.names["read", node, 0]], [at]))

    def _consecutive(self, index: Index, u: int) -> bool:
        """Whether the u-th unit's value lies beside the others'."""
        if not index or index[-1] is not self.units[u]:
            return False
        return all(isinstance(i, int) or i is self.problem.member for i in index[:-1])

    def _address(self, place: Place, offset: Expr) -> Expr:
        total = (place.row(self.row) * place.row_stride if place.row_stride else 0) + offset
        return total if not isinstance(total, int) else tirx.const(total, "int64")

    def _vector(self, node: Node, place: Place, lead: Index) -> list[TirExpr]:
        """All units of the span, loaded once."""
        key = (node, lead)
        if key in self.loaded:
            return self.loaded[key]
        own, size = self.problem, SIZES[place.dtype]
        first, second = (known(node, (*(i if isinstance(i, int) else member for i in lead), 0)) for member in range(2))
        at = self._address(place, self.unit + (first + own.further(second - first)))
        buffer = self.w[own.names["read", node, 0]]
        size_at_once = own.bytes_at_once(node, place, first, second - first, self.count)
        whole = own.whole(node, place, self.count)
        if not size_at_once:
            loads = [tirx.BufferLoad(buffer, [at + apart if u else at]) for u, apart in enumerate(self.apart)]
            self.loaded[key] = [self.w.keep(tirx.Cast(own.arithmetic, load)) for load in loads]
            return self.loaded[key]
        words = self.count * size // 4
        kind = "f32" if size == 4 else "b32"
        registers = self.w.local(words, "float32" if size == 4 else "uint32")
        step = size_at_once // 4
        for first in range(0, words, step):
            parts = [registers[first + i] for i in range(step)]
            behind = first * 4 // size
            address = buffer.ptr_to([at + (behind if whole else self.apart[behind]) if first else at])
            self.w.do(I.ptx[f"ld.global{_vector_of(step)}.{kind}"](*parts, address))
        self.loaded[key] = [_unpacked(registers, u, place.dtype) for u in range(self.count)]
        return self.loaded[key]

    def _there(self, u: int) -> AbstractContextManager[None]:
        """Under the condition that the u-th unit is one: those of the first piece are."""
        return self.w.when(self.unit + u < self.problem.layout.width) if u >= self.piece else nullcontext()


def _vector_of(words: int) -> str:
    return f".v{words}" if words > 1 else ""


def _unpacked(registers: Buffer, u: int, dtype: str) -> TirExpr:
    """The u-th value of loaded words, as float32."""
    if SIZES[dtype] == 4:
        return registers[u]
    word = registers[u // 2]
    if dtype == "bfloat16":
        high = word & tirx.const(0xFFFF0000, "uint32") if u % 2 else word << tirx.const(16, "uint32")
        return tirx.reinterpret("float32", high)
    half = word >> tirx.const(16, "uint32") if u % 2 else word & tirx.const(0xFFFF, "uint32")
    return tirx.Cast("float32", tirx.reinterpret("float16", tirx.Cast("uint16", half)))
