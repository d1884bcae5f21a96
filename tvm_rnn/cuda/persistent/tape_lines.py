"""What training keeps of a step goes to memory in lines: a block's part of a row, by lanes side by side.

In: the kernel's state (`persistent.Body`), of a geometry whose blocks meet in every step. Out: statements. A lane has
one unit of each block of 8 for two batch rows, and so a warp a matrix of 8 x 8 of each value: stmatrix turns four at a
time on their way to shared memory, where a row's units lie side by side. When all of the block meet in the next step
the lines are whole: a lane stores 16 bytes of one, beside its neighbours. Where warps of the block copy, they do so
(`copy_warps.py`).

    step t:      compute; meet; hand over; lines of t - 1 to memory; those of t to shared memory
    step t + 1:  compute; meet; hand over; lines of t to memory; ...

Source: PTX ISA 8.5, "stmatrix".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import components
from tvm_rnn.cuda.layer.value_layout import Layout, Taped
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32

from .geometry import LANES, Body, Geometry
from .lane_cells import Block

STORE_TURNED = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
PACKED = {"bfloat16": "cvt.rn.bf16x2.f32", "float16": "cvt.rn.f16x2.f32"}  # the second number is the upper half
SQUARES = 4  # of an stmatrix


Line = tuple[str, Taped, int, int]  # its pointer's name, whose, which component, and where that begins in a row


def name_of(own: Taped) -> str:
    """Of the kernel's pointer to a kept value, or to y."""
    return f"kept_{own.number}" if own.number >= 0 else "y"


def lines_of(geometry: Geometry, layout: Layout) -> list[Line]:
    """Those of a batch row."""
    step, width = geometry.step, geometry.line_width
    whose = [own for own in layout.taped if own.node in step.lined and step.domain[own.node] == width]
    return [
        (name_of(own), own, number, layout.spread(own.apart, number * width))
        for own in (whose if width else ())
        for number, _ in components(own.node, width)
    ]


class LineCopies:
    """A step's lines to memory, by `lanes` threads, of which `block.thread` is one. Construct once, at the kernel's
    start: a thread copies the same pieces in every step."""

    def __init__(self, k: Writer, geometry: Geometry, layout: Layout, block: Block, lanes: int) -> None:
        self.k, self.geometry, self.block, self.lines = k, geometry, block, lines_of(geometry, layout)
        self.base = k.keep(_base(geometry, block))
        pieces = len(self.lines) * geometry.line_pieces
        self.copies = [self._copy(first, pieces, lanes) for first in range(0, pieces, lanes)]
        self.words = k.local(4 * max(1, len(self.copies)), "uint32")

    def _copy(self, first: int, pieces: int, lanes: int) -> tuple[Expr, Expr, Expr, Expr]:
        """Of this thread's piece of 16 bytes from the `first`-th on: its place in shared memory, its address at time 0,
        bytes from a row to the next there, and whether it is one."""
        k, geometry, block, width = self.k, self.geometry, self.block, self.geometry.line_width
        each = geometry.units(width) // 8  # of a line
        flat = k.keep(tirx.Min(block.thread + first, pieces - 1))
        line, piece = k.keep(tirx.floordiv(flat, each)), k.keep(tirx.floormod(flat, each))
        number, row = tirx.floordiv(line, geometry.rows), tirx.floormod(line, geometry.rows)
        unit = block.rank * geometry.units(width) + piece * 8
        batch_row = k["row0"] + block.group * geometry.rows + row
        address, stride = k.local(1, "uint64"), k.local(1, "int64")
        for n, (name, own, _, first_at) in enumerate(self.lines):
            with k.when(tirx.EQ(number, n)):
                at = tirx.Cast("int64", batch_row) * own.place.row_stride + tirx.Cast("int64", unit + first_at)
                k.store(address, tirx.reinterpret("uint64", k[name].ptr_to([at])), 0)
                k.store(stride, tirx.const(own.place.row_stride * 2, "int64"), 0)
        strides = {own.place.row_stride * 2 for _, own, _, _ in self.lines}
        apart = stride[0] if len(strides) > 1 else tirx.const(*strides, "int64")
        there = tirx.And(block.thread + first < pieces, tirx.And(batch_row < k["batch"], unit < width))
        place = k.keep(self.base + tirx.Cast("uint32", line * geometry.line_pitch + piece * 16))
        return place, address[0], apart, there

    def send(self, time: Expr, t: Expr) -> None:
        """Those of step t, whose row 0 in arrays is `time`. All pieces are loaded, then stored."""
        k = self.k
        behind = k.keep(tirx.Cast("uint32", tirx.floormod(t, 2) * self.geometry.line_bytes))
        every = [[self.words[4 * n + z] for z in range(4)] for n in range(len(self.copies))]
        for words, (place, *_) in zip(every, self.copies, strict=True):
            k.do(I.ptx["ld.shared.v4.b32"](*words, place + behind))
        row = k.keep(time)
        for words, (_, address, apart, there) in zip(every, self.copies, strict=True):
            with k.when(there):
                target = I.bind(tirx.reinterpret("handle", address + tirx.Cast("uint64", row * apart)))
                k.do(I.ptx["st.global.v4.b32"](target, *words))


