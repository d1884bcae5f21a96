"""The base of GEMM kernels of weight gradients: which tile of the result, and which rows, a block has.

In: a tile, and operands that lie as rows. Out: base classes of tiles and of kernels' bodies. Rows (steps x batch) are
what K is in other products: they are cut into parts, and a part into pipeline stages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
    of which the sums over rows are made too, as biases' gradients are. together: left operands that a block multiplies
    with its part of the right one, which it reads once for all of them. beside: a head's results lie beside each other,
    else those of a left operand."""

    precision: str
    high: int
    wide: int
    _: KW_ONLY
    resident: int = 1
    heads: int = 1
    vectors: int = 1
    turned: bool = False
    totals: tuple[int, ...] = ()
    together: int = 1
    beside: bool = False

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
        return ceil_div(lefts, self.together) * self.heads * ceil_div(height, self.high) * ceil_div(width, self.wide)

    @abstractmethod
    def body(self, w: Writer, lefts: Sequence[Operand], rights: Sequence[Operand]) -> WeightGradientBlock: ...

    def pointers(self, lefts: Sequence[Operand], rights: Sequence[Operand]) -> list[tuple[str, str]]:
        """To the operands."""
        return [(one.name, one.place.dtype) for one in (*lefts, *rights)]

    def kernel(self, name: str, lefts: Sequence[Operand], *rights: Operand) -> Kernel:
        """sums[right, part, left, head, m, n], or [right, part, head, left, m, n], of `lefts` (of one depth) with
        `rights` (likewise), each of which is for its equal part of `lefts`, in order, for all rows; and totals[part, n,
        head, m] of the left operands that `totals` names; scalars: rows, parts."""
        made = ("sums", "totals") if self.totals else ("sums",)
        pointers = [*self.pointers(lefts, rights), *((name, arithmetic(self.precision)) for name in made)]
        scalars = [("rows", "int64"), ("parts", "int64")]
        return self.write(name, self.precision, pointers, scalars, lambda w: self.body(w, lefts, rights))


class WeightGradientBlock(Stages):
    """A block's place: which left operands, where its tile of the result begins, its part of the rows, and the stages
    of that. height, width: of the result; groups: of left operands that are multiplied together."""

    tile: WeightGradientTile

    def __init__(
        self, w: Writer, tile: WeightGradientTile, lefts: Sequence[Operand], rights: Sequence[Operand]
    ) -> None:
        assert len(lefts) % (tile.together * len(rights)) == 0
        self.w, self.tile, self.rights = w, tile, rights
        self.operands = [lefts[n : n + tile.together] for n in range(0, len(lefts), tile.together)]
        self.lefts, self.groups = len(lefts), len(self.operands)
        self.height, self.width = lefts[0].depth, rights[0].depth

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
        blocks = w["parts"] * (self.groups * tile.heads * down * across)
        cta = w.keep(I.cta_id([tirx.Cast("int32", blocks)]))
        self.column = w.keep(tirx.truncmod(cta, across) * tile.wide)
        self.line = w.keep(tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.head: TirExpr = tirx.const(0, "int32")
        if tile.heads > 1:
            self.head = w.keep(tirx.truncmod(tirx.truncdiv(cta, across * down), tile.heads))
        results = across * down * tile.heads
        self.group = w.keep(tirx.truncmod(tirx.truncdiv(cta, results), self.groups))
        self.part = w.keep(wide(tirx.truncdiv(cta, results * self.groups)))
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

    def _result(self, number: int = 0) -> TirExpr:
        """Which matrix of `sums` this block writes to, of the number-th of its left operands."""
        tile, each = self.tile, self.lefts // len(self.rights)
        left, part = wide(self.group * tile.together + number), self.part
        if len(self.rights) > 1:
            part = tirx.truncdiv(left, int64(each)) * self.w["parts"] + part
            left = tirx.truncmod(left, int64(each))
        if tile.heads == 1:
            return part * each + left
        head = wide(self.head)
        return (part * tile.heads + head) * each + left if tile.beside else (part * each + left) * tile.heads + head

    def _copy_both(self, stage: TirExpr, row0: TirExpr) -> None:
        """Start the copies of a stage: rows from where they lie."""
        each = self.tile.right_at // self.tile.together
        for number, group in enumerate(self.operands):
            with self._of(number, self.groups):
                for n, operand in enumerate(group):
                    self._copy(operand, stage + uint32(n * each), row0, self.line, self.tile.high)
        for number, right in enumerate(self.rights):
            with self._of(number, len(self.rights)):
                self._copy(right, stage + uint32(self.tile.right_at), row0, self.column, self.tile.wide)

    def _of(self, number: int, count: int) -> AbstractContextManager[None]:
        """Statements for blocks of the number-th of so many equal parts of the groups."""
        own = self.group if count == self.groups else tirx.truncdiv(self.group, self.groups // count)
        return self.w.when(tirx.EQ(own, number)) if count > 1 else nullcontext()

    def _copy(self, operand: Operand, target: TirExpr, row0: TirExpr, first: TirExpr, columns: int) -> None:
        """A stage's rows of an operand, of `columns` from `first` on; zeros where there are none."""
        raise NotImplementedError
