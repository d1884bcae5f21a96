"""Products of a part's steps with each other and with a matrix at its border, on tensor cores.

In: a kernel's writer, a `BlocksLayout`, rows and vectors in shared memory. Out: `Products`, which emits them. A warp
has 16 keys of a matrix as left operand; vectors of steps are right operands, and sums are [tiles of 8 steps][4].
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .blocks_layout import LINE_BYTES, PRODUCT_PITCH, SCALED_PITCH, UNIT_BYTES, BlocksLayout, unit_of
from .chunk_tile import BLOCK
from .part_layout import SIDE, UNITS
from .part_place import Place

ZERO = tirx.const(0.0, "float32")


class Products:
    """base: of shared memory."""

    def __init__(self, w: Writer, layout: BlocksLayout, base: TirExpr, place: Place) -> None:
        self.w, self.layout, self.base, self.place = w, layout, base, place
        self.lane, self.precision = place.lane, layout.pair.precision
        self.key0 = w.keep(place.warp * BLOCK)

    def _multiply(self, sums: tuple[TirExpr, ...], a: tuple[TirExpr, ...], b: tuple[TirExpr, ...]) -> None:
        self.w.do(I.ptx[INSTRUCTIONS[self.precision]](*sums, *a, *b, *sums))

    def _place(self, at: Expr) -> TirExpr:
        return self.w.bind(self.base + tirx.Cast("uint32", at))

    def _right(self, name: str, first: Expr) -> TirExpr:
        """Where a lane reads vectors of 16 steps as columns of a right operand. first: of the steps."""
        line = first + (self.lane // 16 * 8 + self.lane % 8)
        own = line * self.layout.pitch(name) + self.lane // 8 % 2 * 16 + self.layout.at(name)
        return self.w.keep(self.base + tirx.Cast("uint32", own))

    # --- of two steps ----------------------------------------------------------------------------------------------

    def scores(self, more: bool) -> None:
        """Of all pairs of vectors, units of 16 x 16 in turn by all warps. more: added to those that are there."""
        w, warps = self.w, self.layout.warps
        with w.loop(ceil_div(UNITS, warps)) as turn:
            unit = w.keep(turn * warps + self.place.warp)
            with w.when(unit < UNITS):
                apart = w.keep(unit - SIDE)  # of two blocks: 1 and 0, 2 and 0, 2 and 1, 3 and 0 ...
                far = tirx.const(1, "int32") + sum(
                    (tirx.Cast("int32", apart >= n * (n - 1) // 2) for n in range(2, SIDE)), tirx.const(0, "int32")
                )
                later = w.keep(tirx.Select(unit < SIDE, unit, far))
                near = apart - tirx.truncdiv(later * (later - 1), 2)
                earlier = w.keep(tirx.Select(unit < SIDE, unit, near))
                for left, right in self.layout.scores:
                    self._score(unit, (left, later), (right, earlier), more)

    def _score(self, unit: TirExpr, later: tuple[str, TirExpr], earlier: tuple[str, TirExpr], more: bool) -> None:
        w, lane, layout = self.w, self.lane, self.layout
        (name, block), (other, before) = later, earlier
        scale = layout.scale(name) * layout.scale(other)
        line = (before * BLOCK + lane % 16) * layout.pitch(other) + lane // 16 * 16 + layout.at(other)
        left, right = self._place(line), self._right(name, block * BLOCK)
        own = lane // 4 * LINE_BYTES + lane % 4 * 8 + unit * UNIT_BYTES + layout.score_at(name, other)
        at = w.keep(self.base + tirx.Cast("uint32", own))
        places = [(n, half, at + uint32(8 * half * LINE_BYTES + 32 * n)) for n in range(2) for half in range(2)]
        sums, a, b = w.tile(2, 4), w.tile(1, 4, dtype="uint32"), w.tile(2, 2, dtype="uint32")
        sums.fill(ZERO)
        if more:
            for n, half, place in places:
                w.do(I.ptx["ld.shared.v2.f32"](*sums[n][2 * half : 2 * half + 2], place))
            sums.scale(1.0 / scale)
        for k in range(layout.deep):
            w.do(I.ptx[LDMATRIX.format("x4")](*a[0], left + uint32(32 * k)))
            w.do(I.ptx[LDMATRIX.format("x4")](*b[0], *b[1], right + uint32(32 * k)))
            for n in range(2):
                self._multiply(sums[n], a[0], b[n])
        sums.scale(scale)
        for n, half, place in places:
            w.do(I.ptx["st.shared.v2.f32"](place, *sums[n][2 * half : 2 * half + 2]))

    # --- of a matrix -----------------------------------------------------------------------------------------------

    def add(self, sums: RegisterTile, matrix: RegisterTile, vector: str) -> None:
        """<matrix, vector of each step>, of a piece of the values."""
        w, b = self.w, self.w.tile(2, 2, dtype="uint32")
        for n in range(SIDE):
            at = self._right(vector, n * BLOCK)
            for k in range(self.layout.deep):
                w.do(I.ptx[LDMATRIX.format("x4")](*b[0], *b[1], at + uint32(32 * k)))
                for half in range(2):
                    self._multiply(sums[2 * n + half], matrix[k], b[half])

    def add_both(self, sums: RegisterTile, left: RegisterTile, right: RegisterTile) -> None:
        """The product of two matrices, summed over a lane's values: of its two keys."""
        for k in range(self.layout.deep):
            for i, (a, b) in enumerate(zip(left[k], right[k], strict=True)):
                for one, two in zip(unpack(self.precision, a), unpack(self.precision, b), strict=True):
                    sums.store(sums[0][i % 2] + one * two, 0, i % 2)

    # --- of a block of steps ---------------------------------------------------------------------------------------

    def scaled(self, name: str, write: int, block: int) -> RegisterTile:
        """Columns of a block's steps, scaled to its border, as left operand, [keys of the warp][steps]."""
        own = (self.key0 + self.lane % 16) * SCALED_PITCH + self.lane // 16 * 16 + self.layout.scaled_at(name, write)
        words = self.w.tile(1, 4, dtype="uint32")
        self.w.do(I.ptx[LDMATRIX.format("x4")](*words[0], self._place(own) + uint32(2 * BLOCK * block)))
        return words

    def left(self, name: str, block: int) -> list[TirExpr]:
        """What is left of a matrix behind a block of steps, of a lane's two keys."""
        found = self.w.tile(1, 2)
        for half in range(2):
            own = (self.key0 + (self.lane // 4 + 8 * half)) * 4 + (block * self.layout.keys * 4)
            self.w.do(I.ptx["ld.shared.f32"](found[0][half], self._place(own + self.layout.left_at(name))))
        return list(found[0])

    def add_written(
        self, sums: RegisterTile, columns: RegisterTile, pair: tuple[str, str], blocks: tuple[int, int]
    ) -> None:
        """What steps of a block read of what those of another one wrote. pair: later and earlier vector; blocks: whose
        steps are read, and that which wrote."""
        reads, wrote = blocks
        unit, lane = unit_of(max(blocks), min(blocks)), self.lane
        begin = self.layout.score_at(*pair) + unit * UNIT_BYTES
        for n in range(2):
            b, two = self.w.tile(1, 2, dtype="uint32"), self.w.tile(1, 2)
            for half in range(2):
                k, column = lane % 4 * 2 + 8 * half, lane // 4 + 8 * n
                if wrote < reads:  # a line of scores is an earlier step
                    at = self._place(k * LINE_BYTES + column * 4 + begin)
                    for odd in range(2):
                        self.w.do(I.ptx["ld.shared.f32"](two[0][odd], at + uint32(odd * LINE_BYTES)))
                else:
                    at = self._place(column * LINE_BYTES + k * 4 + begin)
                    self.w.do(I.ptx["ld.shared.v2.f32"](*two[0], at))
                pack(self.w, self.precision, b[0][half], *two[0])
            self._multiply(sums[2 * reads + n], columns[0], b[0])

    def put(self, sums: RegisterTile, at: int) -> None:
        """Sums of all steps, a row of them for each key. at: of the vector."""
        own = (self.key0 + self.lane // 4) * PRODUCT_PITCH + self.lane % 4 * 8 + at
        place = self.w.keep(self.base + tirx.Cast("uint32", own))
        for n in range(2 * SIDE):
            for half in range(2):
                two = sums[n][2 * half : 2 * half + 2]
                self.w.do(I.ptx["st.shared.v2.f32"](place + uint32(8 * half * PRODUCT_PITCH + 32 * n), *two))
