"""A chunk scan that also keeps the states before each part of the time, which training makes others again from.

In: what a `ChunkScan` takes. Out: `MarkedChunkScan`, whose kernel has one more pointer: marks [parts, B, ...].
A part has one chunk or more; backwards, the states before it are those behind its last step in order of time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import converted
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_block import Block
from .chunk_layout import PAD
from .chunk_scan import ChunkScan
from .chunk_states import States
from .chunk_tile import BLOCK
from .pair import EVERY

LANES = 8  # keys, in 16 bits, that go to memory in one instruction of a lane


@dataclass(frozen=True)
class MarkedChunkScan(ChunkScan):
    """Steps begin at a part."""

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return (*super().pointers, ("marks", marks_dtype(self.recurrence.precision)))

    def states(self, block: Block, warp: TirExpr) -> States:
        return _Marking(block, warp)


class _Marking(States):
    """Leaves the states as they are before a chunk that is the first of a part."""

    def advance(self, number: TirExpr) -> None:
        w, body, dtype = self.w, self.body, marks_dtype(self.precision)
        step = w.bind(number * self.tile.chunk)
        time = w.keep(body.time(step))
        begins = tirx.EQ(tirx.truncmod(time + int(self.scan.reverse), EVERY), 0)
        if self.scan.reverse:
            begins = tirx.Or(begins, tirx.EQ(body.first + step, 0))
        with w.when(begins):
            part = w.keep(tirx.truncdiv(time, EVERY) * w["batch"] + body.row)
            own = self.recurrence
            if dtype != "float32" and own.keys_last and own.keys % LANES == 0:
                self._keep_lines(part, dtype)
            else:
                for register, there, at in self._elements(part):
                    with w.when(there):
                        w.store(w["marks"], converted(self.state.flat[register], dtype), at)
        super().advance(number)

    def _keep_lines(self, part: TirExpr, dtype: str) -> None:
        """Store them by way of shared memory: so many keys at a time as a chunk has steps. Words of two keys, as
        registers have them, are half a sector each."""
        w, body, own, width = self.w, self.body, self.recurrence, self.tile.chunk
        pitch, lane = 2 * width + PAD, self.lane
        begin = w.bind(self._own_memory())
        into = w.bind(body.base + tirx.Cast("uint32", begin + lane // 4 * pitch + lane % 4 * 4))
        matrix = w.keep((wide(part) * own.heads + wide(body.head)) * (own.keys * own.values))
        for first in range(0, self.scan.keys, width):
            count = min(width, self.scan.keys - first)
            w.do(I.cuda.warp_sync())
            for n in range(count // 8):
                four = self.state[first // 8 + n]
                for half in range(2):
                    word = w.local(1, "uint32")
                    pack(w, dtype, word[0], four[2 * half], four[2 * half + 1])
                    w.do(I.ptx["st.shared.b32"](into + uint32(8 * half * pitch + 16 * n), word[0]))
            w.do(I.cuda.warp_sync())
            self._lines(w.bind(body.base + tirx.Cast("uint32", begin)), (first, count, pitch), matrix)
        w.do(I.cuda.warp_sync())  # the memory has another use next

    def _own_memory(self) -> TirExpr:
        """Where the warp has memory that no other writes to: where its results go out, or, if another warp has these,
        what it is about to hand to that."""
        scan = self.scan
        if scan.readers:
            return scan.handed_at + self.warp * scan.handed_bytes
        return scan.results_at + self.warp * (self.tile.chunk * scan.result_pitch)

    def _lines(self, begin: TirExpr, keys: tuple[int, int, int], matrix: TirExpr) -> None:
        """From shared memory to where they go. keys: the first, how many, and bytes from a value's to the next's."""
        w, own, (first, count, pitch) = self.w, self.recurrence, keys
        across = count // LANES
        four = w.tile(1, 4, dtype="uint32")
        for turn in range(BLOCK * across // 32):
            piece = w.bind(turn * 32 + self.lane)
            line, column = tirx.truncdiv(piece, across), tirx.truncmod(piece, across)
            w.do(I.ptx["ld.shared.v4.b32"](*four[0], begin + tirx.Cast("uint32", line * pitch + column * 16)))
            value = w.bind(self.body.value0 + self.warp * BLOCK + line)
            key = w.bind(column * LANES + first)
            with w.when(tirx.And(value < own.values, key < own.keys)):
                to = w["marks"].ptr_to([matrix + wide(value * own.keys + key)])
                w.do(I.ptx["st.global.v4.b32"](to, *four[0]))
