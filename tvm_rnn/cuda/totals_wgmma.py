"""The GEMM of a weight's gradient by wgmma, for Hopper: sums over all rows of products of two rows' 16-bit elements.

In: operands that lie as rows of pieces of 16 or 4 bytes, as many of the left ones as share a right one. Out: a `Kernel`
with the arguments and results of that in `totals_tile.py`. Rows are what K is in other products; wgmma takes 16-bit
operands along either axis, so rows are copied as they lie, 64 elements of 64 rows at a time, swizzled: 16 bytes at
chunk c of row r are at c ^ r % 8. One warpgroup copies, the others multiply 64 lines of the result each.

What L2 hands to all blocks is the limit: 12,800 rows of 10,240 and 2,560 elements in bf16 took 1.61 ms on an H200 with
tiles of 128 x 256, which ask L2 for 4.9 TB/s. A third warpgroup would leave too few registers for 256 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from ..scalar_cuda import flavour
from .gemm_layout import CHUNKS, ROW_BYTES, ceil_div
from .gemm_operands import Operand
from .gemm_problem import keep, uint32
from .gemm_ring import Stages, copy_chunk
from .gemm_wgmma import INPUTS, LAG
from .kernel import Kernel, Writer, write

Expr = Any
SQUARE = 64  # elements of a swizzled row, and rows of a stage
SQUARE_BYTES = SQUARE * ROW_BYTES
WIDTHS, HEIGHTS = (256, 192, 128, 64), (128, 64)
FEW_REGISTERS, MANY_REGISTERS = 40, 232  # of a thread that copies, and of one that multiplies
LEAST = 64  # lines and columns below which the other kernel's tiles waste less


@dataclass(frozen=True)
class WgmmaTotalsTile:
    """high x wide of a block: 64 lines for each warpgroup that multiplies, and what a wgmma has of columns."""

    precision: str
    wide: int
    high: int = 128
    stages: int = 4

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


def wgmma_tile_for(precision: str, lefts: Sequence[Operand], right: Operand, arch: str) -> WgmmaTotalsTile | None:
    """The tile with which blocks read least; None where operands, sizes or the GPU do not suit."""
    if arch != "sm_90a" or precision not in ("float16", "bfloat16"):
        return None
    if not all(one.piece(precision) for one in (*lefts, right)):
        return None
    if lefts[0].depth < LEAST or right.depth < LEAST:
        return None

    def asked(shape: tuple[int, int]) -> int:
        """Of L2, by all blocks."""
        high, wide = shape
        return ceil_div(lefts[0].depth, high) * ceil_div(right.depth, wide) * (high + wide)

    high, wide = min(product(HEIGHTS, WIDTHS), key=asked)
    return WgmmaTotalsTile(precision, wide, high)


def wgmma_totals_kernel(name: str, tile: WgmmaTotalsTile, lefts: Sequence[Operand], right: Operand) -> Kernel:
    """parts[part, left, m, n] of `lefts` (of one depth) with `right`, for all rows; scalars: rows, parts."""
    pointers = [(o.name, o.place.dtype) for o in lefts] + [(right.name, right.place.dtype), ("sums", "float32")]

    def body(w: Writer) -> None:
        # The register cap of one block: without it the compiler ignores setmaxnreg.
        with flavour(tile.precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _Totals(w, tile, lefts, right).run()

    scalars = [("rows", "int64"), ("parts", "int64")]
    return write(name, pointers, scalars, body, threads=tile.threads, shared_bytes=tile.shared_bytes)


class _Totals(Stages):
    tile: WgmmaTotalsTile

    def __init__(self, w: Writer, tile: WgmmaTotalsTile, lefts: Sequence[Operand], right: Operand) -> None:
        self.w, self.tile, self.lefts, self.right = w, tile, lefts, right
        self.height, self.width = lefts[0].depth, right.depth

    def run(self) -> None:
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        blocks = w["parts"] * (len(self.lefts) * down * across)
        cta, self.tx = keep(w, I.cta_id([tirx.Cast("int32", blocks)])), I.thread_id([tile.threads])
        self.column = keep(w, tirx.truncmod(cta, across) * tile.wide)
        self.line = keep(w, tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.left = keep(w, tirx.truncmod(tirx.truncdiv(cta, across * down), len(self.lefts)))
        self.part = keep(w, tirx.Cast("int64", tirx.truncdiv(cta, across * down * len(self.lefts))))
        self.arena = I.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        stages = tirx.truncdiv(w["rows"] + (SQUARE - 1), tirx.const(SQUARE, "int64"))
        each = keep(w, tirx.truncdiv(stages + w["parts"] - 1, w["parts"]))
        self.first = keep(w, self.part * each)
        self.count = keep(w, tirx.Cast("int32", tirx.max(tirx.min(stages - self.first, each), 0)))
        self._start()
        with I.If(self.tx < 128):
            with I.Then():
                w.do(I.ptx["setmaxnreg.dec.sync.aligned.u32"](FEW_REGISTERS))
                self._produce()
            with I.Else():
                w.do(I.ptx["setmaxnreg.inc.sync.aligned.u32"](MANY_REGISTERS))
                self._consume()

    def _start(self) -> None:
        w = self.w
        with w.when(self.tx == 0):
            for slot in range(self.tile.stages):
                at = tirx.const(slot, "int32")
                w.do(I.ptx.mbarrier.init.shared.b64(self._full(at), uint32(4)))  # warps that copy
                w.do(I.ptx.mbarrier.init.shared.b64(self._empty(at), uint32(4 * self.tile.multiplying)))
            w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.cta_sync())

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, tile = self.w, self.tile
        self.chunk, self.row = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        swizzled = tirx.bitwise_xor(self.chunk, self.row % CHUNKS) * 16
        self.into = w.bind(tirx.Cast("uint32", self.row * ROW_BYTES + swizzled))
        with w.loop(self.count) as turn:
            slot = w.bind(turn % tile.stages)
            self._wait(self._empty(slot), (turn // tile.stages + 1) % 2)
            stage = w.bind(self.base + self.into + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes))
            row0 = (self.first + tirx.Cast("int64", turn)) * SQUARE + tirx.Cast("int64", self.row)
            row0 = keep(w, row0)
            for n, operand in enumerate(self.lefts):
                with w.when(self.left == n) if len(self.lefts) > 1 else w.when(tirx.const(True, "bool")):
                    self._copy(operand, stage, row0, self.line, tile.high)
            behind = stage + uint32(tile.high // SQUARE * SQUARE_BYTES)
            self._copy(self.right, behind, row0, self.column, tile.wide)
            w.do(I.ptx["cp.async.commit_group"]())
            with w.when(turn >= LAG):
                self._announce(LAG, (turn - LAG) % tile.stages)
        for late in range(LAG, 0, -1):
            with w.when(self.count >= late):
                self._announce(late - 1, (self.count - late) % tile.stages)

    def _copy(self, operand: Operand, target: Expr, row0: Expr, first: Expr, columns: int) -> None:
        """A stage's rows of an operand; zeros beyond the last row and the last element."""
        w, step = self.w, 128 // CHUNKS
        assert operand.offset is not None
        left = keep(w, tirx.Cast("int32", tirx.min(w["rows"] - row0, tirx.const(SQUARE, "int64"))))
        inside = tirx.max(tirx.min(row0, w["rows"] - 1), tirx.const(0, "int64"))
        start = keep(w, inside * operand.place.row_stride + operand.offset)
        for square in range(columns // SQUARE):
            at = w.bind(first + square * SQUARE + self.chunk * 8)
            reach = w.bind(tirx.max(tirx.min(operand.depth - at, 8), 0) * 2)
            place = w.bind(start + tirx.Cast("int64", tirx.Select(reach > 0, at, 0)))
            for i in range(SQUARE // step):
                here = left > i * step
                size = tirx.Cast("uint32", tirx.Select(here, reach, 0))
                further = tirx.const(i * step * operand.place.row_stride, "int64")
                source = place + tirx.Select(here, further, tirx.const(0, "int64"))
                into = target + uint32(square * SQUARE_BYTES + i * step * ROW_BYTES)
                copy_chunk(w, operand, self.tile.precision, into, source, size)

    def _announce(self, pending: int, slot: Expr) -> None:
        """The copies of a stage are done, and visible to wgmma."""
        w = self.w
        w.do(I.ptx["cp.async.wait_group"](pending))
        w.do(I.ptx.fence.proxy.async_.shared__cta())
        w.do(I.cuda.warp_sync())
        with w.when(self.tx % 32 == 0):
            w.do(I.ptx["mbarrier.arrive.shared.b64"](self._full(slot)))

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        lane, warp = w.bind(self.tx % 32), w.bind(self.tx // 32 - 4)
        acc = w.local(tile.wide // 2)
        for i in range(tile.wide // 2):
            w.store(acc, tirx.const(0.0, "float32"), i)
        desc = w.local(1, "uint64")
        # Squares side by side; in a square 8 rows after the other.
        sizes = SQUARE_BYTES // 16, 8 * ROW_BYTES // 16
        w.do(I.cuda.wgmma.encode_matrix_descriptor(I.address_of(desc[0]), self.arena.ptr_to([0]), *sizes, 3))
        own = w.bind(tirx.Cast("uint64", warp // 4 * (SQUARE_BYTES // 16)))
        with w.loop(self.count) as turn:
            slot = w.bind(turn % tile.stages)
            self._wait(self._full(slot), turn // tile.stages % 2)
            stage = w.bind(desc[0] + tirx.Cast("uint64", slot * (tile.stage_bytes // 16)))
            w.do(I.ptx.wgmma.fence.sync.aligned())
            for step in range(SQUARE // 16):
                self._step(acc, stage + own, stage, step)
            w.do(I.ptx.wgmma.commit_group.sync.aligned())
            w.do(I.ptx.wgmma.wait_group.sync.aligned(1))
            with w.when(tirx.And(turn > 0, lane == 0)):
                self._release(turn - 1)
        w.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        self._finish(acc, warp, lane)

    def _step(self, acc: Any, a: Expr, b: Expr, step: int) -> None:
        deep, kinds, _ = INPUTS[self.tile.precision]
        name = f"wgmma.mma_async.sync.aligned.m64n{self.tile.wide}{deep}.f32.{kinds}"
        offset = step * 16 * ROW_BYTES // 16
        from_b = tirx.const(self.tile.high // SQUARE * SQUARE_BYTES // 16 + offset, "uint64")
        d = [acc[i] for i in range(self.tile.wide // 2)]
        add = I.ptx.pred(tirx.const(1, "int32"))
        turned = 1, 1  # both operands lie along what is not summed
        self.w.do(I.ptx[name](*d, a + tirx.const(offset, "uint64"), b + from_b, add, 1, 1, *turned))

    def _release(self, turn: Expr) -> None:
        at = self._empty(turn % self.tile.stages)
        self.w.do(I.ptx["mbarrier.arrive.shared.b64"](at))

    def _finish(self, acc: Any, warp: Expr, lane: Expr) -> None:
        w, size = self.w, self.height * self.width
        block = self.part * len(self.lefts) + tirx.Cast("int64", self.left)
        for high in range(2):
            line = keep(w, self.line + warp * 16 + (lane // 4 + 8 * high))
            start = keep(w, block * size + tirx.Cast("int64", line) * self.width)
            with w.when(line < self.height):
                for i in range(self.tile.wide // 8):
                    for odd in range(2):
                        column = w.bind(self.column + (8 * i + odd) + lane % 4 * 2)
                        with w.when(column < self.width):
                            w.store(w["sums"], acc[4 * i + 2 * high + odd], start + tirx.Cast("int64", column))
