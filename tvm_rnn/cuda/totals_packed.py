"""The GEMM of a large weight's gradient by wgmma, for Hopper, of operands that `totals_pack.py` has put in order.

In: how many left operands share a right one, their depths, a tile. Out: a `Kernel` with the results of that in
`totals_tile.py`. A stage of a block's tile is one piece of memory for each operand, which one thread fetches by bulk
copies: the left one for itself, of the right one a part for every block of the cluster. The other warpgroups multiply
64 lines of the result each.

Asked of L2 per stage by a block of 128 x 256 in a cluster of two: 128 + 128 columns, in place of 128 + 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from ..scalar_cuda import flavour
from .gemm_layout import ROW_BYTES, ceil_div
from .gemm_operands import Operand
from .gemm_problem import int64, keep, uint32
from .gemm_ring import Stages
from .gemm_wgmma import BULK, INPUTS
from .kernel import Kernel, Writer, write
from .places import storage
from .totals_pack import SQUARE, SQUARE_BYTES, rows_of_stage, squares

Expr = Any
SHAPES = ((128, 256), (128, 192), (128, 128), (192, 192), (192, 128))
# Of a thread that copies, and of one that multiplies, by warpgroups that do.
REGISTERS = {2: (40, 232), 3: (24, 160)}
STEPS = 4  # wgmma steps of a stage, 32 bytes of K each
# Tensor cores' rates and memory's, as measured on an H200, in FLOP/s and bytes/s: with packed operands and without.
PACKED_RATE = {"float16": 650e12, "bfloat16": 650e12, "tf32": 330e12}
PLAIN_RATE = {"float16": 417e12, "bfloat16": 417e12, "tf32": 100e12}
MEMORY_RATE = 3.5e12


@dataclass(frozen=True)
class PackedTotalsTile:
    """high x wide of a block; cluster: blocks below each other, which share what they fetch of the right operand."""

    precision: str
    wide: int
    high: int = 128
    stages: int = 4
    cluster: int = 2

    @property
    def multiplying(self) -> int:
        """Warpgroups that multiply."""
        return self.high // 64

    @property
    def threads(self) -> int:
        return 128 * (self.multiplying + 1)

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor at once."""
        return 1

    @property
    def stage_bytes(self) -> int:
        return (self.high + self.wide) // SQUARE * SQUARE_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16)

    def blocks(self, lefts: int, height: int, width: int) -> int:
        """Of one part of the rows; the last cluster of a column may have one without work."""
        down = ceil_div(lefts * ceil_div(height, self.high), self.cluster) * self.cluster
        return down * ceil_div(width, self.wide)


def packed_tile_for(
    precision: str, lefts: Sequence[Operand], right: Operand, arch: str, sms: int
) -> PackedTotalsTile | None:
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
        turns = ceil_div(PackedTotalsTile(precision, wide, high).blocks(count, height, width), sms)
        return turns * (high * wide + 32 * (high + wide / 2))

    high, wide = min(SHAPES, key=work)
    return PackedTotalsTile(precision, wide, high)


