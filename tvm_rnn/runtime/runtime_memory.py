"""Plans for the memory of training: how many steps a tape holds at a time, and so how much of forward runs twice.

In: what a module's calls take, as functions of their steps. Out: a `MemoryPlan`: the fastest that fits a number of
bytes, the smallest there is, or a table of those worth having. Works alone beside a .so, together with runtime.py.

A plan is one number, `segment`: the tape has room for so many of the T steps. Where these are all, forward_train writes
everything, and backward reads it. Else forward_train goes through ceil(T / segment) parts of the time, the first of
which is the short one, and writes each over the part before; what stays is the states between parts, and the tape of
the last one. backward goes from the last part to the first. The last is on the tape still; every other part runs
forward once more, from the states that were kept, before its backward. So `T - segment` steps run forward twice,
however many parts there are: of two plans that fit, that with the longer segment is the faster. Parts cost a state of
all rows each; that is why a very short segment takes more again, and what the smallest budget is.

In a network of two directions a layer reads both directions of the one below, which begin at both ends of time. There
each layer and direction goes through the parts for itself (`by_visit`), from its own first to its last, and in backward
the other way: what one layer hands to the next, and the gradient of that, has room for all steps, kept values for a
segment. All T steps run forward twice.

Source: Griewank & Walther 2000, "Algorithm 799: Revolve", of which this is the form with one level.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from . import runtime
from .runtime import Facts, InputError

SHARES = (0.75, 0.5, 0.375, 0.25, 0.125, 0.0625, 0.03125)  # of the bytes of all steps, in a table
MEGABYTE = 1e6


@dataclass(frozen=True)
class Sizes:
    """Of a call with `steps` steps of `batch` rows. Bytes: tape(s) and work(s, again) of s steps; again: y too, of
    steps that run a second time; of all rows' states once; of what does not depend on the plan; and of what the caller
    gets (y, states and gradients). Time, in any unit: of one step forward and backward, and start, what a program takes
    however few its steps are. by_visit: each layer and direction goes through time for itself; serial: how many times
    as long forward then takes as where both directions run at the same time. whole: "", or why all steps must be on
    the tape at once."""

    steps: int
    batch: int
    tape: Callable[[int], int]
    work: Callable[[int, bool], int]
    states: int
    fixed: int
    results: int
    forward: float
    backward: float
    start: float = 0.0
    by_visit: bool = False
    serial: float = 1.0
    whole: str = ""


def why_whole(manifest: Facts, by_visit: bool) -> str:
    """Why time cannot be gone through in parts; "": it can. by_visit: the module's functions take one layer and
    direction at a time, as those of two directions do that were compiled since."""
    if int(manifest["num_directions"]) > 1 and not by_visit:
        return "the module is of two directions, and of a version that could not; compile it again"
    return ""


class Counts(NamedTuple):
    """Of a network: y and all inputs, for one row of one step; all states, for one row; all weights."""

    output: int
    inputs: int
    states: int
    weights: int

    @classmethod
    def of(cls, manifest: Facts) -> Counts:
        directions = int(manifest["num_directions"])
        states = sum(math.prod(shape) for item in manifest["states"] for shape in item["shapes"])
        inputs, weights = (sum(math.prod(item["shape"]) for item in manifest[kind]) for kind in ("inputs", "weights"))
        return cls(directions * math.prod(manifest["output"]["shape"]), inputs, directions * states, weights)


@dataclass(frozen=True)
class MemoryPlan:
    """How forward_train and backward share memory. steps, batch: T and B. segment: steps that the tape has room for.
    bytes: predicted, of all that the two calls take besides what they return: the tape, states between parts, working
    memory and sums. result_bytes: of what they return. time: predicted, relative to all steps on one tape. by_visit:
    each layer and direction goes through time for itself."""

    steps: int
    batch: int
    segment: int
    bytes: int
    result_bytes: int
    time: float
    by_visit: bool = False

    @property
    def peak_bytes(self) -> int:
        """The most that the two calls take, with what they return."""
        return self.bytes + self.result_bytes

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(first step, steps) of each part, in order of time."""
        count = -(-self.steps // self.segment) if self.segment else 0
        ends = [self.steps - self.segment * i for i in reversed(range(count))]
        return [(max(0, end - self.segment), end - max(0, end - self.segment)) for end in ends]

    @property
    def again(self) -> int:
        """Steps that run forward a second time."""
        return self.steps if self.by_visit and self.segment < self.steps else self.steps - self.segment

    def __str__(self) -> str:
        parts = len(self.spans)
        words = f"{self.bytes / MEGABYTE:.4g} MB for {self.steps} steps of {self.batch} rows: "
        if parts < 2:
            return words + "all steps on one tape"
        words += f"{parts} parts of {self.segment} steps" + (", by layer and direction" if self.by_visit else "")
        return words + f", {self.again} steps forward twice, time x {self.time:.3g}"

    def facts(self) -> dict[str, int | float | bool]:
        """Ready for json.dumps."""
        parts: dict[str, int | float | bool] = {
            "segment_steps": self.segment,
            "segments": len(self.spans),
            "steps_again": self.again,
        }
        parts |= {"by_layer_and_direction": True} if self.by_visit else {}
        sizes = {"bytes": self.bytes, "result_bytes": self.result_bytes, "peak_bytes": self.peak_bytes}
        return {**parts, **sizes, "relative_time": self.time}


def plan_of(sizes: Sizes, segment: int) -> MemoryPlan:
    """The plan with tapes of that many steps, of 1 to T."""
    T = sizes.steps
    parts = -(-T // segment) if segment else 1
    # A state before each part and the last one, which is the caller's, and gradients of states before and after a part.
    states = sizes.states * (parts + 2 if parts > 1 else 2)
    total = sizes.tape(segment) + sizes.work(segment, parts > 1) + states + sizes.fixed
    once = max(1e-30, (sizes.forward + sizes.backward) * max(T, 1) + 2 * sizes.start)
    # Every part but one runs forward twice, and backward once; where layers go for themselves, that one too.
    again = T * (2 * sizes.serial - 1) if sizes.by_visit and parts > 1 else T - segment
    time = 1.0 + (sizes.forward * again + sizes.start * 3 * (parts - 1)) / once
    return MemoryPlan(T, sizes.batch, segment, total, sizes.results, time, sizes.by_visit)


def smallest(sizes: Sizes) -> MemoryPlan:
    """The plan that takes least."""
    T = sizes.steps
    if sizes.whole or T < 2:
        return plan_of(sizes, T)
    # Of all segments that make the same number of parts the shortest is the smallest.
    return min((plan_of(sizes, s) for s in _shortest(T)), key=lambda plan: (plan.bytes, plan.time))


def _shortest(T: int) -> list[int]:
    """The shortest segment of every possible number of parts."""
    found, parts = [], 1
    while True:
        segment = -(-T // parts)
        found.append(segment)
        if segment == 1:
            return found
        parts = max(parts + 1, -(-T // (segment - 1)))  # the next number with a shorter one


def fastest(sizes: Sizes, max_bytes: int | None) -> MemoryPlan:
    """The fastest plan within that many bytes; None: all steps on one tape. Raises InputError where none fits."""
    T = sizes.steps
    whole = plan_of(sizes, T)
    if max_bytes is None or whole.bytes <= max_bytes:
        return whole
    least = smallest(sizes)
    if least.bytes > max_bytes:
        what = f"no plan for {T} steps of {sizes.batch} rows fits max_bytes"
        do = "give so many, fewer steps (truncated back-propagation) or rows, or compile with another keep"
        if sizes.whole:
            do += f"; all steps are on the tape at once, because {sizes.whole}"
        raise runtime._error(InputError, what, f"max_bytes={max_bytes}", f"at least {least.bytes}", do)
    longest = T
    for shortest in _shortest(T)[1:]:
        if plan_of(sizes, shortest).bytes <= max_bytes:
            others = range(shortest + 1, longest)  # as many parts, and the longer the larger
            more = bisect.bisect_right(others, max_bytes, key=lambda segment: plan_of(sizes, segment).bytes)
            return plan_of(sizes, shortest + more)
        longest = shortest
    return least


def within(sizes: Sizes, max_bytes: object, own: int | None) -> MemoryPlan:
    """The fastest plan within a call's max_bytes, or where that is None within the module's own."""
    return fastest(sizes, own if max_bytes is None else check_budget(max_bytes))


def table(sizes: Sizes) -> list[MemoryPlan]:
    """Plans none of which is both larger and slower than another, from the fastest to the smallest."""
    whole, least = plan_of(sizes, sizes.steps), smallest(sizes)
    budgets = [int(share * whole.bytes) for share in SHARES]
    plans = [whole, *(fastest(sizes, budget) for budget in budgets if budget > least.bytes), least]
    return list(dict.fromkeys(plans))


def check_budget(max_bytes: object) -> int | None:
    """A number of bytes, or None. Raises InputError."""
    if max_bytes is None:
        return None
    if isinstance(max_bytes, bool) or not hasattr(max_bytes, "__index__") or int(max_bytes) < 0:
        raise runtime._error(InputError, "max_bytes is wrong", repr(max_bytes), "a number of bytes, or None")
    return int(max_bytes)