class TapeLines:
    """The lines of the warps that compute, of one kernel."""

    def __init__(self, body: Body) -> None:
        self.body, self.k, self.geometry = body, body.k, body.geometry
        self.width = self.geometry.line_width
        self.lines = lines_of(self.geometry, body.layout)
        self.places = {(own.node, number): n for n, (_, own, number, _) in enumerate(self.lines)}
        self.copies: LineCopies | None = None  # where no other warps make them

    def takes(self, own: Taped) -> bool:
        return (own.node, 0) in self.places

    def prepare(self) -> None:
        """Where this lane writes, and which pieces this thread copies."""
        if not self.lines:
            return
        k, geometry, ids = self.k, self.geometry, self.body.ids
        block = Block(ids.group, ids.rank, ids.thread, self.body.arena)
        if not geometry.copy_warps:
            self.copies = LineCopies(k, geometry, self.body.layout, block, geometry.threads)
        row = tirx.floormod(ids.lane, 8) * geometry.line_pitch
        unit = ids.warp_u * (geometry.blocks(self.width) * 16)
        self.lane_at = k.keep(_base(geometry, block) + tirx.Cast("uint32", row + unit))

    def write(self, values: Sequence[tuple[Taped, int, int, Sequence[Expr]]], j: int) -> None:
        """Values of this warp's j-th own tile: of what, which component, block, and the numbers of two rows."""
        k, geometry = self.k, self.geometry
        which = tirx.floordiv(self.body.ids.lane, 8)
        tile = tirx.Cast("uint32", self.body.cells.tile(j) * (8 * geometry.line_pitch))
        first = k.keep(self.lane_at + tile + uint32(self.body.par * geometry.line_bytes))
        words = [k.local(1, "uint32") for _ in values]
        for word, (own, _, _, pair) in zip(words, values, strict=True):
            k.do(I.ptx[PACKED[own.place.dtype]](word[0], pair[1], pair[0]))
        each = geometry.rows * geometry.line_pitch
        offsets = [self.places[own.node, number] * each + block * 16 for own, number, block, _ in values]
        for n in range(0, len(values), SQUARES):
            four = [min(n + m, len(values) - 1) for m in range(SQUARES)]
            at = first + tirx.Cast("uint32", _picked([offsets[m] for m in four], which))
            k.do(I.ptx[STORE_TURNED](at, *(words[m][0] for m in four)))

    def met(self) -> None:
        """The lines of the step before to memory."""
        if self.copies is not None:
            with self.k.when(self.body.t > 0) if self.body.par == 0 else nullcontext():
                self.copies.send(self.body.time(self.body.t - 1), self.body.t - 1)

    def end(self) -> None:
        """Those of the last step."""
        if self.copies is not None:
            t = self.k["steps"] - 1
            self.body.exchange.sync()
            self.copies.send(self.body.time(t), t)


def _base(geometry: Geometry, block: Block) -> Expr:
    """The address of the first line."""
    return I.cuda.cvta_generic_to_shared(block.arena.ptr_to([tirx.const(geometry.tape_at // 4, "int32")]))


def _picked(values: Sequence[int], number: Expr) -> Expr:
    """The number-th of them."""
    found: Expr = tirx.const(values[-1], "int32")
    for n in range(len(values) - 2, -1, -1):
        if values[n] != values[n + 1]:
            found = tirx.Select(number <= n, tirx.const(values[n], "int32"), found)
    return found


assert SQUARES * 8 == LANES
