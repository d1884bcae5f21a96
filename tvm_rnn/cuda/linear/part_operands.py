"""What the steps of a part of the time read, of kernels that make a matrix and its gradient again.

In: a kernel's writer, a layout with a `Pair`, the block's `Place`. Out: `Operands`, which brings them to shared memory;
`kernels_of_parts`, the kernels of which a block has a part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.operands import COPY, COPY_PIECE
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import wide

from .chunk_tile import piece_bytes
from .pair import EVERY
from .part_layout import PartLayout, is_column
from .part_place import Place

UNROLLED = (8, 4, 2, 1)  # copies of a lane in a row
FOUR_BYTES = 4  # an asynchronous copy has at least


def kernels_of_parts(layout: PartLayout, body: Callable[[Writer, bool], None]) -> tuple[Kernel, Kernel]:
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


@dataclass(frozen=True)
class Steps:
    """Where an operand's steps are in global memory: the first one, and from one to the next. They are computed once,
    so that what a copy adds takes few registers."""

    first: TirExpr
    pitch: TirExpr

    def at(self, step: TirExpr) -> TirExpr:
        return self.first + wide(step) * self.pitch


class Operands:
    """arena, base: shared memory, and where it begins; words, numbers: the same as 16-bit and as float32 numbers."""

    def __init__(self, w: Writer, layout: PartLayout, place: Place) -> None:
        self.w, self.layout, self.place = w, layout, place
        self.arena = arena = I.alloc_buffer((layout.shared_bytes,), "uint8", scope="shared.dyn", align=layout.alignment)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        sizes = (layout.shared_bytes // 2,), (layout.shared_bytes // 4,)
        self.words = I.decl_buffer(sizes[0], layout.pair.precision, data=arena.data, scope="shared.dyn")
        self.numbers = I.decl_buffer(sizes[1], "float32", data=arena.data, scope="shared.dyn")

    def fill(self, begin: int = 0) -> None:
        """Start the copies of all steps' vectors, zeros where there is nothing. begin: the first of their values."""
        w, layout, place, threads = self.w, self.layout, self.place, self.layout.threads
        for name, rows in layout.held.items():
            size = max(piece_bytes(rows), SIZES[rows.dtype])
            across = layout.row_bytes(name) // size
            turns = ceil_div(EVERY * across, threads)
            group = next(n for n in UNROLLED if turns % n == 0)
            first = w.keep(place.at(name, rows, tirx.const(0, "int32")))
            steps = Steps(first, w.keep(wide(w["batch"]) * rows.stride))
            with w.loop(turns // group) as outer:
                for inner in range(group):
                    piece = w.bind((outer * group + inner) * threads + place.thread)
                    line, column = tirx.truncdiv(piece, across), tirx.truncmod(piece, across)
                    with nullcontext() if EVERY * across % threads == 0 else w.when(piece < EVERY * across):
                        self._copy(name, steps, size, w.bind(line), w.bind(column), begin)

    def _copy(self, name: str, steps: Steps, size: int, step: TirExpr, number: TirExpr, begin: int) -> None:
        """So many bytes of a step's vector: the piece of that number, from a value on."""
        w, rows, place = self.w, self.layout.held[name], self.place
        each = SIZES[rows.dtype]
        column = w.bind(number * (size // each) + (place.key0 if is_column(name) else begin))
        left: TirExpr = tirx.max(tirx.min((rows.width - column) * each, size), 0)
        inside = w.bind(tirx.Select(step < place.limit, left, 0))
        there = inside > 0
        source = steps.at(tirx.Select(there, step, 0)) + wide(tirx.Select(there, column, 0))
        to = self.layout.place(name, step, number * size)
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
