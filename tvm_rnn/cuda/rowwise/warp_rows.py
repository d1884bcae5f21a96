"""One kernel for consecutive pointwise and reduce groups whose rows, or parts of rows, a warp holds in registers.

In: the jobs of a chain, and into how many parts rows fall. Out: a kernel's body. A lane has the same elements of a part
of every value, some side by side, which pass to and from memory together: what one group makes and another reads at the
same element stays where it is, at another one it is made again. Of numbers, of which a part has a few, every lane has
all. Sums are of all lanes, or, of few terms, each lane's own. Only what others read is stored.

Rewrite: for part of warp: store group 1; load; store group 2; ...  -->  for part of warp: group 1, group 2, ...; store
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import gcd, prod

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.script.ir_builder import tirx as I
from tvm.sym import Analyzer

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.pointers import Argument, Place, arithmetic, dense
from tvm_rnn.cuda.layer.row_kernels import FEW_TERMS, WARP, Job, Reads, Values, across_warp, combiner, reduced
from tvm_rnn.graph.graph import Group, Node, reduced_axes
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import wide

from .side_by_side import Word, loaded, stored, word_of

MOST_ELEMENTS = 512  # of a part of a value: 16 registers of each lane
MOST_NUMBERS = 4  # of a part of a value, that every lane has
WARPS = 4  # of a block
# Parts of a warp, of so many elements. One at a time they moved 1.0 TB/s on an H100.
MOST_TOGETHER, FEW_ELEMENTS = 4, 128
SIDE_BY_SIDE = 4  # elements of a lane, at most: 8 bytes in 16 bits


class NotHeld(Exception):
    """A sum is asked for by an index that is spelled otherwise than where it was made."""


def fits(groups: Sequence[Group], parts: int) -> bool:
    """Whether every value of the chain is a few numbers of a part, or some for each lane; and every sum likewise, of
    terms for each lane, or few."""
    if any(group.kind == "reduce" and group.root is None for group in groups):
        return False
    fitting = all(_fits(n) for group in groups for n in (_results(group, parts), _count(group, parts)))
    return fitting and all(_by_lanes(group.root) or _terms(group.root) <= FEW_TERMS for group in groups if group.root)


def several_sums(groups: Sequence[Group], parts: int) -> bool:
    """Whether a part has several sums of a kind, which are known by the index at which they are asked for."""
    return any(group.kind == "reduce" and _results(group, parts) > 1 for group in groups)


def side_by_side(groups: Sequence[Group], parts: int) -> int:
    """Elements that lie side by side of a lane: the same of every value, or what is made would be made again."""
    counts = [n for group in groups for n in (_results(group, parts), _count(group, parts))]
    counts += [_terms(group.root) for group in groups if group.root]
    return gcd(SIDE_BY_SIDE, *(n // WARP for n in counts if n % WARP == 0))


def _fits(count: int) -> bool:
    return count <= MOST_NUMBERS or (count % WARP == 0 and count <= MOST_ELEMENTS)


def _terms(root: Node) -> int:
    return prod(size for _, size in reduced_axes(root))


def _by_lanes(root: Node) -> bool:
    """Whether lanes share the terms of each sum."""
    return _terms(root) % WARP == 0


def _results(group: Group, parts: int) -> int:
    """Elements of a part that a group makes."""
    return prod((group.root or group.nodes[-1]).shape) // parts


def _count(group: Group, parts: int) -> int:
    """Elements of a part that a group makes or reads."""
    return _results(group, parts) * (_terms(group.root) if group.root else 1)


@dataclass
class _Registers(Values):
    """Values of a part, known by the element at which they are asked for, however its index is spelled. sums: what was
    reduced; the number where a part has one. words: what was loaded, and from which element on."""

    analyzer: Analyzer = field(default_factory=Analyzer)
    held: dict[Node, list[tuple[Index, TirExpr]]] = field(default_factory=dict)
    sums: dict[Node, TirExpr | None] = field(default_factory=dict)
    words: dict[Node, list[tuple[TirExpr, list[TirExpr]]]] = field(default_factory=dict)
    lanes: _Lanes | None = None

    def at(self, node: Node, index: Index) -> TirExpr:
        number = self.sums.get(node)
        if number is not None:
            return number
        index = self._simplified(index)
        known = self.held.setdefault(node, [])
        for other, value in known:
            if all(_same(a, b) for a, b in zip(index, other, strict=True)):
                return value
        if node in self.sums:
            raise NotHeld
        known.append((index, self._make(node, index)))
        return known[-1][1]

    def hold(self, node: Node, index: Index, value: TirExpr) -> None:
        """A sum."""
        self.held.setdefault(node, []).append((self._simplified(index), value))

    def _simplified(self, index: Index) -> Index:
        return tuple(i if isinstance(i, int) else self.analyzer.simplify(i) for i in index)

    def _make(self, node: Node, index: Index) -> TirExpr:
        place = self.reads(node) if node in self.pointers else None
        found = None if place is None else self.word(node, place, index)
        if found is None:
            return super()._make(node, index)
        word, first, number = found
        known = self.words.setdefault(node, [])
        values = next((values for other, values in known if _same(first, other)), None)
        if values is None:
            values = loaded(self.writer, self.pointers[node], word, self.row, first)
            known.append((first, values))
        return values[number]

    def word(self, node: Node, place: Place, index: Index) -> tuple[Word, TirExpr, int] | None:
        """Of an element that lies in a word which a lane has as a whole: the word's form, its first element, and which
        of its elements this is."""
        word = None if self.lanes is None else word_of(place, node, self.lanes.together)
        if word is None or self.lanes is None:
            return None
        at = self.analyzer.simplify(dense(node.shape, index))
        rest = self.analyzer.simplify(at - self.lanes.own * self.lanes.together)
        number = _number(self.analyzer.simplify(tirx.floormod(rest, word.elements)))
        if number is None or any(v.same_as(self.lanes.own) for v in tirx.analysis.undefined_vars(rest)):
            return None
        return word, self.analyzer.simplify(at - number), number


@dataclass(frozen=True)
class _Lanes:
    """own: the lane; together: elements of it that lie side by side."""

    own: TirExpr
    together: int


def _same(a: Expr, b: Expr) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return bool(_number(a) is not None and _number(a) == _number(b))
    return bool(tvm_ffi.structural_equal(a, b))


def _number(a: Expr) -> int | None:
    if isinstance(a, int):
        return a
    return int(a.value) if isinstance(a, tirx.IntImm) else None


@dataclass
class _Stored:
    """Of a word that is to be stored: parts: an element's index and value, by its number in the word."""

    job: Job
    argument: Argument
    word: Word
    first: TirExpr
    parts: dict[int, tuple[Index, TirExpr]] = field(default_factory=dict)


