"""A part of the time, as kernels that make a matrix and its gradient again have it: which it is, and its operands.

In: a kernel's writer, a layout with a `Pair`. Out: `Place`, which part, batch row and head a block of threads has, and
`Operands`, which brings what all its steps read to shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.gemm.operands import COPY, COPY_PIECE
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import wide

from .blocks_layout import PAD, BlocksLayout, is_column
from .chunk_tile import piece_bytes
from .recurrence import Rows
from .steps_again import EVERY, end_of

UNROLLED = (8, 4, 2, 1)  # copies of a lane in a row
FOUR_BYTES = 4  # an asynchronous copy has at least
ONE = tirx.const(1.0, "float32")


def kernels_of_parts(layout: BlocksLayout, body: Callable[[Writer, bool], None]) -> tuple[Kernel, Kernel]:
    """The kernel of which a block of threads has a part, without and with lengths and resets. body: what it does."""

    def kernel(masked: bool) -> Kernel:
        def run(w: Writer) -> None:
            with flavour(layout.pair.precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": layout.resident}):
                body(w, masked)

        pointers = (*layout.pair.pointers, *(MASK_POINTERS if masked else ()))
        scalars = (("steps", "int32"), ("batch", "int32"), *(MASK_SCALARS if masked else ()))
        name = f"{layout.name}_masked" if masked else layout.name
        return write(name, pointers, scalars, run, threads=layout.threads, shared_bytes=layout.shared_bytes)

    return kernel(False), kernel(True)


class Place:
    """Which part of the time, row, head and keys a block has, and which steps the row has there."""

    def __init__(self, w: Writer, layout: BlocksLayout, masked: bool) -> None:
        self.w, self.layout, self.masked, own = w, layout, masked, layout.pair
        parts = tirx.truncdiv(w["steps"] + (EVERY - 1), EVERY)
        grid = wide(w["batch"]) * wide(parts) * (layout.tiles * own.heads)
        block = w.keep(I.cta_id([tirx.Cast("int32", grid)]))
        self.thread = w.keep(I.thread_id([layout.threads]))
        self.lane, self.warp = w.keep(self.thread % 32), w.keep(self.thread // 32)
        self.key0 = w.keep(tirx.truncmod(block, layout.tiles) * layout.keys)
        rest = w.keep(tirx.truncdiv(block, layout.tiles))
        self.head, self.number = w.keep(tirx.truncmod(rest, own.heads)), w.keep(tirx.truncdiv(rest, own.heads))
        self.row = w.keep(tirx.truncmod(self.number, w["batch"]))
        self.first = w.keep(tirx.truncdiv(self.number, w["batch"]) * EVERY)
        self.count = w.keep(tirx.min(w["steps"] - self.first, EVERY))
        self.limit = self._limit()
        self.matrix = w.keep((wide(self.number) * own.heads + wide(self.head)) * (own.keys * own.values))
        outputs = {f"output_{i}": read.output for i, read in enumerate(own.reads)}
        self.base = {name: self._base(rows) for name, rows in {**own.operands, **outputs}.items()}

    def _base(self, rows: Rows) -> TirExpr:
        head = tirx.truncdiv(self.head, rows.group) * rows.width
        return self.w.keep(wide(self.row) * rows.stride + (rows.offset + wide(head)))

    def _limit(self) -> TirExpr:
        """Steps of the part that the row has."""
        w = self.w
        if not self.masked:
            return self.count
        self.end = end_of(w, self.row)
        return w.keep(tirx.max(tirx.min(self.count, self.end - w["start"] - self.first), 0))

    def at(self, name: str, rows: Rows, step: TirExpr) -> TirExpr:
        """Where an operand's vector of a step of the part begins."""
        return self.base[name] + (wide(self.first) + wide(step)) * wide(self.w["batch"]) * rows.stride

    def kept(self, step: TirExpr) -> TirExpr:
        """0 where a step of the part begins with nothing, else 1."""
        w, found = self.w, self.w.local(1)
        w.store(found, ONE, 0)
        time = w.keep(w["start"] + self.first + step)
        known = tirx.And(time < w["total"], time < self.end)
        with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
            flag = w["reset"][wide(time) * wide(w["batch"]) + wide(self.row)]
            with w.when(tirx.NE(tirx.Cast("int32", flag), tirx.const(0, "int32"))):
                w.store(found, tirx.const(0.0, "float32"), 0)
        return found[0]

    def decay(self, name: str, rows: Rows, step: TirExpr, key: TirExpr) -> TirExpr:
        """Of a step, and of a key of the block if it has its own; 1 where there is none."""
        w, found = self.w, self.w.local(1)
        w.store(found, ONE, 0)
        own = w.bind(self.key0 + key)
        with w.when(tirx.And(step < self.limit, own < rows.width if rows.width > 1 else True)):
            at = self.at(name, rows, step)
            w.store(found, converted(w[name][at + wide(own) if rows.width > 1 else at], "float32"), 0)
        return found[0]

    def border(self, key: TirExpr, value: TirExpr) -> tuple[TirExpr, TirExpr]:
        """(whether there is such an element, where it is) of a matrix at the border of the part."""
        own = self.layout.pair
        at = value * own.keys + key if own.keys_last else key * own.values + value
        return tirx.And(key < own.keys, value < own.values), self.matrix + wide(at)


