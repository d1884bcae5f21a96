"""The base of GEMM kernels of weight gradients: which tile of the result, and which rows, a block has.

In: a tile, and operands that lie as rows. Out: a base class for kernel bodies, the kernels' pointers and scalars, and
how many blocks a result is. Rows (steps x batch) are what K is in other products: they are cut into parts, and a part
into pipeline stages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.pointers import arithmetic
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import int64


class BlockTile(Protocol):
    """high x wide: lines and columns of the result that a block has; deep: rows of a stage."""

    @property
    def precision(self) -> str: ...
    @property
    def high(self) -> int: ...
    @property
    def wide(self) -> int: ...
    @property
    def deep(self) -> int: ...
    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor at once."""

    @property
    def threads(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def stage_bytes(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def cluster(self) -> int: ...


def tiles_of(tile: BlockTile, height: int, width: int) -> int:
    """Blocks of a result."""
    return ceil_div(height, tile.high) * ceil_div(width, tile.wide)


def weight_gradient_kernel(
    name: str, tile: BlockTile, pointers: Sequence[tuple[str, str]], body: Callable[[Writer], None]
) -> Kernel:
    """A kernel that writes parts[part, left, m, n] for all rows; scalars: rows, parts.

    pointers: to the operands. One block on a multiprocessor is what registers are for: without that cap the compiler
    ignores setmaxnreg."""

    def run(w: Writer) -> None:
        with flavour(tile.precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            body(w)

    every, scalars = [*pointers, ("sums", arithmetic(tile.precision))], [("rows", "int64"), ("parts", "int64")]
    given = name, every, scalars, run
    return write(*given, threads=tile.threads, shared_bytes=tile.shared_bytes, cluster=tile.cluster)


def pointers_of(operands: Sequence[Operand]) -> list[tuple[str, str]]:
    return [(one.name, one.place.dtype) for one in operands]


class WeightGradientBlock:
    """A block's place: which left operand of `lefts`, where its tile of the result begins, its part of the rows, and
    the stages of that. height, width: of the result."""

    tx: TirExpr
    left: TirExpr
    line: TirExpr
    column: TirExpr
    part: TirExpr

    def __init__(self, w: Writer, tile: BlockTile, lefts: int, height: int, width: int) -> None:
        self.w, self.block, self.lefts, self.height, self.width = w, tile, lefts, height, width

    def _locate(self) -> None:
        """Blocks are numbered across, then down, then by operands, then by parts."""
        w, tile = self.w, self.block
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        blocks = w["parts"] * (self.lefts * down * across)
        cta, self.tx = w.keep(I.cta_id([tirx.Cast("int32", blocks)])), I.thread_id([tile.threads])
        self.column = w.keep(tirx.truncmod(cta, across) * tile.wide)
        self.line = w.keep(tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.left = w.keep(tirx.truncmod(tirx.truncdiv(cta, across * down), self.lefts))
        self.part = w.keep(tirx.Cast("int64", tirx.truncdiv(cta, across * down * self.lefts)))

    def _share_rows(self) -> None:
        """Shared memory, and the stages of this block's part: `count` from `first` on."""
        w, deep = self.w, self.block.deep
        self.arena: Buffer = I.alloc_buffer((self.block.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        stages = tirx.truncdiv(w["rows"] + (deep - 1), int64(deep))
        each = w.keep(tirx.truncdiv(stages + w["parts"] - 1, w["parts"]))
        self.first = w.keep(self.part * each)
        self.count = w.keep(tirx.Cast("int32", tirx.max(tirx.min(stages - self.first, each), 0)))

    def _result(self) -> TirExpr:
        """Which matrix of `sums` this block writes to."""
        return self.part * self.lefts + tirx.Cast("int64", self.left)


class RowOperands(WeightGradientBlock, ABC):
    """A block that copies rows from where they lie: of one of the left operands, and of the right one."""

    def __init__(self, w: Writer, tile: BlockTile, lefts: Sequence[Operand], right: Operand) -> None:
        super().__init__(w, tile, len(lefts), lefts[0].depth, right.depth)
        self.operands, self.right = lefts, right

    def _copy_both(self, stage: TirExpr, row0: TirExpr, right_at: TirExpr) -> None:
        """Start the copies of a stage; right_at: where in it the right operand lies."""
        for n, operand in enumerate(self.operands):
            with self._chosen(n):
                self._copy(operand, stage, row0, self.line, self.block.high)
        self._copy(self.right, stage + right_at, row0, self.column, self.block.wide)

    def _chosen(self, n: int) -> AbstractContextManager[None]:
        return self.w.when(tirx.EQ(self.left, n)) if self.lefts > 1 else nullcontext()

    @abstractmethod
    def _copy(self, operand: Operand, target: TirExpr, row0: TirExpr, first: TirExpr, columns: int) -> None:
        """A stage's rows of an operand, of `columns` from `first` on; zeros where there are none."""
