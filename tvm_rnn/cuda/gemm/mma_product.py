"""The products of a warp by mma.sync: tiles of 16 x 8 sums, a step of K at a time out of registers.

In: a kernel's writer, how many tiles a warp has, the dtype of operands. Out: `MmaProduct`: sums, fragments of both
operands for loaders to fill, and the statements that multiply them.

Source: fragments of "mma.m16n8k16" and "mma.m16n8k8": PTX ISA 8.5.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer

INSTRUCTIONS = {
    "bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "float32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}


class MmaProduct:
    """high tiles of 16 rows by broad tiles of 8 columns, all sums 0.

    acc[m, n, half]: a lane's sums in columns 2 (lane % 4) and the next, row lane // 4 + 8 half. a[buffer, m] and
    b[buffer, n]: fragments of a step of 32 bytes of K; `buffers` of them, for loads that run ahead of products.
    """

    def __init__(self, w: Writer, dtype: str, high: int, broad: int) -> None:
        self.w, self.dtype, self.high, self.broad = w, dtype, high, broad
        self.acc = w.tile(high, broad, 2, 2)
        self.acc.fill(tirx.const(0.0, "float32"))

    def take_fragments(self, buffers: int = 1) -> None:
        """Registers for fragments."""
        self.a = self.w.tile(buffers, self.high, 4, dtype="uint32")
        self.b = self.w.tile(buffers, self.broad, 2, dtype="uint32")

    def multiply(self, buffer: int = 0) -> None:
        """Add the products of a step's fragments."""
        for m in range(self.high):
            for n in range(self.broad):
                d = *self.acc[m, n, 0], *self.acc[m, n, 1]
                self.w.do(I.ptx[INSTRUCTIONS[self.dtype]](*d, *self.a[buffer, m], *self.b[buffer, n], *d))
