"""Clocks in persistent kernels: how long the blocks of a kernel wait, multiply and compute in each phase of a step.

In: the kernel's body, in a block of `clocked`, which `explain` opens around a compilation; all other kernels have none
of it. Out: statements. The first lane of each warp reads its multiprocessor's clock where one part of a phase ends and
adds the cycles since the last time to numbers of its block in global memory: one for each part of each phase, then
steps, cycles and nanoseconds from the first step to the last, which say how long a cycle is. `Clocks` knows whose
numbers lie where, and `measured` makes times of them.

Nobody waits for an addition; a step takes longer all the same, as more instructions are in its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Pointer
from tvm_rnn.tir.expr import Expr

from .geometry import LANES, Body

POINTER = ("clocks", "uint64")
PARTS = ("exchange", "product", "cells")  # of a phase, as the model of time has them
TOTALS = ("steps", "cycles", "nanoseconds")
BLOCKS = 256  # with numbers of their own: a block further on adds to those of an earlier one


@dataclass
class Clocks:
    """Where the numbers of each kernel lie. kernels: by name how many phases it has, and its first number."""

    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    count: int = 0

    def pointer(self, kernel: str, phases: int) -> Pointer:
        """A kernel's numbers."""
        if kernel not in self.kernels:
            self.kernels[kernel] = phases, self.count
            self.count += BLOCKS * width(phases)
        return Pointer("host::clocks", POINTER[1]).at(self.kernels[kernel][1])

    def measured(self, kernel: str, numbers: Sequence[int]) -> list[dict[str, float]]:
        """Microseconds of each part of each phase of a step, the mean of all blocks; empty where the kernel did not
        run. numbers: what all kernels have added, from zeros."""
        if kernel not in self.kernels:
            return []
        phases, first = self.kernels[kernel]
        each = width(phases)
        blocks = [numbers[first + n * each : first + (n + 1) * each] for n in range(BLOCKS)]
        sums = [sum(column) for column in zip(*blocks, strict=True)]
        steps, cycles, nanoseconds = sums[-len(TOTALS) :]
        if not steps or not cycles:
            return []
        us = nanoseconds / cycles / steps / 1000
        found = [sums[n * len(PARTS) : (n + 1) * len(PARTS)] for n in range(phases)]
        return [{part: count * us for part, count in zip(PARTS, own, strict=True)} for own in found]


_CLOCKS: ContextVar[Clocks | None] = ContextVar("_CLOCKS", default=None)


@contextmanager
def clocked() -> Iterator[Clocks]:
    """Persistent kernels that are planned and written in this block have clocks."""
    token = _CLOCKS.set(found := Clocks())
    try:
        yield found
    finally:
        _CLOCKS.reset(token)


def clocks() -> Clocks | None:
    """Where kernels that are planned now have their numbers, or None."""
    return _CLOCKS.get()


def width(phases: int) -> int:
    """How many numbers a block has."""
    return phases * len(PARTS) + len(TOTALS)


class PhaseClock:
    """The clock of this thread. Where the kernel has no pointer to numbers, it emits nothing."""

    def __init__(self, body: Body, phases: int) -> None:
        self.body, self.k, self.phases = body, body.k, phases
        self.phase, self.part = 0, PARTS[0]
        self.on = POINTER[0] in body.k.arguments

    def prepare(self) -> None:
        """Before the first step."""
        if not self.on:
            return
        k = self.k
        # As it was launched: the group's number is that of its head, and blocks that add to the same numbers wait.
        block = I.cuda.mov_sreg(32, "ctaid.x")
        self.numbers = k.keep(tirx.floormod(block, BLOCKS) * width(self.phases))
        self.last, self.begun, self.timer = (k.local(1, "uint64") for _ in range(3))
        k.store(self.begun, self._now(), 0)
        k.store(self.timer, self._nanoseconds(), 0)
        k.store(self.last, self.begun[0], 0)

    def enter(self, phase: int, part: str) -> None:
        """What comes from here on is a part of that phase."""
        self._lap(self.part)
        self.phase, self.part = phase, part

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Statements that wait for what other warps or blocks give."""
        self._lap(self.part)
        yield
        self._lap("exchange")

    def end(self) -> None:
        """Behind the last step."""
        if not self.on:
            return
        self._lap(self.part)
        found = {"cycles": self.last[0] - self.begun[0], "nanoseconds": self._nanoseconds() - self.timer[0]}
        found["steps"] = tirx.Cast("uint64", self.k["steps"])
        for n, name in enumerate(TOTALS):
            self._add(self.phases * len(PARTS) + n, found[name])

    def _lap(self, part: str) -> None:
        if self.on:
            now = self.k.keep(self._now())
            self._add(self.phase * len(PARTS) + PARTS.index(part), now - self.last[0])
            self.k.store(self.last, now, 0)

    def _add(self, number: int, value: Expr) -> None:
        place = self.k[POINTER[0]].ptr_to([self.numbers + number])
        with self.k.when(tirx.floormod(self.body.ids.thread, LANES) == 0):
            self.k.do(I.ptx["red.global.add.u64"](place, value))

    def _now(self) -> Expr:
        return I.cuda.clock64()

    def _nanoseconds(self) -> Expr:
        return tirx.Cast("uint64", I.cuda.mov_sreg(64, "globaltimer"))
