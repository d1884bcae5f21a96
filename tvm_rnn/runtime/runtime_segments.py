"""Training in parts of the time on CPUs: one tape for a part, and forward once more where its values are not there.

In: a training module, a plan of memory (`runtime_memory.py`), and flat arrays of a call. Out: what `forward_train` and
`backward` return, with a `SegmentedTape`. Arrays are time-major, so that a part of the time is a slice of each: nothing
is copied. Works alone beside a .so, together with runtime.py, runtime_training.py and runtime_memory.py.

States lie at borders: number i before part i in time, the last one after the last part. What goes forward in time reads
the border before its part and writes that after it, what goes back does the reverse. In a network of two directions
each layer and direction goes through all parts for itself, in its own order; all use the same arrays of borders, each
its own place in them.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

try:
    from . import runtime
    from .runtime_memory import (
        MemoryPlan,
        Sizes,
        input_elements,
        row_elements,
        state_elements,
        weight_elements,
        why_whole,
    )
    from .runtime_training import Part, Tape, TrainingModule, by_visit, tape_elements, work_elements
except ImportError:  # this file and those that it names alone, beside a .so
    runtime = importlib.import_module("runtime")
    for _home in ("runtime_memory", "runtime_training"):
        globals().update(vars(importlib.import_module(_home)))

Flat = list[np.ndarray]


def sizes_of(manifest: Any, T: int, B: int) -> Sizes:
    """What calls of T steps of B rows take, of the module that has this manifest."""
    item, output = np.dtype(manifest["dtype"]).itemsize, row_elements(manifest)
    memory, facts = manifest.get("memory", {}), manifest["training"]
    totals, alone = int(facts["backward"]["totals_elements"]) if T and B else 0, by_visit(manifest)
    states = item * B * state_elements(manifest)

    def tape(steps: int) -> int:
        return int(item * tape_elements(manifest, steps, B, T))

    def work(steps: int, again: bool) -> int:
        if not steps or not B:
            return 0
        forward = work_elements(manifest, "forward", steps, B) + (steps * B * output if again else 0)
        if again and alone:  # what layers hand down lasts while others run forward again, and one border more
            return int(item * (forward + work_elements(manifest, "backward", steps, B, T)) + states)
        return int(item * max(forward, work_elements(manifest, "backward", steps, B)))

    results = item * (T * B * (output + input_elements(manifest)) + weight_elements(manifest)) + 2 * states
    flops = [B * float(memory.get(f"{way}_flops_per_row", rate)) for way, rate in (("forward", 1), ("backward", 2))]
    whole = why_whole(manifest, alone)
    return Sizes(T, B, tape, work, states, item * totals, results, flops[0], flops[1], by_visit=alone, whole=whole)


class SegmentedTape(Tape):
    """What one call of `forward_train` left for `backward` where its plan has several parts: the states at their
    borders, the inputs themselves, which must not change until then, and the values of one part at a time. Of a network
    of two directions these are of one layer and direction, and what layers hand to the next is there for all steps."""

    def __init__(
        self, module: TrainingModule, given: Any, plan: MemoryPlan, like: Any, inputs: Flat, has: Any, rows: Any
    ) -> None:
        super().__init__(module, given, plan.steps, plan.batch, like, plan.segment)
        self.plan, self.inputs, self.has, self.rows, self.spans = plan, inputs, has, rows, plan.spans
        manifest = module.manifest
        self.layers, self.directions = int(manifest["num_layers"]), int(manifest["num_directions"])
        self.reverse = bool(manifest.get("reverse", False))
        self.borders: list[Flat] = [[] for _ in range(len(self.spans) + 1)]
        self.held, self.lock = [(-1, -1)], threading.Lock()  # the part whose values are on the tape, and whose they are

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes) + sum(array.nbytes for states in self.borders for array in states)

    def goes_back(self, visit: int) -> bool:
        """Whether a layer and direction (-1: all) goes from the last step to the first."""
        return self.reverse != (visit >= 0 and visit % self.directions == 1)

    def order(self, visit: int) -> list[int]:
        """Numbers of the parts as forward goes through them."""
        numbers = [*range(len(self.spans))]
        return numbers[::-1] if self.goes_back(visit) else numbers

    def ends(self, number: int, visit: int) -> tuple[int, int]:
        """The borders at which forward begins and ends a part."""
        return (number + 1, number) if self.goes_back(visit) else (number, number + 1)

    def part(self, number: int, visit: int) -> Part:
        """As the module's functions take it."""
        start, count = self.spans[number]
        return Part(start, count, visit, self.plan.segment if visit >= 0 else 0)

    def slices(self, number: int) -> tuple[Flat, list[Any]]:
        """Of one part: inputs, and its rows' lengths and resets."""
        start, count = self.spans[number]
        inputs = [part(array, start, count, self.T) for array in self.inputs]
        lengths = np.clip(self.rows[0] - start, 0, count) if self.has[0] else self.rows[0]
        reset = part(self.rows[1], start, count, self.T) if self.has[1] else self.rows[1]
        return inputs, [lengths, reset]

    def write(self, number: int, visit: int, y: np.ndarray | None) -> None:
        """Run forward through a part, onto the tape. y: where its output goes; None: it is not wanted."""
        inputs, rows = self.slices(number)
        first, last = self.ends(number, visit)
        module: Any = self.module
        module._forward(self, self.part(number, visit), inputs, y, self.borders[first], self.borders[last], rows)
        if self.goes_back(visit):
            initial = [value for _, value, _, _ in module._plan(self.B)]
            self.begin_again(self.borders[last], self.spans[number][0], visit, initial)
        self.held[0] = number, visit

    def begin_again(self, states: Flat, step: int, visit: int, values: Sequence[float]) -> None:
        """What goes back in time begins again between a step with a flag and the one before it: states between two
        parts, or their gradients, become these values. step: the first of the later part."""
        if not self.has[1] or not 0 < step < self.T:
            return
        rows = part(self.rows[1], step, 1, self.T) != 0
        rows = rows & (self.rows[0] > step) if self.has[0] else rows
        module: Any = self.module
        for state, value, item in zip(states, values, module.manifest["states"], strict=True):
            at = 0
            for number, shape in enumerate(s for s in item["shapes"] for _ in range(self.directions)):
                size = self.B * math.prod(shape)
                if visit in (-1, number):
                    state[at : at + size].reshape(self.B, -1)[rows] = value
                at += size


