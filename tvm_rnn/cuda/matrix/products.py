"""Products of a block's matrices with a parameter: rows of a matrix, as lanes have it, times columns of the parameter.

In: elements of a lane. Out: sums in the same places. `TensorProduct`: mma.sync, which takes rows as it leaves them: no
warp reads another's. The parameter lies in registers as fragments, or in shared memory where registers are short.
`PlainProduct`: float32, its parameter and a copy of the rows in shared memory.

Source: fragments of "mma.m16n8k16": PTX ISA 8.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .matrix_tile import DEEP, LANES, MatrixTile

SPARE = 4  # floats between rows in shared memory: rows of neighbours begin in other banks
WORDS = 2  # of 16-bit pairs, in a fragment of the parameter

Weight = Callable[[Expr, Expr], TirExpr]  # of (column that is summed, column of the result); 0 beyond the matrix
Elements = Callable[[int, int], TirExpr]  # of (a lane's row, a lane's column)


@dataclass(frozen=True)
class Lane:
    """Who a thread is among those that have elements."""

    warp: TirExpr
    lane: TirExpr


class TensorProduct:
    """One product. memory: shared memory for the parameter, and the word from which on; None: it is in registers."""

    def __init__(
        self, w: Writer, tile: MatrixTile, lane: Lane, precision: str, memory: tuple[Buffer | None, int]
    ) -> None:
        self.w, self.tile, self.own, self.precision = w, tile, lane, precision
        self.memory, self.first = memory
        self.deep = tile.padded_columns // DEEP
        if self.memory is None:
            self.weights = w.tile(self.deep, tile.broad, WORDS, dtype="uint32")

    @staticmethod
    def words(tile: MatrixTile) -> int:
        """Of the parameter, for each lane."""
        return tile.padded_columns // DEEP * tile.broad * WORDS

    @staticmethod
    def shared_words(tile: MatrixTile) -> int:
        return TensorProduct.words(tile) * LANES

    def _place(self, step: int, n: int) -> TirExpr:
        """Of the first word of a fragment: those of a warp lie side by side."""
        return self.own.lane * WORDS + (self.first + (step * self.tile.broad + n) * LANES * WORDS)

    def load(self, weight: Weight) -> None:
        """The parameter's fragments. From shared memory they are there after the next barrier."""
        w, lane = self.w, self.own.lane
        fragment = w.local(WORDS, "uint32")
        for step in range(self.deep):
            for n in range(self.tile.broad):
                for half in range(WORDS):
                    k = lane % 4 * 2 + (step * DEEP + half * 8)
                    low, high = (w.keep(weight(k + e, lane // 4 + n * 8)) for e in range(2))
                    into = fragment[half] if self.memory is not None else self.weights[step, n][half]
                    pack(w, self.precision, into, low, high)
                if self.memory is not None:
                    with w.when(tirx.EQ(self.own.warp, 0)):
                        for half in range(WORDS):
                            w.store(self.memory, fragment[half], self._place(step, n) + half)

    def _fragment(self, step: int, n: int) -> tuple[TirExpr, ...]:
        if self.memory is None:
            return self.weights[step, n]
        return tuple(self.w.keep(self.memory[self._place(step, n) + half]) for half in range(WORDS))

    def multiply(self, elements: Elements) -> RegisterTile:
        """sums[m, n, half, e]: row 2 m + half and column 2 n + e of a lane."""
        w, tile = self.w, self.tile
        sums = w.tile(tile.high, tile.broad, 2, 2)
        sums.fill(tirx.const(0.0, "float32"))
        rows = w.tile(tile.high, self.deep, 4, dtype="uint32")
        for m in range(tile.high):
            for step in range(self.deep):
                for number, word in enumerate(rows[m, step]):
                    row, column = 2 * m + number % 2, 4 * step + number // 2 * 2
                    pack(w, self.precision, word, elements(row, column), elements(row, column + 1))
        for step in range(self.deep):
            for n in range(tile.broad):
                fragment = self._fragment(step, n)
                for m in range(tile.high):
                    d = *sums[m, n, 0], *sums[m, n, 1]
                    w.do(I.ptx[INSTRUCTIONS[self.precision]](*d, *rows[m, step], *fragment, *d))
        return sums


class PlainProduct:
    """The same in float32. memory: floats of shared memory from `first` on, for the parameter and for rows."""

    def __init__(self, w: Writer, tile: MatrixTile, lane: Lane, memory: Buffer, first: int) -> None:
        self.w, self.tile, self.own = w, tile, lane
        self.memory, self.first = memory, first
        self.rows = first + tile.columns * tile.padded_columns

    @staticmethod
    def shared_words(tile: MatrixTile) -> int:
        return tile.columns * tile.padded_columns + tile.padded_rows * (tile.padded_columns + SPARE)

    def load(self, weight: Weight) -> None:
        """The parameter, which is there after the next barrier."""
        w, wide = self.w, self.tile.padded_columns
        thread = w.keep(self.own.warp * LANES + self.own.lane)
        every, threads = self.tile.columns * wide, LANES * self.tile.warps
        with w.loop(ceil_div(every, threads)) as turn:
            at = w.keep(turn * threads + thread)
            with w.when(at < every):
                w.store(self.memory, weight(tirx.truncdiv(at, wide), tirx.truncmod(at, wide)), self.first + at)

    def multiply(self, elements: Elements) -> RegisterTile:
        w, tile = self.w, self.tile
        pitch, lane = tile.padded_columns + SPARE, self.own.lane
        own = [w.keep((tile.row(self.own.warp, lane, i).value) * pitch + self.rows) for i in range(tile.lane_rows)]
        columns = [tile.column(self.own.warp, lane, j).value for j in range(tile.lane_columns)]
        for i in range(tile.lane_rows):
            for j, column in enumerate(columns):
                w.store(self.memory, elements(i, j), own[i] + column)
        w.do(I.cuda.warp_sync())
        sums = w.tile(tile.high, tile.broad, 2, 2)
        sums.fill(tirx.const(0.0, "float32"))
        with w.loop(tile.columns) as k:
            rows = [w.keep(self.memory[own[i] + k]) for i in range(tile.lane_rows)]
            for j, column in enumerate(columns):
                weight = w.keep(self.memory[k * tile.padded_columns + column + self.first])
                for i, row in enumerate(rows):
                    at = i // 2, j // 2, i % 2, j % 2
                    sums.store(sums[at[:3]][at[3]] + row * weight, *at)
        w.do(I.cuda.warp_sync())
        return sums
