"""Products of a block of 16 steps, on tensor cores: what a warp multiplies that makes a matrix and its gradient again.

In: a kernel's writer, a `BlocksLayout`, operands in shared memory. Out: `Products`, which emits them. Matrices lie in
registers as sums of products, [keys][values], and are packed to left operands; vectors of steps are right operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32

from .blocks_layout import BlocksLayout
from .chunk_states import TURNED
from .chunk_tile import BLOCK, TRIANGLE_PITCH


class Products:
    """base: of shared memory; own: where the warp's begins; lane: of this thread. Matrices: [tile of 16 keys][8
    values][4]; packed ones: [tile of 16 keys][16 values][4 words]."""

    def __init__(self, w: Writer, layout: BlocksLayout, base: TirExpr, own: TirExpr, lane: TirExpr) -> None:
        self.w, self.layout, self.base, self.own, self.lane = w, layout, base, own, lane
        self.precision = layout.pair.precision
        self.places: dict[tuple[str, str], TirExpr] = {}
        self.block: TirExpr = tirx.const(0, "int32")

    def enter(self, block: TirExpr) -> None:
        """From here on operands are those of a block of steps."""
        self.block, self.places = block, {}

    def _line(self, name: str, kind: str) -> TirExpr:
        """Where a lane reads an operand: its rows as "left" operands, or as columns of a "right" one."""
        name = self.layout.first(name)
        if (name, kind) not in self.places:
            lane, pitch = self.lane, self.layout.pitch(name)
            line, half = (lane // 16 * 8 + lane % 8, lane // 8 % 2) if kind == "right" else (lane % 16, lane // 16)
            own = (self.block * BLOCK + line) * pitch + half * 16 + self.layout.at(name)
            self.places[name, kind] = self.w.keep(self.base + tirx.Cast("uint32", own))
        return self.places[name, kind]

    def _multiply(self, sums: tuple[TirExpr, ...], a: tuple[TirExpr, ...], b: tuple[TirExpr, ...]) -> None:
        self.w.do(I.ptx[INSTRUCTIONS[self.precision]](*sums, *a, *b, *sums))

    # --- read ------------------------------------------------------------------------------------------------------

    def of_matrix(self, left: RegisterTile, vector: str) -> None:
        """<matrix, vector of each step>, to where keys read products, a row for each. left: the matrix, packed."""
        w, own = self.w, self.layout
        sums, b = w.tile(own.high, 2, 4), w.tile(2, 2, dtype="uint32")
        sums.fill(tirx.const(0.0, "float32"))
        at = self._line(vector, "right")
        for k in range(own.deep):
            w.do(I.ptx[LDMATRIX.format("x4")](*b[0], *b[1], at + uint32(32 * k)))
            for m in range(own.high):
                for n in range(2):
                    self._multiply(sums[m, n], left[m, k], b[n])
        for m in range(own.high):
            self._spread(sums, m, m * BLOCK * TRIANGLE_PITCH * 4, TRIANGLE_PITCH)

    def scores(self, rows: str, vector: str, number: int) -> None:
        """<row of a step, vector of a step>, to the scores of that number, [row's step][vector's]."""
        w, own = self.w, self.layout
        sums, a, b = w.tile(1, 2, 4), w.tile(1, 4, dtype="uint32"), w.tile(2, 2, dtype="uint32")
        sums.fill(tirx.const(0.0, "float32"))
        left, right = self._line(rows, "left"), self._line(vector, "right")
        for k in range(own.deep):
            w.do(I.ptx[LDMATRIX.format("x4")](*a[0], left + uint32(32 * k)))
            w.do(I.ptx[LDMATRIX.format("x4")](*b[0], *b[1], right + uint32(32 * k)))
            for n in range(2):
                self._multiply(sums[0, n], a[0], b[n])
        self._spread(sums, 0, own.scores_at + number * BLOCK * BLOCK * 4, BLOCK)

    def _spread(self, sums: RegisterTile, m: int, place: int, pitch: int) -> None:
        """Sums of 16 x 16 to rows of shared memory."""
        lane = self.lane
        own = self.w.bind(self.own + tirx.Cast("uint32", (lane // 4 * pitch + lane % 4 * 2) * 4 + place))
        for n in range(2):
            for half in range(2):
                two = sums[m, n][2 * half : 2 * half + 2]
                self.w.do(I.ptx["st.shared.v2.f32"](own + uint32((8 * half * pitch + 8 * n) * 4), *two))

    # --- matrices --------------------------------------------------------------------------------------------------

    def packed(self, matrix: RegisterTile) -> RegisterTile:
        """A matrix as left operand."""
        own = self.layout
        words = self.w.tile(own.high, own.deep, 4, dtype="uint32")
        for m in range(own.high):
            for k in range(own.deep):
                for i in range(4):
                    tile = matrix[m, 2 * k + i // 2]
                    pack(self.w, self.precision, words[m, k][i], tile[2 * (i % 2)], tile[2 * (i % 2) + 1])
        return words

    def both(self, left: RegisterTile, matrix: RegisterTile) -> list[list[TirExpr]]:
        """The product of a packed matrix and another one, summed over values: of the two keys of a lane in each tile,
        in all four lanes that have them."""
        w, found = self.w, []
        everyone = tirx.const(0xFFFFFFFF, "uint32")
        for m in range(self.layout.high):
            sums: list[TirExpr] = [tirx.const(0.0, "float32")] * 2
            for k in range(self.layout.deep):
                for i, word in enumerate(left[m, k]):
                    tile = matrix[m, 2 * k + i // 2]
                    for odd, value in enumerate(unpack(self.precision, word)):
                        sums[i % 2] = w.keep(sums[i % 2] + value * tile[2 * (i % 2) + odd])
            for turn in (1, 2):
                sums = [w.keep(one + I.tvm_warp_shuffle_xor(everyone, one, turn, 32, 32)) for one in sums]
            found.append(sums)
        return found

    def add_outer(self, matrix: RegisterTile, rows: str) -> None:
        """Scaled columns, [keys][steps] in shared memory, times rows of the steps, to a matrix."""
        w, own, lane = self.w, self.layout, self.lane
        a, b = w.tile(own.high, 4, dtype="uint32"), w.tile(2, 2, dtype="uint32")
        left = w.bind(self.own + tirx.Cast("uint32", lane % 16 * own.scaled_pitch + lane // 16 * 16))
        for m in range(own.high):
            w.do(I.ptx[LDMATRIX.format("x4")](*a[m], left + uint32(m * BLOCK * own.scaled_pitch)))
        at = self._line(rows, "left")
        for k in range(own.deep):
            w.do(I.ptx[TURNED](*b[0], *b[1], at + uint32(32 * k)))
            for m in range(own.high):
                for n in range(2):
                    self._multiply(matrix[m, 2 * k + n], a[m], b[n])

    def scale(self, matrix: RegisterTile, total: TirExpr) -> None:
        """Times a number of each key, which the key's lane has."""
        everyone = tirx.const(0xFFFFFFFF, "uint32")
        for m in range(self.layout.high):
            for half in range(2):
                key = self.w.bind(self.lane // 4 + (m * BLOCK + 8 * half))
                own = self.w.keep(tirx.call_extern("float32", "__shfl_sync", everyone, total, key, 32))
                for n in range(2 * self.layout.deep):
                    for odd in range(2):
                        i = 2 * half + odd
                        matrix.store(matrix[m, n][i] * own, m, n, i)


def summed(terms: Sequence[TirExpr]) -> TirExpr:
    """All of them, of which there is one at least."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