class Operands:
    """base: of shared memory; words, numbers: the same as 16-bit and as float32 numbers."""

    def __init__(self, w: Writer, layout: BlocksLayout, place: Place) -> None:
        self.w, self.layout, self.place = w, layout, place
        arena = I.alloc_buffer((layout.shared_bytes,), "uint8", scope="shared.dyn", align=128)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        sizes = (layout.shared_bytes // 2,), (layout.shared_bytes // 4,)
        self.words = I.decl_buffer(sizes[0], layout.pair.precision, data=arena.data, scope="shared.dyn")
        self.numbers = I.decl_buffer(sizes[1], "float32", data=arena.data, scope="shared.dyn")

    def fill(self) -> None:
        """Start the copies of all steps' vectors, zeros where there is nothing."""
        w, layout, place, threads = self.w, self.layout, self.place, self.layout.threads
        for name, rows in layout.held.items():
            size = max(piece_bytes(rows), SIZES[rows.dtype])
            across = (layout.pitch(name) - PAD) // size
            turns = ceil_div(EVERY * across, threads)
            group = next(n for n in UNROLLED if turns % n == 0)
            with w.loop(turns // group) as outer:
                for inner in range(group):
                    piece = w.bind((outer * group + inner) * threads + place.thread)
                    line, column = tirx.truncdiv(piece, across), tirx.truncmod(piece, across)
                    with nullcontext() if EVERY * across % threads == 0 else w.when(piece < EVERY * across):
                        self._copy(name, size, w.bind(line), w.bind(column))

    def _copy(self, name: str, size: int, step: TirExpr, number: TirExpr) -> None:
        """So many bytes of a step's vector: the piece of that number."""
        w, rows, place = self.w, self.layout.held[name], self.place
        each = SIZES[rows.dtype]
        column = w.bind(number * (size // each) + (place.key0 if is_column(name) else 0))
        left: TirExpr = tirx.max(tirx.min((rows.width - column) * each, size), 0)
        inside = w.bind(tirx.Select(step < place.limit, left, 0))
        there = inside > 0
        source = place.at(name, rows, tirx.Select(there, step, 0)) + wide(tirx.Select(there, column, 0))
        to = step * self.layout.pitch(name) + number * size + self.layout.at(name)
        if size < FOUR_BYTES:
            value = w.local(1, rows.dtype)
            w.store(value, tirx.const(0.0, rows.dtype), 0)
            with w.when(there):
                w.store(value, w[name][source], 0)
            w.store(self.words, value[0], tirx.truncdiv(to, 2))
            return
        how = COPY if size == 16 else COPY_PIECE
        address = self.base + tirx.Cast("uint32", to)
        w.do(I.ptx[how](address, w[name].ptr_to([source]), size, tirx.Cast("uint32", inside)))
