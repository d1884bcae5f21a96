"""A block of a kernel of matrix states: which row and head it has, its shared memory, and where its values lie.

In: a kernel's writer, a `MatrixStep`. Out: `SharedPlan`, what lies where in shared memory, and `Block`, which both
kinds of warps read: those that have elements (`kernel.py`) and the one that loads and stores (`streams.py`).

Shared memory: three stages of what steps read, of which one is read, one is filled, and one is read by who stores what
a step emits; parts of sums over rows, of two steps in turn; parameters of products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.vector_access import store_lanes
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.regime import FOREVER
from tvm_rnn.cuda.layer.row_kernels import combiner
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .element_index import COLUMN, ROW, UNIT, Along, ElementIndex, flattened
from .lane_values import Index
from .matrix_step import Left, MatrixStep, Streamed
from .matrix_tile import LANES
from .parameter_gradients import GradientPlan
from .products import PlainProduct, TensorProduct

STAGES, PARITIES = 3, 2
ALIGNED = 4  # words
MEETING = 0  # the barrier of all warps
RESERVED = 56  # registers of a lane for addresses, masks and what is computed meanwhile
TENSOR = ("bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class SharedPlan:
    """In words of 4 bytes. precision: "bfloat16", "float16": products on tensor cores; else in float32."""

    step: MatrixStep
    precision: str
    registers: int  # of a multiprocessor

    @cached_property
    def slots(self) -> Mapping[Streamed, int]:
        """Where in a stage each vector begins."""
        found, at = dict[Streamed, int](), 2  # first the flag of a reset
        for own in self.step.streamed:
            found[own] = at
            at += 2 if own.role is None else self.length(own)
        return found

    @cached_property
    def stage_words(self) -> int:
        ends = [at + self.length(own) + self.length(own) % 2 for own, at in self.slots.items()]
        return max([2, *ends])

    def length(self, own: Streamed) -> int:
        return 1 if own.role is None else self.step.tile.shared_extent(own.role)

    def part_width(self, node: Node) -> int:
        along = [role for role in self.step.axes.roles[node] if role in (ROW, COLUMN)]
        return self.step.tile.shared_extent(along[0]) if along else 1

    def parts(self, node: Node) -> int:
        """How many warps leave parts of a sum."""
        tile, roles = self.step.tile, self.step.axes.summed[node].values()
        return (tile.down if ROW in roles else 1) * (tile.across if COLUMN in roles else 1)

    @cached_property
    def part_places(self) -> Mapping[tuple[Node, tuple[int, ...]], int]:
        """Where parts of each sum begin that several warps have, by the numbers of its index that are no columns, or no
        rows."""
        found, at = dict[tuple[Node, tuple[int, ...]], int](), 0
        for node in (*self.step.row_sums, *self.step.column_sums):
            roles = self.step.axes.roles[node]
            apart = [n for n, role in zip(node.shape, roles, strict=True) if role is None or n == 1]
            for numbers in _counted(apart):
                found[node, numbers] = at
                at += self.parts(node) * self.part_width(node)
        return found

    @cached_property
    def sum_words(self) -> int:
        return sum(self.parts(node) * self.part_width(node) for node, _ in self.part_places)

    @cached_property
    def dense_places(self) -> Mapping[tuple[Node, int], int]:
        """Behind the parts: where vectors of dense products begin: operands by their number, results (-1)."""
        found, at = dict[tuple[Node, int], int](), self.sum_words + self.sum_words % 2
        for node in self.step.dense:
            for number, value in ((-1, node), *enumerate(node.args[1::2])):
                found[node, number] = at
                at += ceil_div(prod(value.shape), LANES) * LANES
        return found

    @cached_property
    def part_words(self) -> int:
        """Of a step."""
        vectors = [
            at + prod((node if n < 0 else node.args[1 + 2 * n]).shape) for (node, n), at in self.dense_places.items()
        ]
        return ceil_div(max([self.sum_words, *vectors]), LANES) * LANES

    @property
    def first_part(self) -> int:
        return STAGES * self.stage_words

    @property
    def first_weight(self) -> int:
        return self.first_part + PARITIES * self.part_words

    @cached_property
    def lane_registers(self) -> int:
        """That a lane may have."""
        return min(255, self.registers // self.threads // 8 * 8)

    @property
    def threads(self) -> int:
        return self.step.tile.threads + LANES * self.gradients.warps

    @cached_property
    def values(self) -> int:
        """Registers of a lane for states, for what a step makes of them, for what is asked for ahead, and constants."""
        tile, demands = self.step.tile, self.step.lanes
        ahead = sum(ITEM_BYTES[self.step.layout.rows(node).dtype] for node, _ in demands.whole) // 4
        return self.step.graph.matrices_at_once * tile.elements + ahead + len(demands.constant) + tile.lane_columns

    @cached_property
    def in_registers(self) -> bool:
        """Whether parameters of products are in registers."""
        words = TensorProduct.words(self.step.tile) * len(self.step.products)
        rows = self.step.tile.elements // 2 if self.step.products else 0
        return self.precision in TENSOR and self.values + rows + words + RESERVED <= self.lane_registers

    @property
    def product_words(self) -> int:
        """Of one product's parameter and what it needs beside."""
        if self.precision not in TENSOR:
            return PlainProduct.shared_words(self.step.tile)
        return 0 if self.in_registers else TensorProduct.shared_words(self.step.tile)

    @cached_property
    def gradients(self) -> GradientPlan:
        return GradientPlan(self.step.tile, self.step.accumulated)

    @property
    def first_operand(self) -> int:
        """Of what is accumulated."""
        return ceil_div(self.first_weight + self.product_words * len(self.step.products), ALIGNED) * ALIGNED

    @property
    def words(self) -> int:
        return self.first_operand + self.gradients.words


