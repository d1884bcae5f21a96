"""A sum of products of whole numbers with constants: pairs of 16 bits at a time, in 32 bits.

In: a nest that adds up products of an array that holds whole numbers of 16 bits and of a constant that does so too, an
instruction. Out: the nest that copies the array to 16 bits, and tiles as `panel_sum.py` makes them, whose constants lie
in pairs, in 8 bits where these are enough. Twice as many products a cycle as of float32, a quarter of the memory, and
the same sums: in float32 too, where none exceeds what that has exactly.

Rewrite: y[r, f] += x[r, k] * w[k, f]
     --> x'[r, k] = int16(x[r, k]); y[r, f] += x'[r, 2 j] * w'[panel, j, f, 0] + x'[r, 2 j + 1] * w'[panel, j, f, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx

from tvm_rnn.cpu.pair_product import PairProduct
from tvm_rnn.surroundings.nest import Nest, mentions, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import variable

from .columns import axis_of, step_of
from .panel_sum import PanelSum, Rows
from .sum_tiles import around, unrolled
from .whole_numbers import EXACT, TYPES, Range


@dataclass(frozen=True)
class Factors:
    """What a nest multiplies. moving: an array; still: a constant, one of whose axes vectors run along, another pairs.
    pairs: the loop over these."""

    moving: tvm.ir.TensorLoad
    still: tvm.ir.TensorLoad
    column: int
    pair: int
    pairs: tirx.For


def factors_of(nest: Nest, columns: tirx.For, constant: Callable[[Buffer], bool]) -> Factors | None:
    """The two factors, if a nest adds up products of an array and a constant whose pairs are neighbours."""
    store, added = nest.store, nest.store.value
    if not isinstance(added, tirx.Add) or not isinstance(added.b, tirx.Mul) or not nest.summed:
        return None
    if (
        not isinstance(added.a, tvm.ir.TensorLoad)
        or not added.a.source.same_as(store.buffer)
        or not _is_zero(nest.first)
    ):
        return None
    both = added.b.a, added.b.b
    if not all(isinstance(own, tvm.ir.TensorLoad) for own in both):
        return None
    moving, still = sorted(both, key=lambda own: constant(own.source))
    pairs = nest.summed[-1]
    column, pair = axis_of(still, columns), axis_of(still, pairs)
    if constant(moving.source) or not constant(still.source) or column is None or pair is None:
        return None
    even = isinstance(pairs.extent, tirx.IntImm) and int(pairs.extent) % 2 == 0
    earlier = any(mentions(i, pairs.loop_var) for i in list(moving.indices)[:-1])
    if not even or earlier or step_of(moving, pairs.loop_var) != 1 or _moves(moving, columns.loop_var):
        return None
    return Factors(moving, still, column, pair, pairs)


def are_exact(factors: Factors, found: Range, weights: np.ndarray, kind: str) -> bool:
    """Whether pairs of 16 bits have the same sums. found: of what the array holds; kind: the sums' dtype."""
    least, most = TYPES["int16"]
    if found[0] <= least or most < found[1] or kind not in ("float32", "int32") or not weights.size:
        return False
    if not np.isfinite(weights).all() or (weights != np.floor(weights)).any() or np.abs(weights).max() > most:
        return False
    summed = tuple(axis for axis in range(weights.ndim) if axis != factors.column)
    largest = max(map(abs, found)) * np.abs(weights.astype("f8")).sum(summed).max()
    return bool(kind == "int32" or largest < EXACT)


def short_copy(buffer: Buffer) -> tuple[Buffer, Nest]:
    """An array of 16 bits, and the nest that copies another one to it."""
    into = tirx.decl_buffer(buffer.shape, "int16", name="short")
    found = [variable("i") if not _is_one(axis) else int64(0) for axis in buffer.shape]
    store = tirx.BufferStore(into, tirx.Cast("int16", tirx.BufferLoad(buffer, found)), found)
    ends = zip(found, buffer.shape, strict=True)
    loops = [tirx.For(i, int64(0), n, tirx.ForKind.SERIAL, store) for i, n in ends if isinstance(i, tirx.Var)]
    return into, Nest(loops, store, None)


@dataclass
class PairSum(PanelSum):
    """factors: the first one in 16 bits. weights: the second one in pairs. instruction: of vectors of `lanes` sums."""

    factors: Factors
    weights: Buffer
    instruction: PairProduct

    @property
    def kind(self) -> str:
        return "int32"

    @property
    def constants(self) -> list[Buffer]:
        return [self.weights]

    def moves_panels(self, var: tirx.Var) -> bool:
        return any(mentions(i, var) for i in self.factors.still.indices)

    def begin(self, sums: Buffer, at: Mapping[tirx.Var, Expr], place: Expr) -> Stmt:
        return tirx.BufferStore(sums, tirx.const(0, "int32"), [place])

    def found(self, sums: Buffer, place: Expr) -> Expr:
        kind, value = str(self.nest.store.buffer.dtype), tirx.BufferLoad(sums, [place])
        return value if kind == "int32" else tirx.Cast(kind, value)

    def adding(self, sums: Buffer, rows: Rows) -> Stmt:
        """Of each row a pair for all columns, which vectors of pairs of constants are multiplied with."""
        lanes, own, j = self.lanes, self.factors, variable("j")
        half = tirx.For(j, int64(0), int64(int(own.pairs.extent) // 2), tirx.ForKind.SERIAL, own.pairs.body)
        loops = [half if o is own.pairs else o for o in self.nest.summed]
        others = [i for axis, i in enumerate(own.still.indices) if axis not in (own.column, own.pair)]

        def one(r: Expr, v: Expr) -> Stmt:
            at = {**rows.at(r), own.pairs.loop_var: j * int64(2)}
            *x, first = (replaced(i, at) for i in own.moving.indices)
            pair = tirx.reinterpret("int32", tirx.BufferLoad(own.moving.source, [*x, tirx.Ramp(first, 1, 2)]))
            behind = tirx.Ramp(v * int64(2 * lanes), 1, 2 * lanes)
            w = tirx.BufferLoad(self.weights, [*(replaced(i, at) for i in (self.panels.panel, *others)), j, behind])
            w = w if str(self.weights.dtype) == "int16" else tirx.Cast(f"int16x{2 * lanes}", w)
            place = tirx.Ramp(r * int64(rows.wide) + v * int64(lanes), 1, lanes)
            total = self.instruction.add(tirx.BufferLoad(sums, [place]), tirx.Broadcast(pair, lanes), w)
            return tirx.BufferStore(sums, total, [place])

        tile = unrolled(rows.count, lambda r: unrolled(rows.wide // lanes, lambda v: one(r, v)))
        return around(loops, tile)


def _moves(load: tvm.ir.TensorLoad, var: tirx.Var) -> bool:
    return any(mentions(i, var) for i in load.indices)


def _is_zero(value: Expr | None) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and float(value.value) == 0


def _is_one(axis: Expr) -> bool:
    return isinstance(axis, tirx.IntImm) and int(axis) == 1
