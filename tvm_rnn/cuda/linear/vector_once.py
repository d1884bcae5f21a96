"""A kernel of a recurrence of vectors in chunks of time whose operands are read once.

In: the group, and memory full of ones. Out: statements: a block keeps the operands of a round in registers, publishes
what its chunk does, and joins what those before it in a group of chunks do; the last one of the group publishes the
states behind it, so the order is that of every call.

Source: Merrill and Garland 2016, "Single-pass parallel prefix scan with decoupled look-back".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import wide

from .published import Awaited, publish, wait
from .vector_apply import Apply
from .vector_effects import Effect
from .vector_loads import Loads, Step

AWAITED = 4  # chunks whose effects a warp waits for at once


class Once(Apply):
    """A chunk of one round: what it does is published before it is known what comes before it."""

    @property
    def numbers(self) -> range:
        """Of the words of what a chunk does, those that are published."""
        return range(0 if self.cuts else 1, self.scan.words)

    def _rounds(self) -> None:
        w = self.w
        mine = w.keep(self.first + self.part * self.scan.ahead)
        self._old_states()
        whole = w.keep(tirx.Cast("int32", self.first + self.each <= self.stop))
        for last in (False, True):
            with w.when(tirx.EQ(whole, int(not last))):
                loads = self._loads(mine, last)
                if not last:
                    self._prefetch(loads, w.keep(mine + w["group"] * self.each))
                for own in loads:
                    own.take()
                self._round(0, mine, loads, last)

    def _prefetch(self, loads: Sequence[Loads], after: Expr) -> None:
        """Operands of a block that begins when this one ends reach the L2 cache while blocks wait for each other."""
        with self.w.when(after + self.scan.ahead <= self.w["steps"]):
            for own, row in zip(loads, self._rows(after, last=False), strict=True):
                own.prefetch(row)

    def round(self, number: Expr, steps: Sequence[Step]) -> None:
        w, group = self.w, self.w["group"]
        self.group = w.keep(tirx.truncdiv(self.chunk, group))
        behind = w.keep(self.chunk + 1 - self.group * group)  # chunks of the group up to this one
        asked = tirx.And(tirx.EQ(self.part, 0), tirx.And(self.there, self.chunk + 1 < w["chunks"]))
        parts = self.effects(number, steps)
        with w.when(tirx.And(asked, behind < group)):
            self._publish_effect(parts)
        self._enter(w.keep(behind - 1))
        held = self._reached(parts)
        with w.when(tirx.And(asked, tirx.EQ(behind, group))):
            states = [[register[0] for register in registers] for registers in self.held]
            self._publish(states, partial(self._state_at, self.group))
        for step in steps:
            self._step(held, step)

    def _publish_effect(self, parts: Sequence[Sequence[Sequence[Expr]]]) -> None:
        """What the chunk does. parts: what its warps do."""
        every = [own.words() for own in self._joined(parts)]
        self._publish([[words[n] for n in self.numbers] for words in every], partial(self._effect_at, self.chunk))

    def _effect_at(self, chunk: Expr, number: int) -> Expr:
        """Where a number of what a chunk does lies, of the first element."""
        return (wide(chunk) * len(self.numbers) + number) * self.lanes + self.flat

    def _state_at(self, group: Expr, number: int) -> Expr:
        """Where a state behind a group lies, of the first element."""
        before = wide(self.w["chunks"]) * len(self.numbers)
        return (before + wide(group) * len(self.scan.states) + number) * self.lanes + self.flat

    def _publish(self, elements: Sequence[Sequence[Expr]], place: Callable[[int], Expr]) -> None:
        """elements: the numbers of each."""
        for number, words in enumerate(zip(*elements, strict=True)):
            publish(self.w, "chunk_ends", self.dtype, place(number), words)

    def _joined(self, parts: Sequence[Sequence[Sequence[Expr]]]) -> list[Effect]:
        """What the parts do, one behind the other, to each element."""
        total = [Effect(self, e) for e in self.elements]
        for part in parts:
            for own, words in zip(total, part, strict=True):
                own.join(words)
        return total

    def _enter(self, before: Expr) -> None:
        """The states that the chunk begins with. before: chunks of the group before it."""
        w, total = self.w, [Effect(self, e) for e in self.elements]
        with w.when(before > 0):
            for own, found in zip(total, self._joined(self.exchanged(1, self._before(before))), strict=True):
                own.become(found.words())
        with w.when(self.group > 0):
            states = [self._awaited(self._state_at(self.group - 1, n)) for n in range(len(self.scan.states))]
            wait(states)
            for n, state in enumerate(states):
                for registers, value in zip(self.held, state.values(), strict=True):
                    w.store(registers[n], value, 0)
        with w.when(before > 0):
            self._act([own.words() for own in total])

    def _before(self, count: Expr) -> list[Effect]:
        """What this warp's share of so many chunks before its own does, one behind the other."""
        w, own = self.w, [Effect(self, e) for e in self.elements]
        share = w.keep(tirx.truncdiv(count + (self.warps - 1), self.warps))
        first = w.keep(self.chunk - count + self.part * share)
        stop = w.keep(tirx.Min(first + share, self.chunk))
        with w.loop(tirx.truncdiv(share + (AWAITED - 1), AWAITED)) as i:
            chunks = [w.keep(first + i * AWAITED + k) for k in range(AWAITED)]
            # Where there are no more, what the last one does.
            found = self._ends([w.keep(tirx.Min(chunk, self.chunk - 1)) for chunk in chunks])
            for chunk, elements in zip(chunks, found, strict=True):
                for effect, words in zip(own, elements, strict=True):
                    kept = zip(words, effect.nothing(), strict=True)
                    effect.join([w.keep(tirx.Select(chunk < stop, word, none)) for word, none in kept])
        return own

    def _ends(self, chunks: Sequence[Expr]) -> list[list[list[Expr]]]:
        """What each chunk does to each element, once it is published."""
        never = [] if self.cuts else [tirx.const(0.0, self.dtype)]
        places = range(len(self.numbers))
        found = [[self._awaited(self._effect_at(chunk, n)) for n in places] for chunk in chunks]
        wait([word for words in found for word in words])
        values = [[word.values() for word in words] for words in found]
        return [[[*never, *(word[e] for word in words)] for e in self.elements] for words in values]

    def _awaited(self, at: Expr) -> Awaited:
        return Awaited(self.w, "chunk_ends", self.dtype, at, self.side)
