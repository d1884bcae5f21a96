"""One kernel for consecutive pointwise and reduce groups: a block per row, or a warp where there is little to do for
one, the groups one after the other. Where parts of a row (heads) read nothing of one another, each part is such a row.

In: groups without products, and where their values lie. Out: `Rows`, as of a single group. What one group stores and a
later one reads passes through memory and a barrier of the row's threads; a launch would cost more than either.

Rewrite: launch group 1; launch group 2; ...  -->  one launch: for row of threads: group 1; barrier; group 2; ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.layer.pointers import Argument, Place, arithmetic
from tvm_rnn.cuda.layer.row_kernels import (
    WARP,
    Job,
    Rows,
    Values,
    across_warp,
    by_warps,
    combiner,
    finish_group,
    reduced,
    sources,
    unravel,
)
from tvm_rnn.graph.graph import Group, Node, reduced_axes
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

from .parts_of_rows import every_parts_of_rows, parts_of_rows
from .warp_rows import WARPS, NotHeld, WarpRows, fits, several_sums, side_by_side

JOINED = ("pointwise", "reduce")  # kinds of groups
MOST_WORK = 1 << 14  # elements of a group per row: beyond, one block per row leaves too much of the GPU idle
FEW = 2  # results of a reduction that the whole block makes
MOST_THREADS, ELEMENTS_PER_THREAD = 1024, 4
# Elements of a long reduction that a thread asks for before it combines the first: one at a time each waits for memory.
# The largest of 32,000 numbers took 32 such waits.
ASKED = 8
HELD = 32  # of one that fits into registers: all, and what the next reductions read of the same places is there


def work_of(group: Group) -> int:
    """Elements that a group computes or reads for one row."""
    root = group.root
    size = prod(group.nodes[-1].shape)
    return size * prod(extent for _, extent in reduced_axes(root)) if group.kind == "reduce" and root else size


def chained_groups(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by launches, each behind what it reads: consecutive ones of one region together where one kernel may
    run them, and chains of rows that are held in registers with what is between them before or behind both: what both
    read is read once then, and what one hands to the other is not loaded."""
    found: list[list[Group]] = []
    for group in groups:
        last = found[-1] if found else []
        if _joins(group) and last and _joins(last[-1]) and last[-1].region == group.region:
            last.append(group)
        else:
            found.append([group])
    stored = {node for group in groups for node in group.stored}
    at = 0
    while at < len(found):
        at = 0 if _meet(found, at, stored) else at + 1
    return found


def _meet(found: list[list[Group]], at: int, stored: Collection[Node]) -> bool:
    """Let a chain of what is made before the steps join the last one before it, if it may."""
    first = next((n for n in reversed(range(at)) if _early(found[n])), None) if _early(found[at]) else None
    if first is None or any(group.region != "before" for chain in found[first:at] for group in chain):
        return False
    one, other, between = found[first], found[at], [group for chain in found[first + 1 : at] for group in chain]
    if not _held_together(one, other):
        return False
    if not _read(other, between, stored):
        found[first], found[at : at + 1] = [*one, *other], []
    elif not _read(between, one, stored):
        found[at], found[first : first + 1] = [*one, *other], []
    else:
        return False
    return True


def _early(chain: Sequence[Group]) -> bool:
    return chain[0].region == "before" and all(map(_joins, chain))


def _read(groups: Sequence[Group], others: Sequence[Group], stored: Collection[Node]) -> bool:
    """Whether groups read, or copy, what others store."""
    nodes = [node for group in groups for node in group.nodes]
    found = {*nodes, *sources([a for node in nodes for a in node.args], stored.__contains__)}
    return any(node in found for group in others for node in group.stored)


def _held_together(one: Sequence[Group], other: Sequence[Group]) -> bool:
    """Whether a warp has all of a part in registers, of either chain and of both."""
    whole = [*one, *other]
    stored = {node for group in whole for node in group.stored}
    copies = any(node.leaf for group in whole for node in group.nodes)
    return not copies and all(held_parts(chain, stored) for chain in (one, other, whole))


def held_parts(groups: Sequence[Group], stored: Collection[Node] = ()) -> list[int]:
    """Numbers of parts of which a warp holds one, the best first: those whose lanes have most elements side by side.
    stored: what the groups store and read again."""
    every = every_parts_of_rows(groups, stored, max(map(work_of, groups)))
    held = [parts for parts in every if fits(groups, parts)]
    return sorted(held, key=lambda parts: -side_by_side(groups, parts))


