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
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, uint32, wide

Found = tuple[TirExpr, TirExpr]  # a place in an array, and whether the result has it


@dataclass(frozen=True)
class WeightGradientTile(BlockTile):
    """high x wide: lines and columns of the result that a block has; resident: blocks on a multiprocessor at once;
    heads: results that lie beside each other, as their operands do; vectors: of a row of either operand, over which a
    product sums as it does over rows; turned: results are stored with a line for each column. totals: for each array of
    them the left operands of which the sums over rows are made too, as biases' gradients are. together: left operands
    that a block multiplies with its part of the right one, which it reads once for all of them. beside: a head's
    results lie beside each other, else those of a left operand. adds: parts of the rows of which a cluster's blocks add
    the sums up."""

    precision: str
    high: int
    wide: int
    _: KW_ONLY
    resident: int = 1
    heads: int = 1
    vectors: int = 1
    turned: bool = False
    totals: tuple[tuple[int, ...], ...] = ()
    together: int = 1
    beside: bool = False
    adds: int = 1

    @property
    def compute(self) -> str:
        return storage(self.precision)

    @property
    def in_cluster(self) -> int:
        return max(self.cluster, self.adds)

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
        """sums[part, left, head, m, n], or [part, head, left, m, n], of `lefts` (of one depth) with `rights`
        (likewise), each of which is for its equal part of `lefts`, in order, and has an array of its own, for all rows;
        and arrays of totals[part, n, head, m], or [part, head, n, m], of the left operands that `totals` names;
        scalars: rows, parts, and whether sums are added to what is there. What is added up counts as one part."""
        made = [*numbered("sums", len(rights)), *numbered("totals", len(self.totals))]
        pointers = [*self.pointers(lefts, rights), *((name, arithmetic(self.precision)) for name in made)]
        scalars = [("rows", "int64"), ("parts", "int64"), ("add", "int32")]
        return self.write(name, self.precision, pointers, scalars, lambda w: self.body(w, lefts, rights))


def numbered(name: str, count: int) -> list[str]:
    """The names of so many arrays of one kind."""
    return [name] if count == 1 else [f"{name}{n}" for n in range(count)]


class WeightGradientBlock(Stages):
    """A block's place: which left operands, where its tile of the result begins, its part of the rows, and the stages
    of that. height, width: of the result; groups: of left operands that are multiplied together; written: which part of
    the results it writes, of so many as are not added up in a cluster."""

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
        """Blocks are numbered across, then down, then by heads, then by operands, then by parts; clusters of parts that
        are added up come first."""
        w, tile = self.w, self.tile
        down, across = ceil_div(self.height, tile.high), ceil_div(self.width, tile.wide)
        blocks = tirx.Cast("int32", w["parts"] * (self.groups * tile.heads * down * across))
        if tile.adds == 1:
            cta = w.keep(I.cta_id([blocks]))
        else:
            first, rank = I.cluster_id([tirx.truncdiv(blocks, tile.adds)]), I.cta_id_in_cluster([tile.adds])
            cta, self.rank = w.keep(first), w.keep(rank)
        self.column = w.keep(tirx.truncmod(cta, across) * tile.wide)
        self.line = w.keep(tirx.truncmod(tirx.truncdiv(cta, across), down) * tile.high)
        self.head: TirExpr = tirx.const(0, "int32")
        if tile.heads > 1:
            self.head = w.keep(tirx.truncmod(tirx.truncdiv(cta, across * down), tile.heads))
        results = across * down * tile.heads
        self.group = w.keep(tirx.truncmod(tirx.truncdiv(cta, results), self.groups))
        self.written = self.part = w.keep(wide(tirx.truncdiv(cta, results * self.groups)))
        if tile.adds > 1:
            self.part = w.keep(self.written * tile.adds + wide(self.rank))
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
        """Which matrix of its right operand's sums this block writes to, of the number-th of its left operands."""
        tile, each = self.tile, self.lefts // len(self.rights)
        left = wide(self.group * tile.together + number)
        return self._matrix(tirx.truncmod(left, int64(each)) if len(self.rights) > 1 else left, each)

    def _matrix(self, left: Expr, each: int) -> TirExpr:
        """Which one of an array's that has so many for a head and a part of the rows."""
        tile, part, head = self.tile, self.written, wide(self.head)
        if tile.heads == 1:
            return part * each + left
        return (part * tile.heads + head) * each + left if tile.beside else (part * each + left) * tile.heads + head

    def _store_sums(self, name: str, places: Sequence[Found], values: Sequence[TirExpr]) -> None:
        """Values, of which each place has one or two, as they are or added to what is there: that is asked for before
        the first is stored."""
        w, array = self.w, self.w[name]
        each, dtype = len(values) // len(places), arithmetic(self.tile.precision)
        there = w.tile(len(values), dtype=dtype)
        there.fill(tirx.const(-0.0, dtype))  # which changes no number
        with w.when(tirx.NE(w["add"], tirx.const(0, "int32"))):
            for n, (at, inside) in enumerate(places):
                with w.when(inside):
                    if each == 2:
                        w.do(I.ptx["ld.global.v2.f32"](*there.flat[2 * n : 2 * n + 2], array.ptr_to([at])))
                    else:
                        there.store(array[at], n)
        found = [there.flat[n] + value for n, value in enumerate(values)]
        for n, (at, inside) in enumerate(places):
            with w.when(inside):
                if each == 2:
                    w.do(I.ptx["st.global.v2.f32"](array.ptr_to([at]), *found[2 * n : 2 * n + 2]))
                else:
                    w.store(array, found[n], at)

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
