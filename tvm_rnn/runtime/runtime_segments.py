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

import math
from collections.abc import Sequence

import numpy as np

from . import runtime
from .runtime import Array, Facts
from .runtime_memory import (
    MemoryPlan,
    Segments,
    Sizes,
    input_elements,
    row_elements,
    state_elements,
    weight_elements,
    why_whole,
)
from .runtime_training import Call, Flats, Part, Tape, TrainingModule, by_visit, tape_elements, work_elements


def sizes_of(manifest: Facts, T: int, B: int) -> Sizes:
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

    def __init__(self, module: TrainingModule, call: Call, plan: MemoryPlan) -> None:
        super().__init__(module, call, plan.segment)
        self.plan, self.inputs, self.segments = plan, call.inputs, Segments(module.manifest, plan)
        self.borders: list[Flats] = [[] for _ in range(len(plan.spans) + 1)]

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes) + sum(array.nbytes for states in self.borders for array in states)

    def ends(self, number: int, visit: int) -> tuple[int, int]:
        """The borders at which forward begins and ends a part."""
        return (number + 1, number) if self.segments.goes_back(visit) else (number, number + 1)

    def part(self, number: int, visit: int) -> Part:
        """As the module's functions take it."""
        start, count = self.plan.spans[number]
        return Part(start, count, self.T, visit, self.plan.segment if visit >= 0 else 0)

    def slices(self, number: int) -> tuple[Flats, list[Array]]:
        """Of one part: inputs, and its rows' lengths and resets."""
        start, count = self.plan.spans[number]
        inputs = [part(array, start, count, self.T) for array in self.inputs]
        lengths = np.clip(self.rows[0] - start, 0, count) if self.has[0] else self.rows[0]
        reset = part(self.rows[1], start, count, self.T) if self.has[1] else self.rows[1]
        return inputs, [lengths, reset]

    def write(self, number: int, visit: int, y: np.ndarray | None) -> None:
        """Run forward through a part, onto the tape. y: where its output goes; None: it is not wanted."""
        inputs, rows = self.slices(number)
        first, last = self.ends(number, visit)
        own, module = self.part(number, visit), self.module
        module._forward(self, own, inputs, y, self.borders[first], self.borders[last], rows)
        if self.segments.goes_back(visit):
            self.begin_again(self.borders[last], own.start, visit, [state.initial for state in module._plan(self.B)])
        self.segments.held[0] = number, visit

    def begin_again(self, states: Flats, step: int, visit: int, values: Sequence[float]) -> None:
        """What goes back in time begins again between a step with a flag and the one before it: states between two
        parts, or their gradients, become these values. step: the first of the later part."""
        if not self.has[1] or not 0 < step < self.T:
            return
        rows = part(self.rows[1], step, 1, self.T) != 0
        rows = rows & (self.rows[0] > step) if self.has[0] else rows
        for state, value, item in zip(states, values, self.module.manifest.states, strict=True):
            at = 0
            for number, shape in enumerate(s for s in item.shapes for _ in range(self.segments.directions)):
                size = self.B * math.prod(shape)
                if visit in (-1, number):
                    state[at : at + size].reshape(self.B, -1)[rows] = value
                at += size

    def forward(self, inputs: Flats, before: Flats, y: np.ndarray) -> Flats:
        segments, count = self.segments, len(self.plan.spans)
        first, last = (self.ends(segments.order(-1)[i], -1)[i] for i in (0, -1))
        begun = (0, count) if segments.alone else (first,)
        self.borders = [  # the caller's may change
            [array.copy() if number in begun else np.empty_like(array) for array in before]
            for number in range(count + 1)
        ]
        for visit in segments.visits:
            for number in segments.order(visit):
                self.write(number, visit, part(y, *self.plan.spans[number], self.T))
        if segments.alone:
            return self.both(self.borders[count], self.borders[0])
        after, self.borders[last] = self.borders[last], [np.empty_like(array) for array in before]
        return after

    def both(self, forth: Flats, back: Flats) -> Flats:
        """States of which those of the direction that goes back in time come from `back`."""
        after = [array.copy() for array in forth]
        for state, other, item in zip(after, back, self.module.manifest.states, strict=True):
            at = 0
            for shape in item.shapes:
                size = self.B * math.prod(shape)
                state[at + size : at + 2 * size] = other[at + size : at + 2 * size]
                at += 2 * size
        return after

    def backward(self, above: np.ndarray | None, carried: Flats, d_x: Flats, totals: np.ndarray) -> Flats:
        module, segments, work = self.module, self.segments, None
        results, *turns = ([np.empty_like(array) for array in carried] for _ in range(3))
        if segments.alone:  # what layers hand down must last
            elements = work_elements(module.manifest, "backward", self.plan.segment, self.B, self.T)
            work = runtime._aligned(elements, module._dtype)
        given = carried
        with segments.lock:
            for number, visit, begins, ends in segments.backward():
                if segments.held[0] != (number, visit):
                    self.write(number, visit, None)
                own = self.part(number, visit)
                if above is None:
                    gradient = np.zeros(own.steps * self.B * math.prod(module._output), module._dtype)
                else:
                    gradient = part(above, own.start, own.steps, self.T)
                given, after = carried if begins else given, results if ends else turns[number % 2]
                below = [part(array, own.start, own.steps, self.T) for array in d_x]
                module._backward(self, own, gradient, given, after, below, self.slices(number)[1], totals, work)
                if segments.goes_back(visit):
                    self.begin_again(after, own.start + own.steps, visit, [0.0] * len(after))
                given = after
        return results


def part(array: np.ndarray, start: int, count: int, steps: int) -> np.ndarray:
    """Some steps of a flat array that has T of them."""
    row = array.size // steps
    return array[start * row : (start + count) * row]
