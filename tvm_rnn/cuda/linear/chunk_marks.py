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
from .chunk_layout import MOST_APART, MOST_SHARED
from .chunk_loads import Loads
from .chunk_products import OLD, Products
from .chunk_scan import ChunkScan
from .chunk_states import States
from .chunk_tile import BLOCK, PAD
from .pair import EVERY

EVERYONE = tirx.const(0xFFFFFFFF, "uint32")
LANES = 8  # keys, in 16 bits, that go to memory in one instruction of a lane


@dataclass(frozen=True)
class MarkedChunkScan(ChunkScan):
    """Steps begin at a part."""

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return (*super().pointers, ("marks", marks_dtype(self.recurrence.precision)))

    @property
    def lines(self) -> bool:
        """Whether marks are lines of keys, as products take them."""
        own = self.recurrence
        return marks_dtype(own.precision) != "float32" and own.keys_last and own.keys % LANES == 0

    @property
    def beside(self) -> bool:
        """Whether warps that bring operands keep marks, of what they are handed: where few warps have states."""
        if not self.lines or self.readers:
            return self.lines
        handed = self.handed_at + self.tile.warps * self.handed_bytes + self._beside
        room = self.part == self.tile.chunk and self.loaders >= self.tile.warps and handed <= MOST_SHARED
        return room and self.tile.warps <= MOST_APART

    @property
    def hands(self) -> bool:
        return super().hands or self.beside

    def states(self, block: Block, warp: TirExpr) -> States:
        return States(block, warp) if self.beside else _Marking(block, warp)

    def loads(self, block: Block, warp: TirExpr) -> Loads:
        return _KeepingLoads(block, warp) if self.beside else Loads(block, warp)

    def meeting(self, what: int) -> int:
        return super().meeting(what) + int(self.beside and what == OLD)

    def marked(self, block: Block, number: TirExpr) -> tuple[TirExpr, TirExpr]:
        """Of a chunk: whether it is the first of a part, and where the part is, of all rows'."""
        w, step = block.w, block.w.bind(number * self.tile.chunk)
        time = w.keep(block.time(step))
        begins = tirx.EQ(tirx.truncmod(time + int(self.reverse), EVERY), 0)
        if self.reverse:
            begins = tirx.Or(begins, tirx.EQ(block.first + step, 0))
        return begins, w.bind(tirx.truncdiv(time, EVERY) * w["batch"] + block.row)


class _KeepingLoads(Loads):
    """Each of as many warps as have states keeps those of one."""

    def __init__(self, block: Block, warp: TirExpr) -> None:
        super().__init__(block, warp)
        self.warp, self.handed = warp, _Handed(block, warp)

    def advance(self, number: TirExpr) -> None:
        super().advance(number)
        with self.w.when(tirx.And(number > 0, self.warp < self.tile.warps)):
            self.handed.keep(self.w.keep(number - 1))  # that of warps of states: scores are made one chunk before


class _Handed(Products):
    """States before a chunk, as a warp of states hands them on."""

    scan: MarkedChunkScan

    def keep(self, number: TirExpr) -> None:
        """To memory, if the chunk is the first of a part."""
        w, own = self.w, self.recurrence
        w.do(I.ptx.bar.sync(*self._barrier(OLD)))
        begins, part = self.scan.marked(self.body, number)
        with w.when(begins):
            words = self._given(self.deep, 0)
            matrix = w.keep((wide(part) * own.heads + wide(self.body.head)) * (own.keys * own.values))
            for k in range(self.deep):
                for half in range(2):
                    self._line(matrix, k, half, (words[k][half], words[k][half + 2]))

    def _line(self, matrix: TirExpr, k: int, half: int, two: tuple[TirExpr, TirExpr]) -> None:
        """16 keys of 8 values: lanes side by side change a word, so that each has four keys in a row."""
        w, own, lane = self.w, self.recurrence, self.lane
        odd = w.keep(tirx.EQ(lane % 2, 1))
        given = w.keep(tirx.Select(odd, *two))
        taken = w.keep(I.tvm_warp_shuffle_xor(EVERYONE, given, 1, 32, 32))
        words = tirx.Select(odd, taken, two[0]), tirx.Select(odd, two[1], taken)
        value = w.bind(self.body.value0 + self.warp * BLOCK + lane // 4 + 8 * half)
        key = w.bind(lane % 4 // 2 * 4 + lane % 2 * 8 + BLOCK * k)
        with w.when(tirx.And(value < own.values, key < own.keys)):
            to = w["marks"].ptr_to([matrix + wide(value * own.keys + key)])
            w.do(I.ptx["st.global.v2.b32"](to, *(w.keep(word) for word in words)))


class _Marking(States):
    """Leaves the states as they are before a chunk that is the first of a part."""

    scan: MarkedChunkScan

    def advance(self, number: TirExpr) -> None:
        w, dtype = self.w, marks_dtype(self.precision)
        begins, part = self.scan.marked(self.body, number)
        with w.when(begins):
            if self.scan.lines:
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
        """Where the warp has memory that no other writes to: where its results go out."""
        scan = self.scan
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