def packed_totals_kernel(name: str, tile: PackedTotalsTile, lefts: int, height: int, width: int) -> Kernel:
    """parts[part, left, m, n] for all rows, of `a`: [stage][left][square], and `b`: [stage][square]; scalars: rows,
    parts."""
    dtype = storage(tile.precision)

    def body(w: Writer) -> None:
        # The register cap of one block: without it the compiler ignores setmaxnreg.
        with flavour(tile.precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _Packed(w, tile, lefts, height, width).run()

    pointers, scalars = [("a", dtype), ("b", dtype), ("sums", "float32")], [("rows", "int64"), ("parts", "int64")]
    shared, cluster = tile.shared_bytes, tile.cluster
    return write(name, pointers, scalars, body, threads=tile.threads, shared_bytes=shared, cluster=cluster)


class _Packed(Stages):
    tile: PackedTotalsTile

    def __init__(self, w: Writer, tile: PackedTotalsTile, lefts: int, height: int, width: int) -> None:
        self.w, self.tile, self.lefts, self.height, self.width = w, tile, lefts, height, width

    def run(self) -> None:
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        clusters = ceil_div(self.lefts * down, tile.cluster) * across
        first, rank = I.cluster_id([tirx.Cast("int32", w["parts"] * clusters)]), I.cta_id_in_cluster([tile.cluster])
        cluster, self.rank = keep(w, first), keep(w, rank)  # special registers: read once
        self.tx = I.thread_id([tile.threads])
        self.column = keep(w, tirx.truncmod(cluster, across) * tile.wide)
        number = keep(w, tirx.truncmod(tirx.truncdiv(cluster, across), clusters // across) * tile.cluster + self.rank)
        self.there = number < self.lefts * down
        number = keep(w, tirx.min(number, self.lefts * down - 1))
        self.left, self.line = (
            keep(w, tirx.truncdiv(number, down)),
            keep(w, tirx.truncmod(number, down) * tile.high),
        )
        self.part = keep(w, tirx.Cast("int64", tirx.truncdiv(cluster, clusters)))
        self.arena = I.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        deep = rows_of_stage(tile.precision)
        stages = tirx.truncdiv(w["rows"] + (deep - 1), int64(deep))
        each = keep(w, tirx.truncdiv(stages + w["parts"] - 1, w["parts"]))
        self.first = keep(w, self.part * each)
        self.count = keep(w, tirx.Cast("int32", tirx.max(tirx.min(stages - self.first, each), 0)))
        self._start()
        few, many = REGISTERS[tile.multiplying]
        with I.If(self.tx < 128):
            with I.Then():
                w.do(I.ptx["setmaxnreg.dec.sync.aligned.u32"](few))
                with w.when(self.tx == 0):
                    self._produce()
            with I.Else():
                w.do(I.ptx["setmaxnreg.inc.sync.aligned.u32"](many))
                self._consume()
        self._meet()

    def _start(self) -> None:
        w, tile = self.w, self.tile
        with w.when(self.tx == 0):
            for slot in range(tile.stages):
                at = tirx.const(slot, "int32")
                w.do(I.ptx.mbarrier.init.shared.b64(self._full(at), uint32(1)))
                w.do(I.ptx.mbarrier.init.shared.b64(self._empty(at), uint32(4 * tile.multiplying * tile.cluster)))
            w.do(I.ptx.fence.mbarrier_init.release.cluster())
            w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.cta_sync())
        self._meet()

    def _meet(self) -> None:
        """All blocks of the cluster: none may leave while others copy into it."""
        self.w.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
        self.w.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, tile = self.w, self.tile
        each = SQUARE_BYTES // (4 if tile.precision == "tf32" else 2)  # elements of a square
        own = squares(self.height)
        place = tirx.Cast("int64", self.left * own + tirx.truncdiv(self.line, SQUARE)) * each
        left = keep(w, self.first * (self.lefts * own * each) + place)
        part = tile.wide // tile.cluster  # columns that this block fetches
        place = tirx.Cast("int64", self.column + self.rank * part) * (each // SQUARE)
        right = keep(w, self.first * (squares(self.width) * each) + place)
        mask = tirx.const((1 << tile.cluster) - 1, "uint16")
        with w.loop(self.count) as turn:
            slot = w.bind(turn % tile.stages)
            self._wait(self._empty(slot), (turn // tile.stages + 1) % 2)
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(tile.stage_bytes)))
            stage = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            far = tirx.Cast("int64", turn)
            source = w["a"].ptr_to([left + far * (self.lefts * own * each)])
            w.do(I.ptx[BULK](stage, source, uint32(tile.high * ROW_BYTES), full))
            target = stage + uint32(tile.high * ROW_BYTES) + tirx.Cast("uint32", self.rank * (part * ROW_BYTES))
            source = w["b"].ptr_to([right + far * (squares(self.width) * each)])
            w.do(I.ptx[BULK + ".multicast::cluster"](target, source, uint32(part * ROW_BYTES), full, mask))

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32 - 4)
        acc = w.local(tile.wide // 2)
        for i in range(tile.wide // 2):
            w.store(acc, tirx.const(0.0, "float32"), i)
        desc = w.local(1, "uint64")
        # Along K: 8 lines after the other. Along what is not summed: squares side by side, in a square 8 rows.
        sizes = (1, 64) if tile.precision == "tf32" else (SQUARE_BYTES // 16, 8 * ROW_BYTES // 16)
        w.do(I.cuda.wgmma.encode_matrix_descriptor(I.address_of(desc[0]), self.arena.ptr_to([0]), *sizes, 3))
        own = w.bind(tirx.Cast("uint64", warp // 4 * (SQUARE_BYTES // 16)))
        tell = w.local(1, "uint32")
        rank = tirx.Cast("uint32", lane % tile.cluster)
        w.do(I.ptx["mapa.shared::cluster.u32"](tell[0], self._empty(tirx.const(0, "int32")), rank))
        with w.loop(self.count) as turn:
            slot = w.bind(turn % tile.stages)
            self._wait(self._full(slot), turn // tile.stages % 2)
            stage = w.bind(desc[0] + tirx.Cast("uint64", slot * (tile.stage_bytes // 16)))
            w.do(I.ptx.wgmma.fence.sync.aligned())
            for step in range(STEPS):
                self._step(acc, stage + own, stage, step)
            w.do(I.ptx.wgmma.commit_group.sync.aligned())
            w.do(I.ptx.wgmma.wait_group.sync.aligned(1))
            with w.when(tirx.And(turn > 0, lane < tile.cluster)):
                self._release(tell[0], turn - 1)
        w.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        with w.when(tirx.And(self.count > 0, lane < tile.cluster)):
            self._release(tell[0], self.count - 1)
        self._finish(acc, warp, lane)

    def _release(self, barrier: Expr, turn: Expr) -> None:
        at = barrier + tirx.Cast("uint32", turn % self.tile.stages * 8)
        self.w.do(I.ptx.mbarrier.arrive.shared__cluster.b64(at))

    def _step(self, acc: Any, a: Expr, b: Expr, step: int) -> None:
        tf32 = self.tile.precision == "tf32"
        deep, kinds, _ = INPUTS[storage(self.tile.precision)]
        name = f"wgmma.mma_async.sync.aligned.m64n{self.tile.wide}{deep}.f32.{kinds}"
        offset = 2 * step if tf32 else step * 16 * ROW_BYTES // 16
        from_b = tirx.const(self.tile.high * ROW_BYTES // 16 + offset, "uint64")
        d = [acc[i] for i in range(self.tile.wide // 2)]
        turned = [] if tf32 else [1, 1]  # 16-bit operands lie along what is not summed
        add = I.ptx.pred(tirx.const(1, "int32"))
        self.w.do(I.ptx[name](*d, a + tirx.const(offset, "uint64"), b + from_b, add, 1, 1, *turned))

    def _finish(self, acc: Any, warp: Expr, lane: Expr) -> None:
        w, size = self.w, self.height * self.width
        block = self.part * self.lefts + tirx.Cast("int64", self.left)
        pairs = self.width % 2 == 0
        for high in range(2):
            line = keep(w, self.line + warp * 16 + (lane // 4 + 8 * high))
            start = keep(w, block * size + tirx.Cast("int64", line) * self.width)
            with w.when(tirx.And(self.there, line < self.height)):
                for i in range(self.tile.wide // 8):
                    column, at = w.bind(self.column + 8 * i + lane % 4 * 2), 4 * i + 2 * high
                    if pairs:
                        with w.when(column < self.width):
                            place = w["sums"].ptr_to([start + tirx.Cast("int64", column)])
                            w.do(I.ptx["st.global.v2.f32"](place, acc[at], acc[at + 1]))
                        continue
                    for odd in range(2):
                        with w.when(column + odd < self.width):
                            w.store(w["sums"], acc[at + odd], start + tirx.Cast("int64", column + odd))