@dataclass
class WarpRows:
    """A kernel's body. pointers: of what is read, by node; writes: what is stored."""

    jobs: Sequence[Job]
    parts: int
    pointers: Mapping[Node, str]
    writes: Sequence[Argument]

    @property
    def together(self) -> int:
        """Parts of a warp: of few elements more, whose loads are all under way at once."""
        most = max(_count(job.group, self.parts) for job in self.jobs)
        return max(1, min(MOST_TOGETHER, MOST_TOGETHER * FEW_ELEMENTS // most))

    @cached_property
    def side_by_side(self) -> int:
        return side_by_side([job.group for job in self.jobs], self.parts)

    def body(self, writer: Writer) -> None:
        """A block has WARPS times `together` parts. Behind the last part it is made again."""
        items = writer["rows"] * self.parts
        each = WARPS * self.together
        block = I.cta_id([tirx.Cast("int32", tirx.truncdiv(items + (each - 1), each))])
        thread = writer.keep(I.thread_id([WARPS * WARP]))
        first = writer.keep((wide(block) * WARPS + wide(tirx.truncdiv(thread, WARP))) * self.together)
        lane = writer.keep(tirx.truncmod(thread, WARP))
        self.stores: list[Callable[[], None]] = []  # behind all loads, which may not go past them
        with writer.when(first < items):
            for number in range(self.together):
                self._part(writer, writer.keep(tirx.min(first + number, items - 1)), lane)
            for store in self.stores:
                store()

    def _part(self, w: Writer, item: TirExpr, lane: TirExpr) -> None:
        analyzer, parts = Analyzer(), tirx.const(self.parts, "int64")
        self.w, self.lane = w, lane
        self.open = list[_Stored]()
        row = w.keep(tirx.truncdiv(item, parts)) if self.parts > 1 else item
        self.part: Expr = 0
        if self.parts > 1:
            self.part = w.bind(w.keep(tirx.Cast("int32", tirx.truncmod(item, parts))))
            analyzer.bind(self.part, Range(0, self.parts))
        self.own = w.bind(lane)
        analyzer.bind(self.own, Range(0, WARP))
        given = w, self.jobs[0].precision, row, self._reads(), dict(self.pointers)
        values = _Registers(*given, analyzer=analyzer, lanes=_Lanes(self.own, self.side_by_side))
        for job in self.jobs:
            (self._reduction if job.group.kind == "reduce" else self._pointwise)(job, values)
        self._close(row)

    def _reads(self) -> Reads:
        """Where what was made before the chain lies."""
        return {node: job.reads(node) for job in self.jobs for node in self.pointers if job.reads(node)}.get

    def _turns(self, count: int) -> list[tuple[Expr, int]]:
        """The elements of a part that a thread has: where those that lie side by side begin, and which it is."""
        if count <= MOST_NUMBERS:
            return [(j, 0) for j in range(count)]
        each = self.side_by_side
        starts = (self.own * each + turn * (WARP * each) for turn in range(count // (WARP * each)))
        return [(start, i) for start in starts for i in range(each)]

    def _index(self, j: tuple[Expr, int], shape: Shape) -> Index:
        """The index of an element of the part. Of those side by side only the last one's number differs, where they
        are of one row of the last axis: the analyzer finds that they are a word then."""
        inner = next((size for size in reversed(shape) if size > 1), 1)
        start, more = j if inner % self.side_by_side == 0 else (j[0] + j[1], 0)
        flat: Expr = self.part * (prod(shape) // self.parts) + start
        index: list[Expr] = []
        for size in reversed(shape[1:]):
            index.append(flat % size + more if size > 1 else 0)
            flat, more = flat // size, more if size == 1 else 0
        return tuple(reversed([*index, flat + more])) if shape else ()

    def _pointwise(self, job: Job, values: _Registers) -> None:
        shape = job.group.nodes[-1].shape
        count = prod(shape) // self.parts
        for j in self._turns(count):
            index = self._index(j, shape)
            for node in job.group.nodes:
                values.at(node, index if node.shape else ())
            for node in job.group.stored:
                self._store(job, values, node, index if node.shape else (), count <= MOST_NUMBERS)

    def _reduction(self, job: Job, values: _Registers) -> None:
        root = job.group.root
        assert root is not None
        w, count = self.w, prod(root.shape) // self.parts
        combine, identity = combiner(root)
        extents = tuple(size for _, size in reduced_axes(root))
        found = list[tuple[Index, TirExpr]]()
        for j in self._turns(count):
            index = self._index(j, root.shape)
            total = w.local(1, arithmetic(job.precision))
            w.store(total, tirx.const(identity, total.dtype), 0)
            terms = [j + i for j, i in self._turns(prod(extents))] if _by_lanes(root) else range(prod(extents))
            for k in terms:
                w.store(total, combine(total[0], reduced(values, root, index, _unravelled(k, extents))), 0)
            if _by_lanes(root):
                across_warp(w, total, combine)
            found.append((index, w.keep(total[0])))
        values.sums[root] = found[0][1] if count == 1 else None
        for index, value in found:
            values.hold(root, index, value)
            self._store(job, values, root, index, once=count <= MOST_NUMBERS)

    def _store(self, job: Job, values: _Registers, node: Node, index: Index, once: bool) -> None:
        own = [a for a in self.writes if a.node is node]
        if not own:
            return
        value = values.at(node, index)
        for argument in own:
            place = job.writes(node)[argument.number]
            found = None if once else values.word(node, place, index)
            if found is None:
                self.stores.append(partial(self._one, job, argument, values.row, index, value, once))
                continue
            word, first, number = found
            known = (one for one in self.open if one.argument is argument and _same(one.first, first))
            one = next(known, None)
            if one is None:
                self.open.append(one := _Stored(job, argument, word, first))
            one.parts[number] = index, value

    def _close(self, row: TirExpr) -> None:
        """Store words, and elements by themselves of which the part has not a whole word."""
        for one in self.open:
            if len(one.parts) == one.word.elements:
                every = [one.parts[i][1] for i in range(one.word.elements)]
                self.stores.append(partial(stored, self.w, one.argument.name, one.word, row, one.first, every))
            else:
                for index, value in one.parts.values():
                    self.stores.append(partial(self._one, one.job, one.argument, row, index, value, False))

    def _one(self, job: Job, argument: Argument, row: Expr, index: Index, value: TirExpr, once: bool) -> None:
        with self.w.when(tirx.EQ(self.lane, 0)) if once else nullcontext():
            job.store(self.w, [argument], argument.node, row, index, value)


def _unravelled(k: Expr, extents: Shape) -> Index:
    index: list[Expr] = []
    for size in reversed(extents[1:]):
        index.append(k % size)
        k = k // size
    return tuple(reversed([*index, k]))