def _counted(sizes: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size in sizes:
        found = [(*numbers, n) for numbers in found for n in range(size)]
    return found


class Block:
    """row, head: this block's; ends: the row's length; floats, words: shared memory."""

    def __init__(self, w: Writer, plan: SharedPlan, masked: bool) -> None:
        self.w, self.plan, self.step, self.masked = w, plan, plan.step, masked
        self.layout, self.tile = plan.step.layout, plan.step.tile
        heads = self.layout.heads
        block = w.keep(I.cta_id([tirx.Cast("int32", wide(w["batch"]) * heads)]))
        thread = w.keep(I.thread_id([plan.threads]))
        self.lane, self.warp = w.keep(thread % LANES), w.keep(thread // LANES)
        self.row, self.head = w.keep(tirx.truncdiv(block, heads)), w.keep(tirx.truncmod(block, heads))
        self.words: Buffer = I.alloc_buffer((plan.words,), "uint32", scope="shared.dyn", align=16)
        self.floats: Buffer = I.decl_buffer((plan.words,), "float32", data=self.words.data, scope="shared.dyn")
        self.ends = w.local(1, "int32")
        if masked:
            w.store(self.ends, tirx.const(FOREVER, "int32"), 0)
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                most = tirx.Min(w["lengths"][wide(self.row)], tirx.const(FOREVER, "int64"))
                w.store(self.ends, tirx.Cast("int32", most), 0)
        with w.loop(ceil_div(plan.first_weight, plan.threads)) as turn:
            at = w.keep(turn * plan.threads + thread)
            with w.when(at < plan.first_weight):
                w.store(self.floats, tirx.const(0.0, "float32"), at)
        w.do(I.cuda.cta_sync())

    def meet(self, warps: int, name: int) -> None:
        """Wait for so many warps, at the barrier of that number. Each kind of warps meets at its own instruction,
        which synccheck reports of bar.sync and not of barrier.sync."""
        self.w.do(I.ptx.barrier.sync(name, uint32(LANES * warps)))

    def meet_all(self) -> None:
        """Once before the steps, and once in each."""
        self.meet(self.plan.threads // LANES, MEETING)

    def local(self, step: Expr) -> TirExpr:
        """A step's place in time, within the arrays."""
        w = self.w
        return w.keep(tirx.Select(tirx.NE(w["reverse"], tirx.const(0, "int32")), w["steps"] - 1 - step, step))

    def active(self, local: TirExpr) -> TirExpr:
        return self.w.keep(tirx.Cast("int32", self.w["start"] + local < self.ends[0]))

    def stage(self, step: Expr) -> TirExpr:
        return self.w.keep(tirx.truncmod(step, STAGES) * self.plan.stage_words)

    # --- memory ----------------------------------------------------------------------------------------------------

    def inside(self, index: Index) -> Expr | None:
        """Whether an element is one of the matrices'; None: it is."""
        found: Expr | None = None
        for along in {a: None for i in index if isinstance(i, ElementIndex) for a, _ in i.terms}:
            if self.beyond(along):
                own = along.value < self.tile.extent(along.role)
                found = own if found is None else tirx.And(found, own)
        return found

    def beyond(self, along: Along) -> bool:
        """Whether some lanes have a row or column there that no matrix has."""
        each = LANES if along.spread else self.tile.members if along.role == UNIT else 0
        return (along.number + 1) * each > self.tile.extent(along.role) if each else self.tile.padded(along.role)

    def guarded(self, value: TirExpr, dtype: str, inside: Expr | None) -> TirExpr:
        """What lies in memory, 0 where there is nothing."""
        w = self.w
        if inside is None:
            return w.keep(value)
        found = w.local(1, dtype)
        w.store(found, tirx.const(0.0, dtype), 0)
        with w.when(inside):
            w.store(found, value, 0)
        return found[0]

    def _of_head(self, node: Node, apart: int, at: Expr) -> Expr:
        """Element `at` of this head's part of a value. apart: elements of one head that lie side by side."""
        if not apart or self.layout.heads == 1:
            return at
        own = at if prod(node.shape) <= apart else _spread(apart, at, self.layout.heads)
        return own + self.head * apart

    def constant(self, node: Node, index: Index) -> TirExpr:
        """An element of what is made of parameters."""
        source = self.w[f"param_{self.step.param_nodes.index(node)}"]
        at = self._of_head(node, self.layout.side_by_side(node), flat(node, index))
        return self.guarded(source[wide(at)], "float32", self.inside(index))

    def read_name(self, node: Node) -> str:
        """Of the pointer to a value of every step."""
        return f"read_{self.step.read_nodes.index(node)}"

    def read_at(self, node: Node, at: Expr, local: TirExpr) -> Expr:
        """Where element `at` of a value of every step lies."""
        row = wide(local) * wide(self.w["batch"]) + wide(self.row)
        own = self._of_head(node, self.layout.side_by_side(node), at)
        return row * self.layout.rows(node).row_stride + wide(own)

    def streamed(self, node: Node, at: Expr, local: TirExpr) -> TirExpr:
        """Element `at` of a value of every step, as it is in memory."""
        return self.w[self.read_name(node)][self.read_at(node, at, local)]

    def state_at(self, state: Node, index: Index) -> Expr:
        size = 1
        for extent in state.shape:
            size *= extent
        return (wide(self.row) * self.layout.heads + wide(self.head)) * size + wide(flat(state, index))

    def part_at(self, node: Node, index: Index) -> tuple[int, Expr]:
        """Of a sum: where its parts begin, and the column or row among them."""
        numbers = tuple(i for i in index if isinstance(i, int))
        columns = [i.expression for i in index if isinstance(i, ElementIndex)]
        return self.plan.first_part + self.plan.part_places[node, numbers], (columns or [0])[0]

    def sum_of(self, node: Node, index: Index, step: TirExpr) -> TirExpr:
        """A sum, of the parts that warps have left."""
        first, column = self.part_at(node, index)
        width, parity = self.plan.part_width(node), tirx.truncmod(step, PARITIES) * self.plan.part_words
        combine, _ = combiner(node)
        parts = [self.floats[parity + column + (first + n * width)] for n in range(self.plan.parts(node))]
        total = parts[0]
        for part in parts[1:]:
            total = self.w.keep(combine(total, part))
        return total

    def dense_at(self, node: Node, number: int, step: TirExpr) -> TirExpr:
        """Where a vector of a dense product begins."""
        parity: TirExpr = tirx.truncmod(step, PARITIES) * self.plan.part_words
        return parity + (self.plan.first_part + self.plan.dense_places[node, number])

    def dense_of(self, node: Node, index: Index, step: TirExpr) -> TirExpr:
        """An element of a dense product's result. Lanes that have no such element read another."""
        at = tirx.Min(flat(node, index), prod(node.shape) - 1)
        return self.floats[self.dense_at(node, -1, step) + at]

    def of_stage(self, own: Streamed, index: Index, stage: TirExpr) -> TirExpr:
        alongs = [along for i in index if isinstance(i, ElementIndex) for along, _ in i.terms]
        return self.floats[stage + (self.plan.slots[own] + (alongs[0].value if alongs else 0))]

    def leave(self, own: Left, index: Index, values: Sequence[TirExpr], local: TirExpr, owner: TirExpr | None) -> None:
        """Store an element that a step leaves, or two that lie side by side. owner: of several lanes that have it, who
        stores it."""
        w, place = self.w, own.place
        if self.masked and own is self.step.output:
            zero, active = tirx.const(0.0, "float32"), tirx.NE(self.active(local), 0)
            values = [w.keep(tirx.Select(active, value, zero)) for value in values]
        row = wide(local) * wide(w["batch"]) + wide(self.row)
        at = row * place.row_stride + wide(self._of_head(own.node, own.apart, flat(own.node, index)))
        inside = self.inside(index)
        when = inside if owner is None else owner if inside is None else tirx.And(owner, inside)
        with nullcontext() if when is None else w.when(when):
            store_lanes(w, own.pointer, place.dtype, at, values)


def flat(node: Node, index: Index) -> Expr:
    """The row-major offset of an element of a value."""
    at = flattened(node.shape, index)
    return at.expression if isinstance(at, ElementIndex) else at


def _spread(apart: int, at: Expr, heads: int) -> Expr:
    if isinstance(at, int):
        return at // apart * apart * heads + at % apart
    return tirx.truncdiv(at, apart) * (apart * heads) + tirx.truncmod(at, apart)
