"""What all GEMM kernels of a group share: pointers, operands, packed order, and how fragments meet the epilogue.

In: from `group_kernels.py`. Out: helpers for the kernel writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.layer.packed_layout import Fragments, Lanes
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Expr, TirExpr

from .epilogue import Epilogue, store_chunk
from .operands import Operand


def int64(value: int) -> TirExpr:
    return tirx.const(value, "int64")


@dataclass(frozen=True)
class Problem:
    """One gemm group for one precision. compute: the dtype of operands in registers."""

    precision: str
    compute: str
    operands: tuple[Operand, ...]
    layout: Fragments | Lanes
    epilogue: Epilogue
    pointers: tuple[tuple[str, str], ...]
    scalars: tuple[tuple[str, str], ...] = (("rows", "int64"),)

    @property
    def fragments(self) -> Fragments:
        assert isinstance(self.layout, Fragments)
        return self.layout

    @property
    def gates(self) -> int:
        return self.epilogue.gates

    @property
    def arithmetic(self) -> str:
        return self.epilogue.dtype

    def flavour(self) -> AbstractContextManager[None]:
        return flavour(self.precision)

    def weight_name(self, number: int) -> str:
        return f"w{number}"

    def aligned(self, w: Writer, operand: Operand) -> Expr:
        """Whether the pointer of an operand is a multiple of what is copied at a time."""
        # Not tirx.reinterpret: a pass that TVM runs for GPUs before sm_90 takes no pointer there.
        pointer = w[operand.name].ptr_to([0])
        address = tirx.call_pure_extern("uint64", "reinterpret_cast<uint64_t>", pointer)
        return (address & tirx.const(max(1, operand.piece(self.compute)) - 1, "uint64")) == tirx.const(0, "uint64")

    def store_chunk(self, w: Writer, target: Expr, operand: Operand, row: Expr, valid: Expr, first: Expr) -> None:
        """16 bytes of a row from element `first` on into shared memory, read one by one; zeros where there are none."""
        store_chunk(w, target, operand, row, valid, first, self.compute)

    def finish_fragments(
        self, w: Writer, row: TirExpr, tile: tuple[TirExpr, int], lane: TirExpr, acc: RegisterTile
    ) -> None:
        """The epilogue of 16 rows from `row` on and of all columns of tile = (number, columns). acc[n, half]: a lane's
        sums of 8 columns, in the first or second 8 rows."""
        blocks, wide = tile[1] // self.fragments.block, self.fragments.block // 8
        for half in range(2):
            at = row + tirx.Cast("int64", lane // 4 + 8 * half)
            for block in range(blocks):
                pairs = [acc[block * wide + n, half] for n in range(wide)]
                self.finish_rows(w, at, tile[0] * blocks + block, lane, pairs)

    def finish_rows(
        self, w: Writer, row: TirExpr, block: TirExpr, lane: TirExpr, pairs: Sequence[Sequence[TirExpr]]
    ) -> None:
        """The epilogue of one row per group of 4 lanes, and of a block of units; pairs: a lane's two sums of every 8
        columns."""
        span = self.fragments.span

        def value(gate: int, u: int) -> TirExpr:
            return pairs[gate * span + u // 2][u % 2]

        row = w.bind(row)
        with w.when(row < w["rows"]):
            self.epilogue.emit(w, row, block * (8 * span) + lane % 4 * (2 * span), 2 * span, value)
