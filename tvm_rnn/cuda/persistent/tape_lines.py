"""What training keeps of a step goes to memory in lines: a block's part of a row, by lanes side by side.

In: the kernel's state (`persistent.Body`), of a geometry whose blocks meet in every step. Out: statements. A lane has
one unit of each block of 8 for two batch rows, and so a warp a matrix of 8 x 8 of each value: stmatrix turns four at a
time on their way to shared memory, where a row's units lie side by side. When all of the block meet in the next step
the lines are whole: a lane stores 16 bytes of one, beside its neighbours.

    step t:      compute; meet; hand over; lines of t - 1 to memory; those of t to shared memory
    step t + 1:  compute; meet; hand over; lines of t to memory; ...

Source: PTX ISA 8.5, "stmatrix".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import components
from tvm_rnn.cuda.layer.value_layout import Taped
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32

from .geometry import LANES, Body

STORE_TURNED = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
PACKED = {"bfloat16": "cvt.rn.bf16x2.f32", "float16": "cvt.rn.f16x2.f32"}  # the second number is the upper half
SQUARES = 4  # of an stmatrix


class TapeLines:
    """The lines of one kernel. kept: of what the steps keep, with the names of the kernel's pointers."""

    def __init__(self, body: Body, kept: Sequence[tuple[str, Taped]]) -> None:
        self.body, self.k, self.geometry, self.step = body, body.k, body.geometry, body.step
        width = self.width = self.geometry.line_width
        # Each line of a batch row: whose it is, which component, and where that begins in a row of memory.
        self.lines = list[tuple[str, Taped, int, int]]()
        for name, own in kept if width else ():
            if own.node in self.step.lined and self.step.domain[own.node] == width:
                for number, _ in components(own.node, width):
                    self.lines.append((name, own, number, body.layout.spread(own.apart, number * width)))
        self.places = {(own.node, number): n for n, (_, own, number, _) in enumerate(self.lines)}

    def takes(self, own: Taped) -> bool:
        return (own.node, 0) in self.places

    def prepare(self) -> None:
        """Where this lane writes, and which lines this thread copies where to."""
        if not self.lines:
            return
        k, geometry, ids = self.k, self.geometry, self.body.ids
        base = I.cuda.cvta_generic_to_shared(self.body.arena.ptr_to([tirx.const(geometry.tape_at // 4, "int32")]))
        self.base = k.keep(base)
        row = tirx.floormod(ids.lane, 8) * geometry.line_pitch
        unit = ids.warp_u * (geometry.blocks(self.width) * 16)
        self.lane_at = k.keep(self.base + tirx.Cast("uint32", row + unit))
        pieces = len(self.lines) * geometry.rows * (geometry.units(self.width) // 8)
        self.copies = [self._copy(first, pieces) for first in range(0, pieces, geometry.threads)]
        self.words = k.local(4 * len(self.copies), "uint32")

    def _copy(self, first: int, pieces: int) -> tuple[Expr, Expr, Expr, Expr]:
        """Of this thread's piece of 16 bytes from the `first`-th on: its place in shared memory, its address at time 0,
        bytes from a row to the next there, and whether it is one."""
        k, geometry, ids = self.k, self.geometry, self.body.ids
        each = geometry.units(self.width) // 8  # of a line
        flat = k.keep(tirx.Min(ids.thread + first, pieces - 1))
        line, piece = k.keep(tirx.floordiv(flat, each)), k.keep(tirx.floormod(flat, each))
        number, row = tirx.floordiv(line, geometry.rows), tirx.floormod(line, geometry.rows)
        unit = ids.rank * geometry.units(self.width) + piece * 8
        batch_row = k["row0"] + ids.group * geometry.rows + row
        address, stride = k.local(1, "uint64"), k.local(1, "int64")
        for n, (name, own, _, first_at) in enumerate(self.lines):
            with k.when(tirx.EQ(number, n)):
                at = tirx.Cast("int64", batch_row) * own.place.row_stride + tirx.Cast("int64", unit + first_at)
                k.store(address, tirx.reinterpret("uint64", k[name].ptr_to([at])), 0)
                k.store(stride, tirx.const(own.place.row_stride * 2, "int64"), 0)
        strides = {own.place.row_stride * 2 for _, own, _, _ in self.lines}
        apart = stride[0] if len(strides) > 1 else tirx.const(*strides, "int64")
        there = tirx.And(ids.thread + first < pieces, tirx.And(batch_row < k["batch"], unit < self.width))
        return (
            k.keep(self.base + tirx.Cast("uint32", line * geometry.line_pitch + piece * 16)),
            address[0],
            apart,
            there,
        )

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
        with self.k.when(self.body.t > 0) if self.body.par == 0 else nullcontext():
            self._send(self.body.t - 1, uint32((1 - self.body.par) * self.geometry.line_bytes))

    def end(self) -> None:
        """Those of the last step."""
        t = self.k["steps"] - 1
        self.body.exchange.sync()
        self._send(t, tirx.Cast("uint32", tirx.floormod(t, 2) * self.geometry.line_bytes))

    def _send(self, t: Expr, behind: Expr) -> None:
        k = self.k
        every = [[self.words[4 * n + z] for z in range(4)] for n in range(len(self.copies))]
        for words, (place, *_) in zip(every, self.copies, strict=True):
            k.do(I.ptx["ld.shared.v4.b32"](*words, place + behind))
        time = k.keep(self.body.time(t))
        for words, (_, address, apart, there) in zip(every, self.copies, strict=True):
            with k.when(there):
                target = I.bind(tirx.reinterpret("handle", address + tirx.Cast("uint64", time * apart)))
                k.do(I.ptx["st.global.v4.b32"](target, *words))


def _picked(values: Sequence[int], number: Expr) -> Expr:
    """The number-th of them."""
    found: Expr = tirx.const(values[-1], "int32")
    for n in range(len(values) - 2, -1, -1):
        if values[n] != values[n + 1]:
            found = tirx.Select(number <= n, tirx.const(values[n], "int32"), found)
    return found


assert SQUARES * 8 == LANES
