"""The base of GEMM kernels of weight gradients: which tile of the result, and which rows, a block has.

In: a tile, and operands that lie as rows. Out: base classes of tiles and of kernels' bodies. Rows (steps x batch) are
what K is in other products: they are cut into parts, and a part into pipeline stages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.pipeline_barriers import BlockTile, Stages
from tvm_rnn.cuda.layer.pointers import arithmetic, storage
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import int64, uint32, wide


@dataclass(frozen=True)
class WeightGradientTile(BlockTile):
    """high x wide: lines and columns of the result that a block has; resident: blocks on a multiprocessor at once;
    heads: results that lie beside each other, as their operands do; vectors: of a row of either operand, over which a
    product sums as it does over rows; turned: results are stored with a line for each column. totals: the left operands
    of which the sums over rows are made too, as biases' gradients are."""

    precision: str
    high: int
    wide: int
    _: KW_ONLY
    resident: int = 1
    heads: int = 1
    vectors: int = 1
    turned: bool = False
    totals: tuple[int, ...] = ()

    @property
    def compute(self) -> str:
        return storage(self.precision)

    @property
    @abstractmethod
    def deep(self) -> int:
        """Rows of a stage."""

    @property
    @abstractmethod
    def right_at(self) -> int:
        """Where the right operand lies in a stage."""

    def tiles(self, lefts: int, height: int, width: int) -> int:
        """Of one part of the rows."""
        return lefts * self.heads * ceil_div(height, self.high) * ceil_div(width, self.wide)

    @abstractmethod
    def body(self, w: Writer, lefts: Sequence[Operand], right: Operand) -> WeightGradientBlock: ...

    def pointers(self, lefts: Sequence[Operand], right: Operand) -> list[tuple[str, str]]:
        """To the operands."""
        return [(one.name, one.place.dtype) for one in (*lefts, right)]

    def kernel(self, name: str, lefts: Sequence[Operand], right: Operand) -> Kernel:
        """sums[part, left, head, m, n] of `lefts` (of one depth) with `right`, for all rows, and totals[part, n, head,
        m] of the left operands that `totals` names; scalars: rows, parts."""
        made = ("sums", "totals") if self.totals else ("sums",)
        pointers = [*self.pointers(lefts, right), *((name, arithmetic(self.precision)) for name in made)]
        scalars = [("rows", "int64"), ("parts", "int64")]
        return self.write(name, self.precision, pointers, scalars, lambda w: self.body(w, lefts, right))


class WeightGradientBlock(Stages):
    """A block's place: which left operand, where its tile of the result begins, its part of the rows, and the stages of
    that. height, width: of the result."""

    tile: WeightGradientTile

    def __init__(self, w: Writer, tile: WeightGradientTile, lefts: Sequence[Operand], right: Operand) -> None:
        self.w, self.tile, self.operands, self.right = w, tile, lefts, right
        self.lefts, self.height, self.width = len(lefts), lefts[0].depth, right.depth

    def run(self) -> None:
        self._locate()
        self._share_rows()
        self._work()

    @abstractmethod
    def _work(self) -> None:
        """Multiply, and store the sums."""

    def _locate(self) -> None:
        """Blocks are numbered across, then down, then by heads, then by operands, then by parts."""
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        blocks = w["parts"] * (self.lefts * tile.heads * down * across)
        cta = w.keep(I.cta_id([tirx.Cast("int32", blocks)]))
        self.column = w.keep(tirx.truncmod(cta, across) * tile.wide)
        self.line = w.keep(tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.head: TirExpr = tirx.const(0, "int32")
        if tile.heads > 1:
            self.head = w.keep(tirx.truncmod(tirx.truncdiv(cta, across * down), tile.heads))
        results = across * down * tile.heads
        self.left = w.keep(tirx.truncmod(tirx.truncdiv(cta, results), self.lefts))
        self.part = w.keep(wide(tirx.truncdiv(cta, results * self.lefts)))
        self.there: TirExpr = tirx.const(True, "bool")  # whether the tile is one of the result

    def _share_rows(self) -> None:
        """Shared memory, and the stages of this block's part: `count` from `first` on."""
        w, deep = self.w, self.tile.deep
        self._allocate()
        self.rows = w["rows"] if self.tile.vectors == 1 else w.keep(w["rows"] * self.tile.vectors)
        stages = tirx.truncdiv(self.rows + (deep - 1), int64(deep))
        each = w.keep(tirx.truncdiv(stages + w["parts"] - 1, w["parts"]))
        self.first = w.keep(self.part * each)
        self.count = w.keep(tirx.Cast("int32", tirx.max(tirx.min(stages - self.first, each), 0)))

    def _result(self) -> TirExpr:
        """Which matrix of `sums` this block writes to."""
        found = self.part * self.lefts + wide(self.left)
        return found if self.tile.heads == 1 else found * self.tile.heads + wide(self.head)

    def _copy_both(self, stage: TirExpr, row0: TirExpr) -> None:
        """Start the copies of a stage: rows from where they lie."""
        for n, operand in enumerate(self.operands):
            with self.w.when(tirx.EQ(self.left, n)) if self.lefts > 1 else nullcontext():
                self._copy(operand, stage, row0, self.line, self.tile.high)
        self._copy(self.right, stage + uint32(self.tile.right_at), row0, self.column, self.tile.wide)

    def _copy(self, operand: Operand, target: TirExpr, row0: TirExpr, first: TirExpr, columns: int) -> None:
        """A stage's rows of an operand, of `columns` from `first` on; zeros where there are none."""
        raise NotImplementedError
