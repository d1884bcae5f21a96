"""The pointwise work of a GEMM group, on the accumulators in registers.

In: a group, where its operands and results live, and from a kernel: a row, some consecutive units, and their
accumulators. Out: statements that load operands, compute every node of the group, and store the results, as vectors
where alignment allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.layer.packed_layout import SIZES
from tvm_rnn.cuda.layer.pointers import Place, arithmetic
from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .operands import Operand, linear

Accumulator = Callable[[int, int], TirExpr]  # (gate, unit of the span) -> register


@dataclass(frozen=True)
class Epilogue:
    """What is read and written. names: pointer names by (role, node, number)."""

    group: Group
    dtype: str  # of the arithmetic
    reads: Mapping[Node, Place]
    writes: Mapping[Node, Sequence[Place]]
    names: Mapping[tuple[str, Node, int], str]

    @property
    def width(self) -> int:
        return self.root.shape[-1]

    @property
    def gates(self) -> int:
        return self.root.shape[0] if len(self.root.shape) == 2 else 1

    @property
    def root(self) -> Node:
        assert self.group.root is not None
        return self.group.root

    def emit(self, w: Writer, row: Expr, unit: Expr, count: int, acc: Accumulator) -> None:
        """The results of `count` consecutive units from `unit` on, in `row`. The caller has checked the row."""
        unit = w.bind(tirx.Cast("int64", unit))
        whole = self.width % count == 0
        if whole or count == 1:
            with w.when(unit < self.width):
                _Span(self, w, row, unit, count, acc, whole).run()
            return
        with w.when(unit + count <= self.width):
            _Span(self, w, row, unit, count, acc, False).run()
        for u in range(count - 1):

            def single(gate: int, _: int, u: int = u) -> TirExpr:
                return acc(gate, u)

            with w.when(tirx.And(unit + count > self.width, unit + u < self.width)):
                _Span(self, w, row, unit + u, 1, single, False).run()


def read_nodes(group: Group, reads: Callable[[Node], Place | None]) -> dict[Node, Place]:
    """The values that the group's epilogue loads, in the order in which it meets them."""
    found: dict[Node, Place] = {}
    unit = tirx.Var("unit", "int64")
    members: set[Node] = set()
    zero = tirx.const(0.0, "float32")

    def read(node: Node, index: Index) -> Expr | None:
        if node in members or node is group.root:
            return tirx.Var("value", "float32")
        place = reads(node)
        if place is None:
            return None
        found[node] = place
        return zero

    for node in group.nodes:
        if node is not group.root:
            element(node, (unit,), read, "float32")
            members.add(node)
    return found


