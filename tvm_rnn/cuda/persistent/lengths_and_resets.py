"""Lengths and resets inside a persistent kernel: rows that have ended, rows that are reset.

In: the kernel's state (`persistent.Body`), the cell's initial values. Out: per batch row of a lane, expressions:
whether step t counts, and with what the next step begins. The meaning is that of `oracle/reference.py`: backwards, a
flag at t + 1 separates step t from what was just processed; flags in the padding of a row mean nothing; rows that have
ended keep their states and emit zeros.

A state's value for the next step is decided when it is published, so flags are loaded one step before they count.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from tvm_rnn.cuda.layer.phases import Step
from tvm_rnn.cuda.layer.regime import FOREVER
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .geometry import Body


def resettable(step: Step) -> bool:
    """Whether a reset can be put into what is published: not where the same step multiplies it as well."""
    return not any(step.result(state) in step.sources for state in step.carried)


def _is(flag: Expr) -> Expr:
    return tirx.NE(flag, tirx.const(0, "int32"))


class Masks:
    """The masks of one kernel."""

    def __init__(self, body: Body, initial: Mapping[str, float]) -> None:
        self.body, self.k, self.initial = body, body.k, initial
        k, rows = body.k, 2 * body.geometry.own_tiles
        self.ends = k.local(rows, "int32")
        self.flags = [k.local(rows, "int32") for _ in range(2)]
        for j in range(body.geometry.own_tiles):
            for e in range(2):
                k.store(self.ends, tirx.const(FOREVER, "int32"), 2 * j + e)
                with body.cells.own_tile(j), k.when(tirx.And(_is(k["has_lengths"]), body.cells.row(j, e) < k["batch"])):
                    length = k["lengths"][tirx.Cast("int64", body.cells.row(j, e))]
                    k.store(self.ends, tirx.Cast("int32", tirx.Min(length, tirx.const(FOREVER, "int64"))), 2 * j + e)
        self.ask(0, tirx.const(0, "int32"))

    def _flag(self, t: Expr) -> Expr:
        """Where in time the flag is that separates step t from the one processed before it."""
        k = self.k
        return k.keep(k["start"] + self.body.order(t) + tirx.truncdiv(1 - k["direction"], 2))

    def ask(self, par: int, t: Expr) -> None:
        """Load the flags of step t."""
        k, body = self.k, self.body
        for at in range(2 * body.geometry.own_tiles):
            k.store(self.flags[par], tirx.const(0, "int32"), at)
        with k.when(tirx.And(_is(k["has_reset"]), t < k["steps"])):
            flag = self._flag(t)
            with k.when(flag < k["total"]):
                for j in range(body.geometry.own_tiles):
                    for e in range(2):
                        known = tirx.And(body.cells.row(j, e) < k["batch"], flag < self.ends[2 * j + e])
                        with body.cells.own_tile(j), k.when(known):
                            at = tirx.Cast("int64", flag) * k["batch"] + body.cells.row(j, e)
                            k.store(self.flags[par], tirx.Cast("int32", k["reset"][at]), 2 * j + e)

    def begin(self, t: Expr) -> None:
        self.now = self.k.keep(self.k["start"] + self.body.order(t))

    def first(self, state: Node) -> Expr:
        return tirx.const(self.initial.get(state.name, 0.0), "float32")

    def started(self, par: int, state: Node, value: Expr, j: int, e: int) -> Expr:
        """What a step of that parity begins with, where the one before left `value`."""
        return tirx.Select(_is(self.flags[par][2 * j + e]), self.first(state), value)

    def kept(self, value: Expr, instead: Expr, j: int, e: int) -> Expr:
        """The value, or the other one where the row has ended."""
        return tirx.Select(self.now < self.ends[2 * j + e], value, instead)

    def after(self, state: Node, value: Expr, block: int, j: int, e: int) -> Expr:
        """What the next step begins with, where this one makes `value` of a state."""
        registers, at = self.body.states[(state, block, j, e)]
        return self.started(1 - self.body.par, state, self.kept(value, registers[at], j, e), j, e)

    def restarted(self, state: Node, row: Expr, value: Expr) -> Expr:
        """What the first step begins with in any array row, where `value` was given."""
        k = self.k
        register = k.local(1)
        k.store(register, value, 0)
        with k.when(_is(k["has_reset"])):
            flag = self._flag(tirx.const(0, "int32"))
            end = k.local(1, "int64")
            k.store(end, tirx.const(FOREVER, "int64"), 0)
            with k.when(_is(k["has_lengths"])):
                k.store(end, k["lengths"][tirx.Cast("int64", row)], 0)
            with k.when(tirx.And(flag < k["total"], tirx.Cast("int64", flag) < end[0])):
                at = tirx.Cast("int64", flag) * k["batch"] + row
                with k.when(_is(tirx.Cast("int32", k["reset"][at]))):
                    k.store(register, self.first(state), 0)
        return register[0]
