"""The products of a warpgroup by wgmma: 64 rows times up to 256 columns, stage after stage of shared memory.

In: a kernel's writer and shared memory whose stages hold both operands in the 128-byte swizzle. Out: `WgmmaProduct`:
sums in registers, and statements that add a stage's products to them.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async".
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.tile_layout import PIECE_BYTES
from tvm_rnn.cuda.layer.packed_layout import ROW_BYTES
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

STEPS = 4  # wgmma steps of a stage: 32 bytes of K each
HIGH = 64  # rows of a warpgroup
SQUARE_BYTES = 64 * ROW_BYTES  # 64 lines of 128 bytes
KINDS = {"bfloat16": ("k16", "bf16.bf16"), "float16": ("k16", "f16.f16"), "float32": ("k8", "tf32.tf32")}
SWIZZLED = 3  # of 128 bytes, as descriptors say it


def units(size: int) -> int:
    """Bytes as descriptors count them."""
    return size // PIECE_BYTES


class WgmmaProduct:
    """Sums of one warpgroup: `acc[n, half]` are a lane's two columns of the n-th 8, in row lane // 4 + 8 half of its
    warp's 16.

    columns: of the product, at most 256. dtype: of the operands. turned: both lie along what is not summed, rows of K
    one below the other, in squares of 64 rows side by side; else along K, lines of 128 bytes. zero: sums begin at 0.
    """

    def __init__(
        self, w: Writer, arena: Buffer, columns: int, dtype: str, *, turned: bool = False, zero: bool = False
    ) -> None:
        self.w, self.columns, self.turned = w, columns, turned
        deep, kinds = KINDS[dtype]
        self.name = f"wgmma.mma_async.sync.aligned.m64n{columns}{deep}.f32.{kinds}"
        # Whether either operand is turned, which only instructions for 16 bits can do.
        self.flags = () if dtype == "float32" else (int(turned), int(turned))
        self.acc = w.tile(columns // 8, 2, 2)
        if zero:
            self.acc.fill(tirx.const(0.0, "float32"))
        self.descriptor = w.local(1, "uint64")
        sizes = (units(SQUARE_BYTES), units(8 * ROW_BYTES)) if turned else (1, units(8 * ROW_BYTES))
        at = I.address_of(self.descriptor[0]), arena.ptr_to([0])
        w.do(I.cuda.wgmma.encode_matrix_descriptor(*at, *sizes, SWIZZLED))

    def multiply(self, offset: TirExpr, a_at: Expr, b_at: Expr, more: TirExpr | None = None) -> None:
        """Start a stage's products, and wait for those of the stage before.

        offset: of the stage in shared memory; a_at, b_at: of the operands in it; all in 16 bytes. more: whether there
        are sums already; None: always."""
        w = self.w
        stage = w.bind(self.descriptor[0] + tirx.Cast("uint64", offset))
        w.do(I.ptx.wgmma.fence.sync.aligned())
        for step in range(STEPS):
            further = step * 16 * units(ROW_BYTES) if self.turned else step * 2
            a, b = _further(stage, a_at, further), _further(stage, b_at, further)
            add = tirx.const(1, "int32") if step or more is None else tirx.Cast("int32", more)
            w.do(I.ptx[self.name](*self.acc.flat, a, b, I.ptx.pred(add), 1, 1, *self.flags))
        w.do(I.ptx.wgmma.commit_group.sync.aligned())
        self.wait(1)

    def wait(self, pending: int) -> None:
        """Until all stages but the last `pending` are multiplied."""
        self.w.do(I.ptx.wgmma.wait_group.sync.aligned(pending))


def _further(stage: TirExpr, at: Expr, further: int) -> TirExpr:
    if isinstance(at, int):
        return stage + tirx.const(at + further, "uint64")
    return stage + at + tirx.const(further, "uint64")
