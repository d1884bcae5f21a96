"""Kernels of a recurrence of vectors in which a block has all steps of its elements.

In: the group. Out: the statements of `apply`, and of `few` for calls of no more steps than a warp has in a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx

from tvm_rnn.cuda.codegen.vector_access import store_lanes
from tvm_rnn.cuda.layer.pointers import Argument, dense
from tvm_rnn.cuda.layer.row_kernels import Values
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .vector_loads import Loaded, Step
from .vector_walk import Walk


class Apply(Walk):
    """The steps themselves, from the states before them. policy: of the level-2 cache for what is stored."""

    policy: Expr | None = None

    def _old_states(self) -> None:
        w = self.w
        self.held = [[w.local(1, self.dtype) for _ in self.scan.states] for _ in self.elements]
        for e, registers in enumerate(self.held):
            for n, register in enumerate(registers):
                w.store(register, w[f"old_{n}"][self.flat + e], 0)

    def begin(self) -> None:
        self._old_states()

    def _act(self, warp: Sequence[Sequence[Expr]]) -> None:
        for held, words in zip(self.held, warp, strict=True):
            self.act(held, words)

    def round(self, number: Expr, steps: Sequence[Step]) -> None:
        held = self._reached(self.effects(number, steps)) if self.warps > 1 else self.held
        for step in steps:
            self._step(held, step)

    def _reached(self, parts: Sequence[Sequence[Sequence[Expr]]]) -> list[list[Buffer]]:
        """The states that this warp's steps begin with; `held` are those behind the round. parts: what each warp
        does."""
        w, held = self.w, [[self.w.local(1, self.dtype) for _ in own] for own in self.held]
        for p, warp in enumerate(parts):
            for own, registers in zip(self.held, held, strict=True):
                for register, state in zip(registers, own, strict=True):
                    here = tirx.Select(tirx.EQ(self.part, p), state[0], register[0]) if p else state[0]
                    w.store(register, here, 0)
            self._act(warp)
        return held

    def _step(self, held: Sequence[Sequence[Buffer]], step: Step) -> None:
        """The states after a step in place of those before it; what it stores."""
        w, values = self.w, step.values
        made = [self._made(registers, step, e) for e, registers in enumerate(held)]
        places = self._written(values)
        with w.when(self.there if step.inside is None else tirx.And(step.inside, self.there)):
            inner = values.inner()
            for node in self.scan.job.group.stored:
                self._store(inner, node, step.active, places)
        for registers, fresh in zip(held, made, strict=True):
            for value, register in zip(fresh, registers, strict=True):
                w.store(register, value if step.active is None else tirx.Select(step.active, value, register[0]), 0)

    def _made(self, held: Sequence[Buffer], step: Step, element: int) -> list[TirExpr]:
        """The new states of one of the thread's elements, known from here on as are the old ones."""
        w, scan, values = self.w, self.scan, step.values
        if step.restart is not None:
            for state, register in zip(scan.states, held, strict=True):
                w.store(register, tirx.Select(step.restart, self.initial(state), register[0]), 0)
        old = {state: w.keep(register[0]) for state, register in zip(scan.states, held, strict=True)}
        made = {row: w.keep(self.fresh(row, values, old, element)) for row in scan.rows}
        carried = {n: old[n.args[1]] for n in scan.job.group.nodes if n.op == "carried"}
        for node, known in {**made, **carried}.items():
            values.known[(node, self.indices[element])] = known
        return list(made.values())

    def _written(self, values: Loaded) -> dict[Argument, list[Expr]]:
        """Where what a step stores goes: a place of each element, or one of all."""
        assert values.step is not None
        found = {}
        for a in self.scan.arguments:
            if a.role == "write":
                place = self.scan.place(a)
                offsets = [dense(a.node.shape, index if a.node.shape else ()) for index in self.indices]
                lanes, first, _ = self.word(place, offsets[0])
                apart = [first] if lanes == self.side else offsets
                found[a] = [values.step.at((a, n), place, offset) for n, offset in enumerate(apart)]
        return found

    def _store(self, values: Values, node: Node, active: Expr | None, places: Mapping[Argument, list[Expr]]) -> None:
        found = [values.at(node, index if node.shape else ()) for index in self.indices]
        if self.masked and active is not None and node in self.scan.zeroed:
            found = [tirx.Select(active, value, tirx.const(0.0, self.dtype)) for value in found]
        for argument, each in places.items():
            if argument.node is node:
                count = len(found) // len(each)
                for n, at in enumerate(each):
                    own = found[n * count : (n + 1) * count]
                    store_lanes(self.w, argument.name, self.scan.place(argument).dtype, at, own, self.policy)

    def finish(self) -> None:
        w = self.w
        with w.when(tirx.EQ(self.chunk, w["chunks"] - 1)):
            for e, registers in enumerate(self.held):
                for n, register in enumerate(registers):
                    w.store(w[f"new_{n}"], register[0], self.flat + e)


class Few(Apply):
    """No more steps than a round of one warp has."""

    few = True
