"""A kernel of a recurrence of vectors in chunks of time that are all on the GPU at once, each read twice by its block.

In: the group, and memory that the kernel before it fills with ones. Out: statements: each warp has steps of its own,
and finds from their end what they do, so that the first ones are what the chip has had last: operands of some rounds
stay in shared memory (`kept_operands.py`), those of one in registers, and of the others the level-2 cache has most. A
block publishes what its chunk does, joins what all chunks before it do, always in the same order, and each warp walks
its steps. Operands are read while the kernel before it runs: it must have waited for who wrote them, as `set_words`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.tir.expr import Expr, TirExpr

from .kept_operands import Kept
from .vector_effects import Effect
from .vector_group import VectorGroup
from .vector_loads import Loads, Step
from .vector_once import Once


class AtOnce(Once):
    """A chunk of several rounds, each of a warp's own steps. from_the_end: it is found what they do."""

    from_the_end = True

    def __init__(self, writer: Writer, scan: VectorGroup, masked: bool) -> None:
        super().__init__(writer, scan, masked)
        self.each = scan.ahead

    def _rounds(self) -> None:
        w = self.w
        if self.scan.job.early:
            w.launch_next()
        self._own_steps()
        self._old_states()
        self.policy, self.often = self._cache_policy("evict_first"), self._cache_policy("evict_last")
        self.total = [Effect(self, e) for e in self.elements]
        whole = w.keep(tirx.truncdiv(self.stop - self.first, self.each))
        self._rest(whole, self.first)
        loads = self._loads(self.first + tirx.Max(whole - 1, tirx.const(0, "int32")) * self.each, last=True)
        kept = Kept(self, loads)
        self._find(whole, loads, kept)
        self._meet()
        self.from_the_end = False
        self._walk(whole, loads, kept)
        self._rest(whole, self.first)

    def _own_steps(self) -> None:
        """Of a warp: whole rounds, as long as there are steps."""
        w, ahead = self.w, self.scan.ahead
        rounds = tirx.truncdiv(self.stop - self.first + (self.warps * ahead - 1), self.warps * ahead)
        each = w.keep(rounds * ahead)
        self.first = w.keep(tirx.Min(self.first + self.part * each, self.stop))
        self.stop = w.keep(tirx.Min(self.first + each, self.stop))

    def _cache_policy(self, name: str) -> TirExpr:
        found = self.w.local(1, "uint64")
        self.w.do(I.ptx[f"createpolicy.fractional.L2::{name}.b64"](found[0]))
        return found[0]

    def _find(self, count: Expr, loads: Sequence[Loads], kept: Kept) -> None:
        """What the warp's whole rounds do. loads: of the last one; then of the first one."""
        w = self.w
        with w.loop(count) as i:
            number = w.keep(count - 1 - i)
            at = w.keep(self.first + number * self.each)
            kept.store(number, loads)
            for own in loads:
                own.take()
            with w.when(number > 0):
                # What stays on the chip is not asked of the level-2 cache again.
                how = w.keep(tirx.Select(number <= kept.rounds + 1, self.policy, self.often))
                for own, row in zip(loads, self._rows(at - self.each, last=False), strict=True):
                    own.ask(row, how)
            self._round(number, at, loads, last=False)

    def _meet(self) -> None:
        """What the block's steps do is published, and it is found what this warp's steps begin with."""
        w = self.w
        parts = self.exchanged(0, self.total)
        if self.scan.job.early:
            w.wait_for_last()
        asked = tirx.And(tirx.EQ(self.part, 0), tirx.And(self.there, self.chunk + 1 < w["chunks"]))
        with w.when(asked):
            self._publish_effect(parts)
        with w.when(self.chunk > 0):
            for warp in self.exchanged(1, self._before(self.chunk)):
                self._act(warp)
        self.reached = self._reached(parts)

    def _walk(self, count: Expr, loads: Sequence[Loads], kept: Kept) -> None:
        """The warp's whole rounds. loads: of the first one."""
        w = self.w
        with w.loop(count) as i:
            at = w.keep(self.first + i * self.each)
            for own in loads:
                own.take()
            after = w.keep(i + 1)
            kept.load(after, loads)
            with w.when(tirx.And(after < count, after > kept.rounds)):
                for own, row in zip(loads, self._rows(at + self.each, last=False), strict=True):
                    own.ask(row, self.policy)
            self._round(i, at, loads, last=False)

    def round(self, number: Expr, steps: Sequence[Step]) -> None:
        if self.from_the_end:
            for total, own in zip(self.total, self.own_effects(steps), strict=True):
                total.come_behind(own.words())
            return
        for step in steps:
            self._step(self.reached, step)
