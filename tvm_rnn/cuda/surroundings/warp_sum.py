"""A kernel in which a warp makes one element of a nest: its lanes share the terms of the sum, or of the maximum.

In: a nest's arrays and sizes. Out: a launch; None where TVM's form of the sum is none of those that can be shared.

Rewrite: for k: y = y + f(k)  -->  for k of this lane: y = y + f(k); y = the lanes' y, added up
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.surroundings.nest import Nest, reads
from tvm_rnn.tir.expr import Expr, TirExpr

from .nest_kernel import Frame, Launch, NestKernel

THREADS, WARP = 256, 32
EVERY_LANE = 0xFFFFFFFF


@dataclass(frozen=True)
class Terms:
    """How a sum goes on. term: what each step adds; joined: the sum of two."""

    term: Expr
    joined: Callable[[TirExpr, TirExpr], TirExpr]


def terms_of(nest: Nest) -> Terms | None:
    """The terms of a sum that begins with what changes nothing."""
    value, own = nest.store.value, nest.store.buffer

    def is_sum(part: Expr) -> bool:
        loads = reads(part, own)
        return len(loads) == 1 and bool(tvm_ffi.structural_equal(part, loads[0]))

    if isinstance(value, tirx.Add):
        for mine, term in ((value.a, value.b), (value.b, value.a)):
            if is_sum(mine) and not reads(term, own):
                return Terms(term, lambda a, b: a + b) if _is(nest.first, 0.0) else None
    if isinstance(value, tirx.Min | tirx.Max) and isinstance(nest.first, tirx.IntImm):
        for mine, term in ((value.a, value.b), (value.b, value.a)):
            if is_sum(mine) and not reads(term, own):
                return Terms(term, type(value)) if _is(nest.first, _end(value)) else None
    if isinstance(value, tirx.Select) and is_sum(value.true_value) and not reads(value.false_value, own):
        term, mine = value.false_value, value.true_value

        def chosen(a: TirExpr, b: TirExpr) -> TirExpr:
            def part(node: Expr) -> Expr:
                if tvm_ffi.structural_equal(node, mine):
                    return a
                return b if tvm_ffi.structural_equal(node, term) else node

            return tirx.Select(_with(value.condition, part), a, b)

        if _is_extremum(value, mine, term, nest.first):
            return Terms(term, chosen)
    return None


def _end(value: tirx.Min | tirx.Max) -> float:
    """What a least or largest whole number begins with."""
    ends = np.iinfo(str(value.ty))
    return int(ends.max if isinstance(value, tirx.Min) else ends.min)


def _is(value: Expr | None, number: float) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and value.value == number


def _is_extremum(value: tirx.Select, mine: Expr, term: Expr, first: Expr | None) -> bool:
    """Whether it is the largest or smallest term, begun with an infinity of the other sign; NaN stays."""
    condition = value.condition
    if isinstance(condition, tirx.Or):
        condition = condition.a
    if not isinstance(condition, tirx.LT | tirx.GT):
        return False
    turned = bool(tvm_ffi.structural_equal(condition.a, mine) and tvm_ffi.structural_equal(condition.b, term))
    if not turned and not (tvm_ffi.structural_equal(condition.a, term) and tvm_ffi.structural_equal(condition.b, mine)):
        return False
    largest = isinstance(condition, tirx.LT) != turned  # what stays is not below a term
    return _is(first, float("-inf") if largest else float("inf"))


def _with(condition: Expr, part: Callable[[Expr], Expr]) -> Expr:
    """The comparisons of a maximum with other operands."""
    if isinstance(condition, tirx.Or):
        return tirx.Or(_with(condition.a, part), _with(condition.b, part))
    if isinstance(condition, tirx.LT | tirx.GT):
        return type(condition)(part(condition.a), part(condition.b))
    assert isinstance(condition, tvm.ir.Call)
    return tirx.isnan(part(condition.args[0]))


def warp_sum(nest: NestKernel) -> Launch | None:
    """A warp for each element."""
    found = terms_of(nest.nest)
    if found is None:
        return None

    def body(frame: Frame) -> None:
        w, store = frame.w, nest.nest.store
        total, terms = frame.count(nest.own), frame.count(nest.summed)
        warps = THREADS // WARP
        block, thread = I.cta_id([(total + (warps - 1)) // warps]), I.thread_id([THREADS])
        index, lane = w.keep(block * warps + thread // WARP), w.keep(thread % WARP)
        with w.when(index < total):
            variables = frame.split(index, nest.own)
            sums = w.local(1, str(store.buffer.dtype))
            frame.begin(sums, variables)
            with w.loop((terms + (WARP - 1) - lane) // WARP) as i:
                own = {**variables, **frame.split(w.keep(i * WARP + lane), nest.summed)}
                w.store(sums, frame.narrow(own, {store.buffer: sums[0]}).value(store.value), 0)
            distance = WARP // 2
            while distance:
                other = w.keep(_from_lane(sums[0], distance))
                w.store(sums, found.joined(sums[0], other), 0)
                distance //= 2
            with w.when(tirx.EQ(lane, tirx.const(0, "int32"))):
                frame.store(variables, {store.buffer: sums[0]})

    return nest.launch(body, THREADS)


def _from_lane(value: TirExpr, distance: int) -> TirExpr:
    """The value of the lane whose number differs in this bit."""
    everyone = tirx.const(EVERY_LANE, "uint32")
    return tirx.call_extern(str(value.ty), "__shfl_xor_sync", everyone, value, distance, WARP)