def _joins(group: Group) -> bool:
    """Whether a block can have a row of it for itself: where there is little to do for one, and where all of it makes
    a number or two, for which the other way is a warp."""
    few = group.kind == "reduce" and group.root is not None and prod(group.root.shape) <= FEW
    return few or (group.kind in JOINED and work_of(group) <= MOST_WORK)


def held(group: Group, elsewhere: frozenset[Node]) -> bool:
    """Whether warps hold parts of a row of a group alone, of all rows: they move several elements at a time."""
    if group.region == "step" or elsewhere or not _joins(group):
        return False
    return bool(held_parts([group]))


@dataclass
class _ChainedGroups:
    """A kernel under construction: the jobs, their pointers, and which nodes lie where."""

    name: str
    jobs: list[Job]
    early: bool

    def __post_init__(self) -> None:
        self.writes: list[Argument] = []
        self.reads: dict[Node, Argument] = {}
        self.made: dict[Node, str] = {}  # what the chain itself stores -> the pointer of its first place
        dtypes: dict[str, str] = {}
        for job in self.jobs:
            for argument in job.arguments(job.group.nodes):
                if argument.role == "write":
                    new = Argument(f"w{len(self.writes)}", "write", argument.node, argument.number)
                    self.writes.append(new)
                    dtypes[new.name] = job.dtype(new)
                    if not new.number and new.node not in job.elsewhere:
                        self.made[new.node] = new.name
                elif argument.node not in self.made and argument.node not in self.reads:
                    new = Argument(f"r{len(self.reads)}", "read", argument.node)
                    self.reads[new.node] = new
                    dtypes[new.name] = job.dtype(new)
        self.arguments = (*self.reads.values(), *self.writes)
        self.pointers = [(a.name, dtypes[a.name]) for a in self.arguments]
        most = max(work_of(job.group) for job in self.jobs)
        self.parts = parts_of_rows(self.groups, self.made, most)
        most //= self.parts
        found = min(MOST_THREADS, -(-most // (ELEMENTS_PER_THREAD * WARP)) * WARP)
        self.threads = WARP if found <= 2 * WARP else found  # of a row

    def kernel(self, needed: Callable[[Node], bool]) -> Rows:
        """needed: whether a value is read by others than the chain."""
        precision, writes = self.jobs[0].precision, [a for a in self.writes if needed(a.node)]
        copied = any(job.elsewhere for job in self.jobs)
        for parts in () if copied else held_parts(self.groups, self.made):
            found = self._in_registers(parts, writes)
            with suppress(NotHeld):
                return written(found) if several_sums(self.groups, parts) else found
        with flavour(precision):
            threads = self.threads * (WARPS if self.threads == WARP else 1)
            given = self.name, self.pointers, [("rows", "int64")], self._body
            made = write(*given, threads=threads, shares=True, early=self.early)
        return Rows(made, self.arguments)

    @property
    def groups(self) -> list[Group]:
        return [job.group for job in self.jobs]

    def _in_registers(self, parts: int, writes: Sequence[Argument]) -> Rows:
        """The kernel where a warp holds all of a part. writes: what is stored."""
        names = {node: a.name for node, a in self.reads.items()}
        own = WarpRows(self.jobs, parts, names, writes)
        dtypes = dict(self.pointers)
        arguments = (*self.reads.values(), *writes)
        given = self.name, [(a.name, dtypes[a.name]) for a in arguments], [("rows", "int64")], own.body
        with flavour(self.jobs[0].precision):
            return Rows(write(*given, threads=WARPS * WARP, early=self.early), arguments)

    def _body(self, writer: Writer) -> None:
        if self.threads == WARP:
            items = writer["rows"] * self.parts
            block = I.cta_id([tirx.Cast("int32", tirx.truncdiv(items + (WARPS - 1), WARPS))])
            thread = writer.keep(I.thread_id([WARPS * WARP]))
            item = writer.keep(wide(block) * WARPS + wide(tirx.truncdiv(thread, WARP)))
            self._place(writer, item)
            self.thread = writer.keep(tirx.truncmod(thread, WARP))
            with writer.when(item < items):
                self._groups(writer)
            return
        self._place(writer, wide(I.cta_id([tirx.Cast("int32", writer["rows"] * self.parts)])))
        self.thread = I.thread_id([self.threads])
        if any(job.group.kind == "reduce" for job in self.jobs):
            dtype = arithmetic(self.jobs[0].precision)
            self.partial = I.alloc_buffer((self.threads // WARP,), dtype, scope="shared")
        self._groups(writer)

    def _place(self, writer: Writer, item: Expr) -> None:
        """The row, and the part of it."""
        self.row: Expr = item
        self.part: Expr = tirx.const(0, "int32")
        if self.parts > 1:
            parts = tirx.const(self.parts, "int64")
            self.row = writer.keep(tirx.truncdiv(item, parts))
            self.part = writer.keep(tirx.Cast("int32", tirx.truncmod(item, parts)))

    def _meet(self, writer: Writer) -> None:
        """All threads of the row, which see what each of them stored."""
        writer.do(I.cuda.warp_sync() if self.threads == WARP else I.cuda.cta_sync())

    def _groups(self, writer: Writer) -> None:
        self.held: dict[tuple[Node, Index], TirExpr] = {}  # what is in registers
        self.places: dict[
            Shape, list[tuple[Expr, Index]]
        ] = {}  # of long reductions: a thread's, in axes of these sizes
        fresh: set[Node] = set()  # stored since the last barrier
        for job in self.jobs:
            read = {a.node for a in job.arguments(job.group.nodes) if a.role == "read"}
            if read & fresh:
                self._meet(writer)
                fresh.clear()
            (self._reduction if job.group.kind == "reduce" else self._pointwise)(writer, job)
            fresh.update(job.group.stored)

    def _values(self, writer: Writer, job: Job) -> Values:
        pointers = {a.node: a.name for a in self.reads.values()}
        inside = set(job.group.nodes) - job.elsewhere
        pointers |= {node: name for node, name in self.made.items() if node not in inside}
        return Values(writer, job.precision, self.row, job.reads, pointers, known=dict(self.held))

    def _own(self, job: Job) -> list[Argument]:
        return [a for a in self.writes if a.node in job.group.stored and job.writes(a.node)]

    @contextmanager
    def _each(self, writer: Writer, size: int, start: Expr, step: int) -> Iterator[Expr]:
        """for i = start; i < size; i += step"""
        turns = -(-size // step)
        if turns == 1:
            with writer.when(start < size):
                yield start
            return
        with writer.loop(turns) as turn:
            i = writer.keep(turn * step + start)
            with writer.when(i < size):
                yield i

    def _pointwise(self, writer: Writer, job: Job) -> None:
        shape = job.group.nodes[-1].shape
        with self._each(writer, prod(shape) // self.parts, self.thread, self.threads) as j:
            finish_group(job, self._values(writer, job), self._own(job), self._index(writer, j, shape))

    # --- reductions ------------------------------------------------------------------------------------------------

    def _reduction(self, writer: Writer, job: Job) -> None:
        root = job.group.root
        assert root is not None
        outputs = prod(root.shape) // self.parts

        def finish(j: Expr, total: Expr) -> None:
            index = self._index(writer, j, root.shape)
            job.store(writer, self._own(job), root, self.row, index, total)

        if not by_warps(root) and outputs >= WARP:  # a thread for each result: neighbours read neighbours
            with self._each(writer, outputs, self.thread, self.threads) as j:
                finish(j, self._sum(writer, job, j, tirx.const(0, "int32"), 1)[0])
        elif outputs <= FEW:  # all threads for each
            terms = prod(size for _, size in reduced_axes(root))
            hold = 2 * ASKED * self.threads <= terms <= HELD * self.threads
            for j in range(outputs):
                total = (
                    self._sum_of_held(writer, job, j) if hold else self._sum(writer, job, j, self.thread, self.threads)
                )
                self._over_block(writer, root, total)
                self.held[root, self._index(writer, j, root.shape)] = writer.keep(total[0])
                with writer.when(tirx.EQ(self.thread, 0)):
                    finish(j, total[0])
        else:  # a warp for each
            lane = writer.keep(tirx.truncmod(self.thread, WARP))
            warp = writer.keep(tirx.truncdiv(self.thread, WARP))
            with self._each(writer, outputs, warp, self.threads // WARP) as j:
                total = self._sum(writer, job, j, lane, WARP)
                across_warp(writer, total, combiner(root)[0])
                with writer.when(tirx.EQ(lane, 0)):
                    finish(j, total[0])

    def _sum(self, writer: Writer, job: Job, j: Expr, first: Expr, step: int) -> Buffer:
        """A register with this thread's part of result j: elements first, first + step, ..."""
        root, dtype = job.group.root, arithmetic(job.precision)
        assert root is not None
        combine, identity = combiner(root)
        total = writer.local(1, dtype)
        writer.store(total, tirx.const(identity, dtype), 0)
        extents = tuple(size for _, size in reduced_axes(root))
        index, count = self._index(writer, j, root.shape), prod(extents)

        def element(k: Expr) -> Expr:
            return reduced(self._values(writer, job), root, index, unravel(writer, k, extents))

        if count < 2 * ASKED * step:
            with self._each(writer, count, first, step) as k:
                writer.store(total, combine(total[0], element(k)), 0)
            return total
        with writer.loop(-(-count // (ASKED * step))) as turn:
            places = [writer.keep((turn * ASKED + u) * step + first) for u in range(ASKED)]
            values = [writer.keep(element(writer.keep(tirx.Min(k, count - 1)))) for k in places]
            for k, value in zip(places, values, strict=True):
                own = tirx.Select(k < count, value, tirx.const(identity, dtype))
                writer.store(total, combine(total[0], own), 0)
        return total

    def _sum_of_held(self, writer: Writer, job: Job, j: int) -> Buffer:
        """The same of all threads, each of which holds all elements that it reads."""
        root, dtype = job.group.root, arithmetic(job.precision)
        assert root is not None
        combine, identity = combiner(root)
        extents = tuple(size for _, size in reduced_axes(root))
        index, count, values = self._index(writer, j, root.shape), prod(extents), self._values(writer, job)
        if extents not in self.places:
            every = [writer.keep(u * self.threads + self.thread) for u in range(-(-count // self.threads))]
            last = writer.keep(tirx.Min(every[-1], count - 1))
            self.places[extents] = [(k, unravel(writer, k, extents)) for k in [*every[:-1], last]]
        elements = [writer.keep(reduced(values, root, index, place)) for _, place in self.places[extents]]
        given = {node for node in values.pointers if node not in self.made}
        self.held |= {key: value for key, value in values.known.items() if key[0] in given}
        inside = (len(elements) - 1) * self.threads + self.thread < count
        elements[-1] = tirx.Select(inside, elements[-1], tirx.const(identity, dtype))
        total = writer.local(1, dtype)
        writer.store(total, elements[0], 0)
        for value in elements[1:]:
            writer.store(total, combine(total[0], value), 0)
        return total

    def _index(self, writer: Writer, j: Expr, shape: tuple[int, ...]) -> Index:
        """The index of element j of the part."""
        if self.parts > 1:
            if shape[0] != self.parts:  # reshaped
                return unravel(writer, writer.keep(self.part * (prod(shape) // self.parts) + j), shape)
            return (self.part, *self._whole_index(writer, j, shape[1:]))
        return self._whole_index(writer, j, shape)

    @staticmethod
    def _whole_index(writer: Writer, j: Expr, shape: tuple[int, ...]) -> Index:
        return tuple(int(i) for i in np.unravel_index(j, shape)) if isinstance(j, int) else unravel(writer, j, shape)

    def _over_block(self, writer: Writer, root: Node, total: Buffer) -> None:
        """The result of all threads' parts, in every thread, in one order whatever runs first."""
        combine, identity = combiner(root)
        across_warp(writer, total, combine)
        if self.threads == WARP:
            return
        writer.do(I.cuda.cta_sync())  # the array may still be read for the result before
        with writer.when(tirx.EQ(tirx.truncmod(self.thread, WARP), 0)):
            writer.store(self.partial, total[0], tirx.truncdiv(self.thread, WARP))
        writer.do(I.cuda.cta_sync())
        warps = self.threads // WARP  # each warp combines what all have
        lane = writer.keep(tirx.truncmod(self.thread, WARP))
        writer.store(total, self.partial[tirx.Min(lane, warps - 1)], 0)
        if warps < WARP:
            writer.store(total, tirx.Select(lane < warps, total[0], tirx.const(identity, total.dtype)), 0)
        across_warp(writer, total, combine)


def written(rows: Rows) -> Rows:
    """The same, whose statements are made now. Raises NotHeld."""
    assert rows.kernel.func is not None
    return rows


def chained_groups_kernel(
    name: str,
    groups: Sequence[Group],
    *,
    precision: str,
    reads: Callable[[Group, Node], Place | None],
    writes: Callable[[Group, Node], Sequence[Place]],
    elsewhere: Callable[[Group], frozenset[Node]],
    needed: Callable[[Node], bool] = lambda node: True,
    early: bool = False,
) -> Rows:
    """The kernel of several groups in order. reads, writes, elsewhere: as of `rows_kernel`, for each group; needed:
    whether others read a value that they store; early: as of `write`."""

    def job(group: Group) -> Job:
        return Job(name, group, precision, lambda n: reads(group, n), lambda n: writes(group, n), elsewhere(group))

    return _ChainedGroups(name, [job(group) for group in groups], early).kernel(needed)