def part(array: np.ndarray, start: int, count: int, steps: int) -> np.ndarray:
    """Some steps of a flat array that has T of them."""
    row = array.size // steps
    return array[start * row : (start + count) * row]


def forward(tape: SegmentedTape, before: Flat, y: np.ndarray) -> Flat:
    """All parts, y [T B ...] flat. Returns the states after the last."""
    count, alone = len(tape.spans), tape.directions > 1
    for number in range(count + 1):
        first = number in (0, count) if alone else number == tape.ends(tape.order(-1)[0], -1)[0]
        copied = [array.copy() for array in before] if first else [np.empty_like(array) for array in before]
        tape.borders[number] = copied  # the caller's may change
    for visit in range(tape.layers * tape.directions) if alone else (-1,):
        for number in tape.order(visit):
            tape.write(number, visit, part(y, *tape.spans[number], tape.T))
    if not alone:
        last = tape.ends(tape.order(-1)[-1], -1)[1]
        after, tape.borders[last] = tape.borders[last], [np.empty_like(array) for array in before]
        return after
    return both(tape, tape.borders[count], tape.borders[0])


def both(tape: SegmentedTape, forth: Flat, back: Flat) -> Flat:
    """States of which those of the direction that goes back in time come from `back`."""
    module: Any = tape.module
    after = [array.copy() for array in forth]
    for state, other, item in zip(after, back, module.manifest["states"], strict=True):
        at = 0
        for shape in item["shapes"]:
            size = tape.B * math.prod(shape)
            state[at + size : at + 2 * size] = other[at + size : at + 2 * size]
            at += 2 * size
    return after


def backward(tape: SegmentedTape, above: np.ndarray | None, carried: Flat, d_x: Flat, totals: np.ndarray) -> Flat:
    """From the gradient of y (None: zeros) and those of the last states to those of the first, which are returned; the
    gradients of inputs go to d_x, sums of all parts to totals."""
    module: Any = tape.module
    results = [np.empty_like(array) for array in carried]
    turns = [[np.empty_like(array) for array in carried] for _ in range(2)]
    alone, work = tape.directions > 1, None
    if alone:  # what layers hand down must last
        elements = work_elements(module.manifest, "backward", tape.plan.segment, tape.B, tape.T)
        work = runtime._aligned(elements, module._dtype)
    layers = reversed(range(tape.layers))
    visits = [layer * tape.directions + d for layer in layers for d in range(tape.directions)] if alone else [-1]
    with tape.lock:
        for visit in visits:
            given, order = carried, tape.order(visit)[::-1]
            for number in order:
                if tape.held[0] != (number, visit):
                    tape.write(number, visit, None)
                own = tape.part(number, visit)
                if above is None:
                    gradient = np.zeros(own.steps * tape.B * math.prod(module._output), module._dtype)
                else:
                    gradient = part(above, own.start, own.steps, tape.T)
                after = results if number == order[-1] else turns[number % 2]
                below = [part(array, own.start, own.steps, tape.T) for array in d_x]
                rows = tape.slices(number)[1]
                module._backward(tape, own, gradient, given, after, below, rows, totals, work)
                if tape.goes_back(visit):
                    tape.begin_again(after, own.start + own.steps, visit, [0.0] * len(after))
                given = after
    return results
