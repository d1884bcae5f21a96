"""Kernels that work row by row: pointwise groups, reductions, small products.

In: a group of the graph, and where its values lie. Out: `Rows`: a kernel with one scalar, the number of rows, from
which its grid follows. One thread makes one element of the group's index space (of a reduction along the last axis:
one warp), and all nodes of the group at that element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.graph import scalar
from tvm_rnn.graph.graph import Group, Node, reduced_axes, runs_along
from tvm_rnn.graph.ops import TABLE, Shape
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.graph.tensor_expressions import Index, element, fit, reduced_value
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import int64, wide

from .packed_layout import ceil_div
from .pointers import Argument, Place, address, arithmetic, dense

Reads = Callable[[Node], Place | None]


def sources(nodes: Iterable[Node], stored: Callable[[Node], bool]) -> list[Node]:
    """The stored nodes that the values of `nodes` are computed from, each once, in order of use."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(reversed(list(nodes)))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if stored(node):
            found[node] = None
        else:
            stack.extend(reversed(node.args))
    return list(found)


@dataclass
class Values:
    """Values of one row in one scope of a kernel. Make a new one (`inner`) for a loop's body: what is bound inside a
    loop is not known after it."""

    writer: Writer
    precision: str
    row: Expr
    reads: Reads
    pointers: dict[Node, str]
    given: dict[Node, Callable[[Index], TirExpr]] = field(default_factory=dict)  # e.g. a product's accumulators
    known: dict[tuple[Node, Index], TirExpr] = field(default_factory=dict)

    def inner(self) -> Values:
        return replace(self, known=dict(self.known))

    def at(self, node: Node, index: Index) -> TirExpr:
        """The value of `node` at `index`, as a variable (or a constant)."""
        key = (node, tuple(index))
        if key not in self.known:
            self.known[key] = self._make(node, index)
        return self.known[key]

    def _make(self, node: Node, index: Index) -> TirExpr:
        dtype = arithmetic(self.precision)
        if node in self.given:
            return self.given[node](index)
        if (count := counted(node)) is not None:
            return self.writer.keep(tirx.Cast(dtype, index[count]))
        if node in self.pointers:
            place = self.reads(node)
            assert place is not None
            return self.writer.keep(self.load(self.pointers[node], place, node, index))
        if node.scalar is not None:
            return tirx.const(node.scalar, dtype)
        expression = TABLE[node.op].expression if node.pointwise else None
        if expression is not None:
            return self.writer.keep(expression(*(self.at(a, fit(a.shape, index)) for a in node.args)))
        # A view, or a row of a table: a value at another index.
        return element(node, index, lambda n, i: None if n is node else self.at(n, i), dtype)

    def load(self, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        value = self.writer[pointer][address(place, self.row, dense(node.shape, index))]
        return converted(value, arithmetic(self.precision))


def counted(node: Node) -> int | None:
    """The axis of a constant whose elements are 0, 1, 2 and so on along it: known without a look at memory."""
    if node.op != "const" or node.value is None or not 1 < node.value.size <= 1 << 24:
        return None
    long = [axis for axis, size in enumerate(node.shape) if size > 1]
    return long[0] if len(long) == 1 and (node.value.ravel() == np.arange(node.value.size)).all() else None


def store(writer: Writer, argument: Argument, place: Place, row: Expr, index: Sequence[Expr], value: Expr) -> None:
    """Store one element of the argument's node at its place, rounded to the place's dtype."""
    at = address(place, row, dense(argument.node.shape, index))
    writer.store(writer[argument.name], converted(value, place.dtype), at)


Writes = Callable[[Node], Sequence[Place]]
THREADS, WARP = 128, 32
FEW_TERMS = 8  # of a sum that a thread makes
EACH = 8  # elements of a thread, of long rows: with one, launching blocks took four times what moving their bytes does
LONG = 1 << 16  # elements of a row: the gradients of weights, which are one row, more than all else


@dataclass(frozen=True)
class Rows:
    """A kernel and what its pointers stand for, in order. Its only scalar is `rows`; do not launch it for 0 rows."""

    kernel: Kernel
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Job:
    """What every kernel of this file needs: the group, its values' places, and the arithmetic.

    elsewhere: members of the group that lie somewhere already (leaves, values of other groups), and are copied. early:
    as of `write`.
    """

    name: str
    group: Group
    precision: str
    reads: Reads
    writes: Writes
    elsewhere: frozenset[Node] = frozenset()
    early: bool = False

    def arguments(self, nodes: Sequence[Node], *products: Argument) -> tuple[Argument, ...]:
        """Pointers to read what `nodes` are made of, then `products`, then the places of the stored nodes."""
        inside = set(self.group.nodes) - self.elsewhere
        tops = [a for n in nodes for a in (n.args if n in inside else (n,))]
        # What the group itself computes is looked through: its own arguments are among the tops.
        found = sources(tops, lambda n: n in inside or self.reads(n) is not None)
        read = [Argument(f"r{i}", "read", n) for i, n in enumerate(n for n in found if n not in inside)]
        pairs = [(node, i) for node in self.group.stored for i in range(len(self.writes(node)))]
        return (*read, *products, *(Argument(f"w{i}", "write", n, number) for i, (n, number) in enumerate(pairs)))

    def finish(self, body: Callable[[Writer], None], arguments: Sequence[Argument]) -> Rows:
        pointers = [(a.name, self.dtype(a)) for a in arguments]
        with flavour(self.precision):
            kernel = write(self.name, pointers, [("rows", "int64")], body, threads=THREADS, early=self.early)
        return Rows(kernel, tuple(arguments))

    def dtype(self, argument: Argument) -> str:
        place = self.writes(argument.node)[argument.number] if argument.role == "write" else self.reads(argument.node)
        assert place is not None
        return place.dtype

    def values(self, writer: Writer, row: Expr, arguments: Sequence[Argument]) -> Values:
        pointers = {a.node: a.name for a in arguments if a.role == "read"}
        return Values(writer, self.precision, row, self.reads, pointers)

    def store(
        self, writer: Writer, arguments: Sequence[Argument], node: Node, row: Expr, index: Index, value: Expr
    ) -> None:
        for argument in arguments:
            if argument.role == "write" and argument.node is node:
                store(writer, argument, self.writes(node)[argument.number], row, index, value)


def rows_kernel(
    name: str,
    group: Group,
    *,
    precision: str,
    reads: Reads,
    writes: Writes,
    elsewhere: frozenset[Node] = frozenset(),
    early: bool = False,
) -> Rows:
    """The kernel of a pointwise or reduce group.

    reads: how a node that is stored somewhere is read (None: computed inline). writes: where a stored node goes.
    elsewhere: members of the group that are not computed but copied from where `reads` says. early: as of `write`.
    """
    job = Job(name, group, precision, reads, writes, elsewhere, early)
    return _reduction(job) if group.kind == "reduce" else _pointwise(job)


# --- one thread per element ------------------------------------------------------------------------------------------


def elements(writer: Writer, size: int) -> tuple[Expr, Expr, Expr]:
    """(row, element of the row, whether there is one) of this thread, in a grid that follows from "rows".

    All but the row number is 32-bit arithmetic: blocks are parts of a row, or several whole rows.
    """
    rows = writer["rows"]
    chunks, together = -(-size // THREADS), max(1, THREADS // size)
    blocks = rows * int64(chunks) if together == 1 else tirx.truncdiv(rows + int64(together - 1), int64(together))
    block, thread = I.cta_id([tirx.Cast("int32", blocks)]), I.thread_id([THREADS])
    if together == 1:
        j = writer.keep(tirx.truncmod(block, chunks) * THREADS + thread) if chunks > 1 else thread
        return wide(writer.keep(tirx.truncdiv(block, chunks))), j, j < size
    row = writer.keep(wide(block) * int64(together) + wide(tirx.truncdiv(thread, size)))
    inside = tirx.And(thread < together * size, row < rows)
    return row, writer.keep(tirx.truncmod(thread, size)), inside


def parts(writer: Writer, size: int, each: int, one: Callable[[Expr, Expr], None]) -> None:
    """What `one(row, element of the row)` emits for `each` elements of this thread, THREADS apart: blocks are parts
    of a row."""
    chunks = ceil_div(size, THREADS * each)
    block, thread = I.cta_id([tirx.Cast("int32", writer["rows"] * int64(chunks))]), I.thread_id([THREADS])
    row = wide(writer.keep(tirx.truncdiv(block, chunks)))
    first = writer.keep(tirx.truncmod(block, chunks) * (THREADS * each) + thread)
    for turn in range(each):
        j = writer.keep(first + turn * THREADS)
        with nullcontext() if size % (THREADS * each) == 0 else writer.when(j < size):
            one(row, j)


def unravel(writer: Writer, flat: Expr, shape: Shape) -> Index:
    """The index into `shape` of a row-major element number; along an axis of one element always the number 0, by which
    values are known that are spread over it."""
    if not shape:
        return ()
    index: list[Expr] = []
    for size in reversed(shape[1:]):
        index.append(0 if size == 1 else writer.keep(tirx.truncmod(flat, size)))
        flat = writer.keep(tirx.truncdiv(flat, size)) if size > 1 else flat
    return tuple(reversed([*index, 0 if shape[0] == 1 else flat]))


def _pointwise(job: Job) -> Rows:
    shape = job.group.nodes[-1].shape
    arguments = job.arguments(job.group.nodes)

    def one(writer: Writer, row: Expr, j: Expr) -> None:
        finish_group(job, job.values(writer, row, arguments), arguments, unravel(writer, j, shape))

    def body(writer: Writer) -> None:
        if prod(shape) >= LONG:
            parts(writer, prod(shape), EACH, lambda row, j: one(writer, row, j))
            return
        row, j, inside = elements(writer, prod(shape))
        with writer.when(inside):
            one(writer, row, j)

    return job.finish(body, arguments)


def finish_group(job: Job, values: Values, arguments: Sequence[Argument], index: Index) -> None:
    """Compute all nodes of the group at `index`, then store those that are stored."""
    made = {n: values.at(n, index if n.shape else ()) for n in job.group.nodes if n is not job.group.root}
    for node in job.group.stored:
        if node in made:
            job.store(values.writer, arguments, node, values.row, index if node.shape else (), made[node])


# --- reductions ------------------------------------------------------------------------------------------------------


def _reduction(job: Job) -> Rows:
    root = job.group.root
    assert root is not None
    arguments = job.arguments(job.group.nodes)
    along = by_warps(root)

    def body(writer: Writer) -> None:
        if along:
            row, j, lane, inside = _warps(writer, prod(root.shape))
        else:
            (row, j, inside), lane = elements(writer, prod(root.shape)), None
        with writer.when(inside):
            values = job.values(writer, row, arguments)
            index = unravel(writer, j, root.shape)
            total = _reduce(values, root, index, lane)
            with nullcontext() if lane is None else writer.when(lane == 0):
                job.store(writer, arguments, root, row, index, total)

    return job.finish(body, arguments)


def by_warps(root: Node) -> bool:
    """Whether a warp adds up each result: where what it adds up lies side by side, and is not so little that most lanes
    had nothing to do. Else a thread does."""
    return runs_along(root) and prod(size for _, size in reduced_axes(root)) > FEW_TERMS


def _warps(writer: Writer, size: int) -> tuple[Expr, Expr, Expr, Expr]:
    """(row, element of the row, lane, whether there is one): one warp for each element."""
    rows, each = writer["rows"], THREADS // WARP
    total = rows * int64(size)
    block = I.cta_id([tirx.Cast("int32", tirx.truncdiv(total + int64(each - 1), int64(each)))])
    thread = I.thread_id([THREADS])
    item = writer.keep(wide(block) * int64(each) + wide(tirx.truncdiv(thread, WARP)))
    row = writer.keep(tirx.truncdiv(item, int64(size)))
    j = writer.keep(tirx.Cast("int32", tirx.truncmod(item, int64(size))))
    return row, j, writer.keep(tirx.truncmod(thread, WARP)), item < total


def _reduce(values: Values, root: Node, index: Index, lane: Expr | None) -> Expr:
    """The whole reduction at `index`: by one thread, or (lane given) by the 32 lanes of a warp, which all get it."""
    writer, dtype = values.writer, arithmetic(values.precision)
    axes = reduced_axes(root)
    extent = prod(size for _, size in axes)
    combine, identity = combiner(root)
    total = writer.local(1, dtype)
    writer.store(total, tirx.const(identity, dtype), 0)

    def add(k: Expr) -> None:
        ks = unravel(writer, k, tuple(size for _, size in axes))
        writer.store(total, combine(total[0], reduced(values.inner(), root, index, ks)), 0)

    if lane is None:
        with writer.loop(extent) as k:
            add(k)
        return writer.keep(total[0])
    with writer.loop(-(-extent // WARP)) as step:
        k = writer.keep(step * WARP + lane)
        with writer.when(k < extent):
            add(k)
    across_warp(writer, total, combine)  # every lane of the warp is here: `inside` is the same for all of them
    return writer.keep(total[0])


def across_warp(writer: Writer, total: Buffer, combine: Callable[[Expr, Expr], Expr]) -> None:
    """What all lanes have in a register, combined, in every lane."""
    for distance in (16, 8, 4, 2, 1):
        mask = tirx.const(0xFFFFFFFF, "uint32")
        other = tirx.call_extern(total.dtype, "__shfl_xor_sync", mask, total[0], distance, WARP)
        writer.store(total, combine(total[0], writer.keep(other)), 0)


def combiner(root: Node) -> tuple[Callable[[Expr, Expr], Expr], float]:
    """How a reduction combines two values, and where it begins."""
    return (scalar.maximum, float("-inf")) if root.op == "max" else (scalar.add, 0.0)


def reduced(values: Values, root: Node, index: Index, ks: Index) -> Expr:
    """What is reduced, at one element."""
    return reduced_value(root, index, ks, values.at)