@dataclass
class _Span:
    """One row and some units: emits loads once per operand, a value per node and unit, and the stores."""

    epilogue: Epilogue
    w: Writer
    row: Expr
    unit: Expr
    count: int
    acc: Accumulator
    aligned: bool  # the first unit is a multiple of count, and all units exist
    loaded: dict[tuple[Node, Index], list[TirExpr]] = field(default_factory=dict)
    values: list[dict[Node, TirExpr]] = field(default_factory=list)

    def run(self) -> None:
        own = self.epilogue
        units = [self.unit if u == 0 else self.w.bind(self.unit + u) for u in range(self.count)]
        self.values = [{} for _ in units]
        for node in own.group.nodes:
            if node is own.root or node.boolean:
                continue
            for u, unit in enumerate(units):
                value = element(node, (unit,), self._reader(units, u), own.dtype)
                self.values[u][node] = self.w.keep(value)
        for node in own.group.stored:
            for number, place in enumerate(own.writes[node]):
                name = own.names["write", node, number]
                if node is own.root and len(node.shape) == 2:
                    for gate in range(own.gates):
                        part = [self.acc(gate, u) for u in range(self.count)]
                        self._write(name, place, gate * own.width, part)
                    continue
                part = [self.acc(0, u) if node is own.root else self.values[u][node] for u in range(self.count)]
                self._write(name, place, 0, part)

    def _reader(self, units: list[Expr], u: int) -> Callable[[Node, Index], Expr | None]:
        own = self.epilogue

        def read(node: Node, index: Index) -> Expr | None:
            if node in self.values[u]:
                return self.values[u][node]
            if node is own.root:
                return self.acc(int(index[0]) if len(node.shape) == 2 else 0, u)
            place = own.reads.get(node)
            if place is None:
                return None
            lead = index[:-1]
            if index and index[-1] is units[u] and all(isinstance(i, int) for i in lead):
                return self._vector(node, place, lead)[u]
            at = self._address(place, linear(node, index))
            return tirx.Cast(own.dtype, tirx.BufferLoad(self.w[own.names["read", node, 0]], [at]))

        return read

    def _address(self, place: Place, offset: Expr) -> Expr:
        base = self.row * place.row_stride if place.row_stride else 0
        total = base + offset
        return total if not isinstance(total, int) else tirx.const(total, "int64")

    def _bytes(self, place: Place, offset: int) -> int:
        """The widest access for consecutive units that start at that offset from a whole span: 0, 4, 8 or 16."""
        size = SIZES[place.dtype]
        if not self.aligned or size == 8:
            return 0
        fits = (16, 8, 4)
        strides = (place.row_stride * size, offset * size, place.align, self.count * size)
        return next((b for b in fits if all(s % b == 0 for s in strides)), 0)

    def _vector(self, node: Node, place: Place, lead: Index) -> list[TirExpr]:
        """All units of the span, loaded once."""
        key = (node, lead)
        if key in self.loaded:
            return self.loaded[key]
        own, size = self.epilogue, SIZES[place.dtype]
        offset = linear(node, (*lead, 0))
        assert isinstance(offset, int)
        at = self._address(place, self.unit + offset)
        buffer = self.w[own.names["read", node, 0]]
        wide = self._bytes(place, offset)
        if not wide:
            loads = [tirx.BufferLoad(buffer, [at + u if u else at]) for u in range(self.count)]
            self.loaded[key] = [self.w.keep(tirx.Cast(own.dtype, load)) for load in loads]
            return self.loaded[key]
        words = self.count * size // 4
        kind = "f32" if size == 4 else "b32"
        registers = self.w.local(words, "float32" if size == 4 else "uint32")
        step = wide // 4
        for first in range(0, words, step):
            parts = [registers[first + i] for i in range(step)]
            vector = f".v{step}" if step > 1 else ""
            address = buffer.ptr_to([at + first * 4 // size if first else at])
            self.w.do(I.ptx[f"ld.global{vector}.{kind}"](*parts, address))
        self.loaded[key] = [unpacked(registers, u, place.dtype) for u in range(self.count)]
        return self.loaded[key]

    def _write(self, name: str, place: Place, offset: int, values: list[TirExpr]) -> None:
        """Consecutive units from self.unit on."""
        buffer, size = self.w[name], SIZES[place.dtype]
        at = self._address(place, self.unit + offset)
        wide = self._bytes(place, offset)
        if not wide:
            for u, value in enumerate(values):
                self.w.store(buffer, tirx.Cast(place.dtype, value), at + u if u else at)
            return
        words = [v if size == 2 else converted(v, place.dtype) for v in values]
        if size == 2:
            packed = self.w.local(self.count // 2, "uint32")
            pack(self.w, packed, values, place.dtype)
            words = [packed[i] for i in range(self.count // 2)]
        each = max(4, size)
        step = wide // each
        for first in range(0, len(words), step):
            vector = f".v{step}" if step > 1 else ""
            kind = {4: "f32", 8: "f64"}.get(size, "b32")
            address = buffer.ptr_to([at + first * each // size if first else at])
            self.w.do(I.ptx[f"st.global{vector}.{kind}"](address, *words[first : first + step]))


def pack(w: Writer, words: Buffer, values: Sequence[TirExpr], dtype: str) -> None:
    """float32 values as 16-bit pairs, rounded to nearest."""
    kind = "bf16x2" if dtype == "bfloat16" else "f16x2"
    for i in range(len(values) // 2):
        w.do(I.ptx[f"cvt.rn.{kind}.f32"](words[i], values[2 * i + 1], values[2 * i]))


def unpacked(registers: Buffer, u: int, dtype: str) -> TirExpr:
    """The u-th value of loaded words, as float32."""
    if SIZES[dtype] == 4:
        return registers[u]
    word = registers[u // 2]
    if dtype == "bfloat16":
        high = word & tirx.const(0xFFFF0000, "uint32") if u % 2 else word << tirx.const(16, "uint32")
        return tirx.reinterpret("float32", high)
    half = word >> tirx.const(16, "uint32") if u % 2 else word & tirx.const(0xFFFF, "uint32")
    return tirx.Cast("float32", tirx.reinterpret("float16", tirx.Cast("uint16", half)))


def store_chunk(w: Writer, target: Expr, operand: Operand, row: Expr, valid: Expr, first: Expr, compute: str) -> None:
    """16 bytes of a row from element `first` on into shared memory, in the dtype of products, read one by one; zeros
    where there are none."""
    dtype, count = arithmetic(compute), 16 // SIZES[compute]
    values = []
    for i in range(count):
        k = w.bind(tirx.Cast("int64", first) + i)
        at = tirx.Select(k < operand.depth, k, tirx.const(0, "int64"))
        value = operand.value(w[operand.name], row, at, dtype)
        values.append(w.bind(tirx.Select(tirx.And(valid, k < operand.depth), value, tirx.const(0.0, dtype))))
    if count == 8:
        words = w.local(4, "uint32")
        pack(w, words, values, compute)
        w.do(I.ptx["st.shared.v4.b32"](target, *[words[i] for i in range(4)]))
    else:
        w.do(I.ptx["st.shared.v4.f32" if count == 4 else "st.shared.v2.f64"](target, *values))
