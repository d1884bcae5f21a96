"""What all GEMM kernels of a group share: pointers, operands, packed order, and how fragments meet the epilogue.

In: from `group_kernels.py`. Out: helpers for the kernel writers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.packed_layout import Fragments, Lanes
from tvm_rnn.graph.scalar_cuda import flavour

from .epilogue import Epilogue, store_chunk
from .operands import Operand

Expr = Any


def int64(value: int) -> Expr:
    return tirx.const(value, "int64")


def uint32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def keep(w: Writer, value: Expr) -> Expr:
    """A value computed here and now: in a register, because TVM's simplifier copies what is only bound to its uses."""
    register = w.local(1, str(value.ty))
    w.store(register, value, 0)
    return register[0]


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

    def finish_fragments(self, w: Writer, row: Expr, tile: tuple[Expr, int], lane: Expr, acc: Any) -> None:
        """The epilogue of 16 rows from `row` on and of all columns of tile = (number, columns)."""
        blocks = tile[1] // self.fragments.block
        for half in range(2):
            at = row + tirx.Cast("int64", lane // 4 + 8 * half)
            for block in range(blocks):
                first = block * (self.fragments.block // 8) * 4 + half * 2
                self.finish_rows(w, at, tile[0] * blocks + block, lane, acc, first)

    def finish_rows(self, w: Writer, row: Expr, block: Expr, lane: Expr, acc: Any, first: int) -> None:
        """The epilogue of one row per group of 4 lanes, and of a block of units; tile n of it is at acc[first + 4n]."""
        span = self.fragments.span

        def value(gate: int, u: int) -> Expr:
            return acc[first + (gate * span + u // 2) * 4 + u % 2]

        row = w.bind(row)
        with w.when(row < w["rows"]):
            self.epilogue.emit(w, row, block * (8 * span) + lane % 4 * (2 * span), 2 * span, value)
