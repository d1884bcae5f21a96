"""The GEMM of a large weight's gradient by wgmma, for Hopper, of operands that `weight_gradient_pack.py` has put in
order.

In: how many left operands share a right one, their depths, a tile. Out: a `Kernel` with the results of that in
`weight_gradient_mma.py`. A stage of a block's tile is one piece of memory for each operand, which one thread fetches by
bulk copies: the left one for itself, of the right one a part for every block of the cluster. The other warpgroups
multiply 64 lines of the result each.

Asked of L2 per stage by a block of 128 x 256 in a cluster of two: 128 + 128 columns, in place of 128 + 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES, bulk_copy
from tvm_rnn.cuda.layer.packed_layout import ROW_BYTES, ceil_div
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.tir.index import uint32

from .weight_gradient_block import weight_gradient_kernel
from .weight_gradient_pack import SQUARE, squares
from .weight_gradient_wgmma import WgmmaWeightGradient, WgmmaWeightGradientTile

SHAPES = ((128, 256), (128, 192), (128, 128), (192, 192), (192, 128))
# Tensor cores' rates and memory's, as measured on an H200, in FLOP/s and bytes/s: with packed operands and without.
PACKED_RATE = {"float16": 650e12, "bfloat16": 650e12, "tf32": 330e12}
PLAIN_RATE = {"float16": 417e12, "bfloat16": 417e12, "tf32": 100e12}
MEMORY_RATE = 3.5e12


@dataclass(frozen=True)
class PackedWeightGradientTile(WgmmaWeightGradientTile):
    """high x wide of a block; cluster: blocks below each other, which share what they fetch of the right operand."""

    cluster: int = 2

    def blocks(self, lefts: int, height: int, width: int) -> int:
        """Of one part of the rows; the last cluster of a column may have one without work."""
        down = ceil_div(lefts * ceil_div(height, self.high), self.cluster) * self.cluster
        return down * ceil_div(width, self.wide)


def packed_tile_for(
    precision: str, lefts: Sequence[Operand], right: Operand, arch: str, sms: int
) -> PackedWeightGradientTile | None:
    """The tile with which all blocks are done first; None where another kernel is faster or operands do not suit."""
    if arch != "sm_90a" or precision not in PACKED_RATE:
        return None
    if not all(one.piece(storage(precision)) for one in (*lefts, right)):
        return None
    height, width, count = lefts[0].depth, right.depth, len(lefts)
    # Left operands are put in order once for two products as a rule: with inputs, and with states.
    flops, moved = 2 * count * height * width, (count * height + 2 * width) * (4 if precision == "tf32" else 2)
    if flops / PACKED_RATE[precision] + moved / MEMORY_RATE > flops / PLAIN_RATE[precision]:
        return None

    def work(shape: tuple[int, int]) -> float:
        """Of the multiprocessor that has most: products, and what is asked of L2 for them."""
        high, wide = shape
        turns = ceil_div(PackedWeightGradientTile(precision, wide, high).blocks(count, height, width), sms)
        return turns * (high * wide + 32 * (high + wide / 2))

    high, wide = min(SHAPES, key=work)
    return PackedWeightGradientTile(precision, wide, high)


def packed_weight_gradient(name: str, tile: PackedWeightGradientTile, lefts: int, height: int, width: int) -> Kernel:
    """parts[part, left, m, n] for all rows, of `a`: [stage][left][square], and `b`: [stage][square]; scalars: rows,
    parts."""
    dtype = storage(tile.precision)
    pointers = [("a", dtype), ("b", dtype)]
    return weight_gradient_kernel(name, tile, pointers, lambda w: _Packed(w, tile, lefts, height, width).run())


class _Packed(WgmmaWeightGradient):
    def __init__(self, w: Writer, tile: PackedWeightGradientTile, lefts: int, height: int, width: int) -> None:
        super().__init__(w, tile, lefts, height, width)
        self.tile = tile

    def run(self) -> None:
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        clusters = ceil_div(self.lefts * down, tile.cluster) * across
        first, rank = I.cluster_id([tirx.Cast("int32", w["parts"] * clusters)]), I.cta_id_in_cluster([tile.cluster])
        cluster, self.rank = w.keep(first), w.keep(rank)  # special registers: read once
        self.tx = I.thread_id([tile.threads])
        self.column = w.keep(tirx.truncmod(cluster, across) * tile.wide)
        number = w.keep(tirx.truncmod(tirx.truncdiv(cluster, across), clusters // across) * tile.cluster + self.rank)
        there = number < self.lefts * down
        number = w.keep(tirx.min(number, self.lefts * down - 1))
        self.left = w.keep(tirx.truncdiv(number, down))
        self.line = w.keep(tirx.truncmod(number, down) * tile.high)
        self.part = w.keep(tirx.Cast("int64", tirx.truncdiv(cluster, clusters)))
        self._share_rows()
        self._work(1, there)

    def _produce(self) -> None:
        with self.w.when(tirx.EQ(self.tx, 0)):
            self._copy()

    def _copy(self) -> None:
        w, tile = self.w, self.tile
        each = SQUARE_BYTES // (4 if tile.precision == "tf32" else 2)  # elements of a square
        own = squares(self.height)
        place = tirx.Cast("int64", self.left * own + tirx.truncdiv(self.line, SQUARE)) * each
        left = w.keep(self.first * (self.lefts * own * each) + place)
        part = tile.wide // tile.cluster  # columns that this block fetches
        place = tirx.Cast("int64", self.column + self.rank * part) * (each // SQUARE)
        right = w.keep(self.first * (squares(self.width) * each) + place)
        with w.loop(self.count) as turn:
            slot = w.bind(self._slot(turn))
            self._wait(self._empty(slot), (turn // tile.stages + 1) % 2)
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(tile.stage_bytes)))
            stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            far = tirx.Cast("int64", turn)
            source = w["a"].ptr_to([left + far * (self.lefts * own * each)])
            bulk_copy(w, stage, source, uint32(tile.right_at), full)
            target = stage + uint32(tile.right_at) + tirx.Cast("uint32", self.rank * (part * ROW_BYTES))
            source = w["b"].ptr_to([right + far * (squares(self.width) * each)])
            bulk_copy(w, target, source, uint32(part * ROW_BYTES), full, tile.cluster)
