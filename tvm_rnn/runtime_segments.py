"""Training in parts of the time on CPUs: one tape for a part, and forward once more where its values are not there.

In: a training module, a plan of memory (`runtime_memory.py`), and flat arrays of a call. Out: what `forward_train` and
`backward` return, with a `SegmentedTape`. Arrays are time-major, so that a part of the time is a slice of each: nothing
is copied. Works alone beside a .so, together with runtime.py, runtime_training.py and runtime_memory.py.
"""

from __future__ import annotations

import importlib
import math
import threading
from typing import Any

import numpy as np

try:
    from .runtime_memory import (
        MemoryPlan,
        Sizes,
        input_elements,
        row_elements,
        state_elements,
        weight_elements,
        why_whole,
    )
    from .runtime_training import Tape, TrainingModule, tape_elements, work_elements
except ImportError:  # this file and those that it names alone, beside a .so
    for _home in ("runtime_memory", "runtime_training"):
        globals().update(vars(importlib.import_module(_home)))

Flat = list[np.ndarray]


def sizes_of(manifest: Any, T: int, B: int, reset: bool = False) -> Sizes:
    """What calls of T steps of B rows take, of the module that has this manifest. reset: with resets."""
    item, output = np.dtype(manifest["dtype"]).itemsize, row_elements(manifest)
    memory, facts = manifest.get("memory", {}), manifest["training"]
    totals = int(facts["backward"]["totals_elements"]) if T and B else 0

    def tape(steps: int) -> int:
        return int(item * tape_elements(manifest, steps, B))

    def work(steps: int, again: bool) -> int:
        forward, backward = (work_elements(manifest, way, steps, B) for way in ("forward", "backward"))
        most = max(forward + (steps * B * output if again else 0), backward)
        return int(item * most) if steps and B else 0

    states = item * B * state_elements(manifest)
    results = item * (T * B * (output + input_elements(manifest)) + weight_elements(manifest)) + 2 * states
    flops = [B * float(memory.get(f"{way}_flops_per_row", rate)) for way, rate in (("forward", 1), ("backward", 2))]
    return Sizes(T, B, tape, work, states, item * totals, results, flops[0], flops[1], whole=why_whole(manifest, reset))


class SegmentedTape(Tape):
    """What one call of `forward_train` left for `backward` where its plan has several parts: the states before each,
    the inputs themselves, which must not change until then, and the values of one part at a time."""

    def __init__(
        self, module: TrainingModule, given: Any, plan: MemoryPlan, like: Any, inputs: Flat, has: Any, rows: Any
    ) -> None:
        super().__init__(module, given, plan.steps, plan.batch, like, plan.segment)
        self.plan, self.inputs, self.has, self.rows = plan, inputs, has, rows
        spans = plan.spans
        self.spans = spans[::-1] if module.manifest.get("reverse", False) else spans  # in the order in which they run
        self.before: list[Flat] = []
        self.held, self.lock = [-1], threading.Lock()  # the part whose values are on the tape

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes) + sum(array.nbytes for states in self.before for array in states)

    def slices(self, number: int) -> tuple[int, int, Flat, list[Any]]:
        """Of one part: steps, the row of its first step among all, inputs, and its rows' lengths and resets."""
        (start, count), B = self.spans[number], self.B
        inputs = [part(array, start, count, self.T) for array in self.inputs]
        lengths = np.clip(self.rows[0] - start, 0, count) if self.has[0] else self.rows[0]
        reset = part(self.rows[1], start, count, self.T) if self.has[1] else self.rows[1]
        return count, start * B, inputs, [lengths, reset]

    def write(self, number: int, y: np.ndarray | None) -> Flat:
        """Run forward through a part, onto the tape. Returns the states after it. y: where its output goes; None: it
        is not wanted."""
        count, _, inputs, rows = self.slices(number)
        after = [np.empty_like(array) for array in self.before[number]]
        module: Any = self.module
        module._forward(self, count, inputs, y, self.before[number], after, rows)
        self.held[0] = number
        return after


def part(array: np.ndarray, start: int, count: int, steps: int) -> np.ndarray:
    """Some steps of a flat array that has T of them."""
    row = array.size // steps
    return array[start * row : (start + count) * row]


def forward(tape: SegmentedTape, before: Flat, y: np.ndarray) -> Flat:
    """All parts, y [T B ...] flat. Returns the states after the last."""
    state = [array.copy() for array in before]  # the caller's may change
    for number, (start, count) in enumerate(tape.spans):
        tape.before.append(state)
        state = tape.write(number, part(y, start, count, tape.T))
    return state


def backward(tape: SegmentedTape, above: np.ndarray | None, carried: Flat, d_x: Flat, totals: np.ndarray) -> Flat:
    """From the gradient of y (None: zeros) and those of the last states to those of the first, which are returned; the
    gradients of inputs go to d_x, sums of all parts to totals."""
    module: Any = tape.module
    with tape.lock:
        for number in reversed(range(len(tape.spans))):
            if tape.held[0] != number:
                tape.write(number, None)
            start, count = tape.spans[number]
            _, _, _, rows = tape.slices(number)
            if above is None:
                given = np.zeros(count * tape.B * math.prod(module._output), module._dtype)
            else:
                given = part(above, start, count, tape.T)
            after = [array.copy() for array in carried]
            own = [part(array, start, count, tape.T) for array in d_x]
            module._backward(tape, count, given, carried, after, own, rows, totals)
            carried = after
    return carried
