"""Matrices at the borders of a part, in shared memory as products' operands, and from there in registers.

In: a kernel's writer, a `BlocksLayout`, the block's `Place` and `Operands`. Out: `Borders`. Lines lie as they do in
memory: of keys, or of values, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import LoadedLanes, pack
from tvm_rnn.cuda.gemm.mma_sync import LDMATRIX
from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32

from .blocks_layout import BlocksLayout
from .chunk_products import TURNED
from .chunk_tile import BLOCK
from .pair import marks_name
from .part_operands import Operands
from .part_place import Place

TOGETHER = 8  # loads of a thread that are on their way before the first is awaited


@dataclass(frozen=True)
class Borders:
    """Of all matrices of a layout's pair."""

    w: Writer
    layout: BlocksLayout
    place: Place
    operands: Operands

    def fill(self, piece: int) -> None:
        """A piece of the values of each matrix to shared memory, zeros where there is nothing."""
        w, own = self.w, self.layout
        inner = own.pair.keys if own.pair.keys_last else own.pair.values
        lanes = 4 if inner % 4 == 0 else 1
        pieces = own.border_lines * own.border_width // lanes
        for name in own.pair.made:
            turns = ceil_div(pieces, own.threads)
            together = next(n for n in (TOGETHER, 4, 2, 1) if turns % n == 0)
            with w.loop(turns // together) as outer:
                found = []
                for n in range(together):
                    number = w.keep((outer * together + n) * own.threads + self.place.thread)
                    found.append((number, self._loaded(name, number, lanes, piece)))
                for number, loaded in found:
                    with w.when(number < pieces if pieces % own.threads else True):
                        self._put(name, number, loaded)

    def _loaded(self, name: str, number: TirExpr, lanes: int, piece: int) -> LoadedLanes:
        own, across = self.layout, self.layout.border_width // lanes
        line, column = tirx.truncdiv(number, across), tirx.truncmod(number, across) * lanes
        value, key = (line, column) if own.pair.keys_last else (column, line)
        value, key = value + piece * own.deep * BLOCK, self.place.key0 + key
        there, at = self.place.border(self.w.keep(key), self.w.keep(value))
        loaded = LoadedLanes(self.w, marks_dtype(own.pair.precision), lanes)
        with self.w.when(there):
            loaded.load(marks_name(name), at)
        return loaded

    def _put(self, name: str, number: TirExpr, loaded: LoadedLanes) -> None:
        w, own, precision, values = self.w, self.layout, self.layout.pair.precision, loaded.values()
        across = own.border_width // loaded.lanes
        to = tirx.truncdiv(number, across) * own.border_pitch + tirx.truncmod(number, across) * (2 * loaded.lanes)
        at = w.keep(to + own.border_at(name))
        if loaded.lanes == 1:
            w.store(self.operands.words, converted(values[0], precision), tirx.truncdiv(at, 2))
            return
        words = w.tile(1, 2, dtype="uint32")
        for i in range(2):
            pack(w, precision, words[0][i], values[2 * i], values[2 * i + 1])
        w.do(I.ptx["st.shared.v2.b32"](self.operands.base + tirx.Cast("uint32", at), *words[0]))

    def operand(self, name: str) -> RegisterTile:
        """A matrix as left operand, 16 keys of the warp: [tiles of 16 values][4 words]."""
        w, own, lane, key0 = self.w, self.layout, self.place.lane, self.place.warp * BLOCK
        words = w.tile(own.deep, 4, dtype="uint32")
        if own.pair.keys_last:
            line, column = lane // 16 * 8 + lane % 8, key0 + lane // 8 % 2 * 8
            how, step = TURNED, BLOCK * own.border_pitch
        else:
            line, column = key0 + lane % 16, lane // 16 * 8
            how, step = LDMATRIX.format("x4"), 2 * BLOCK
        to = line * own.border_pitch + column * 2 + own.border_at(name)
        at = w.keep(self.operands.base + tirx.Cast("uint32", to))
        for k in range(own.deep):
            w.do(I.ptx[how](*words[k], at + uint32(step * k)))
        return words
