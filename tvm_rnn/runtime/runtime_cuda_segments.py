"""Training in parts of the time on GPUs: one tape for a part, and forward once more where its values are not there.

In: a training module, a plan of memory (`runtime_memory.py`), and arrays on a GPU. Out: what `forward_train` and
`backward` return, with a `CudaSegmentedTape`. A part of the time is an address further on in each array: nothing is
copied. All of it is enqueued, and can be captured in a CUDA graph. Works alone beside a .so, together with what
runtime_cuda_training.py needs, and runtime_memory.py. States lie at borders, as in runtime_segments.py, and in a
network of two directions each layer and direction goes through the parts for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .gpu_arrays import PER_THREAD_STREAM, Arrays, HostArrays, Piece
from .runtime import Array, Facts
from .runtime_cuda_tape import ITEM_BYTES, CudaTape, Steps, fresh, numbers, reads_output, rounded, tape_bytes
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
from .runtime_training import Part, by_visit

if TYPE_CHECKING:
    from .runtime_cuda_training import CudaTrainingModule, TrainingDevice

# Of the model of time, measured on an H200 with forward_train and backward of LSTMs in bfloat16 (1 layer of 256 with
# B = 32, and 4 of 512 with B = 64): the least time of a step of one layer in both; FLOPs per microsecond of larger
# ones; what one start of either program takes per layer; what FLOPs of products that run again outside of the loop
# count.
STEP_US, START_US, OUTSIDE = 2.85, 42.0, 1 / 3
FLOPS_PER_US = {"bfloat16": 80e6, "float16": 80e6, "tf32": 40e6, "float32": 15e6, "float64": 10e6}


def sizes_of(
    manifest: Facts, T: int, B: int, reset: bool, workspace: Callable[[str, int], int], lengths: bool = False
) -> Sizes:
    """What calls of T steps of B rows take, of the module that has this manifest. reset, lengths: with them.
    workspace(way, steps): bytes of working memory of one of its programs."""
    item, output, alone = ITEM_BYTES[manifest["dtype"]], row_elements(manifest), by_visit(manifest)
    weights = max(4, item) * weight_elements(manifest)

    def tape(steps: int) -> int:
        return tape_bytes(manifest, steps, B, reset or lengths, T) if steps and B else 0

    def work(steps: int, again: bool) -> int:
        if not steps or not B:
            return 0
        most = max(workspace(way, steps) for way in ("forward_train", "backward"))
        # Beside what the caller gets: y of steps that run again, where it is not the caller's, and gradients of weights
        # of one part.
        rows = 0 if reads_output(manifest, reset or lengths) else item * steps * B * output
        more = rows + weights + handed_bytes(manifest, T, B) if again else 0
        return most + more

    states = item * B * state_elements(manifest)
    steps = T + int(reads_output(manifest, reset or lengths))
    results = item * B * (steps * output + T * input_elements(manifest)) + weights + 2 * states
    serial, whole = float(manifest["num_directions"]), why_whole(manifest, alone)
    timed = times(manifest, B)
    return Sizes(T, B, tape, work, states, 0, results, *timed, by_visit=alone, serial=serial, whole=whole)


def handed_bytes(manifest: Facts, T: int, B: int) -> int:
    """Of gradients that layers hand down, where each goes through time for itself."""
    if not by_visit(manifest):
        return 0
    buffers = 2 if int(manifest["num_layers"]) > 1 else 1
    return buffers * rounded(T * B * int(manifest["parts"]["handed_bytes"]) // buffers)


def sizes_on(module: CudaTrainingModule, device: TrainingDevice, T: int, B: int, reset: bool, lengths: bool) -> Sizes:
    """What calls take on a GPU that the module is on."""

    def workspace(way: str, steps: int) -> int:
        return int(device.parts[way].workspace(steps, B, PER_THREAD_STREAM))

    return sizes_of(module.manifest, T, B, reset, workspace, lengths)


def times(manifest: Facts, batch: int) -> tuple[float, float, float]:
    """Microseconds of a step forward and backward, and of a program's start: a rough model of an H200. Two directions
    go forward at the same time."""
    memory, visits = manifest.get("memory", {}), int(manifest["num_layers"]) * int(manifest["num_directions"])
    forward, backward, again = (
        batch * float(memory.get(f"{name}_flops_per_row", rate))
        for name, rate in (("forward", 1), ("backward", 2), ("again", 0))
    )
    usual = backward - again  # as it is where no product runs again
    rate = FLOPS_PER_US.get(str(manifest.get("precision", manifest["dtype"])), FLOPS_PER_US["float32"])
    step = max(STEP_US * visits, (forward + usual) / rate)
    share = forward / max(forward + usual, 1.0)
    forward_us = step * share / int(manifest["num_directions"])
    return forward_us, step * (1 - share) * (usual + OUTSIDE * again) / max(usual, 1.0), START_US * visits


class CudaSegmentedTape(CudaTape):
    """What one call of `forward_train` left for `backward` where its plan has several parts: the states at their
    borders, the inputs themselves, which must not change until then, and the values of one part at a time. Of a network
    of two directions these are of one layer and direction, and what layers hand to the next is there for all steps."""

    again = True

    def __init__(
        self,
        module: CudaTrainingModule,
        arrays: Arrays,
        x: Array,
        plan: MemoryPlan,
        inputs: Sequence[Array],
        flagged: bool,
    ) -> None:
        super().__init__(module, arrays, x, (plan.steps, plan.batch), inputs, flagged, plan.segment)
        self.plan, self.segments = plan, Segments(module.manifest, plan)
        self.first: list[Array] = []  # states before the first step
        item = ITEM_BYTES[module._kind]
        state_bytes = [item * state.size for state in module._plan(plan.batch)]
        self.row_bytes = [item * math.prod(shape) for _, shape in module._inputs]
        # Before each part in time but the first one. Each layer and direction has its own place in them.
        self.borders = [[arrays.lasting(max(size, 1)) for size in state_bytes] for _ in plan.spans[1:]]
        self.bytes += len(self.borders) * sum(state_bytes)

    def ends(self, number: int, visit: int, last: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        """The states before and after a part. last: those after all of them."""
        known = [None, *self.borders, None]
        before, after = known[number : number + 2][:: -1 if self.segments.goes_back(visit) else 1]
        return self.first if before is None else before, last if after is None else after

    def forward(self, call: Steps, inputs: Sequence[Array], before: list[Array], y: Array, after: list[Array]) -> None:
        parts = Parts(call.device, call.arrays, self, ("forward_train",))
        self.first = [_lasting(call.arrays, state) for state in before]
        for visit in self.segments.visits:
            for number in self.segments.order(visit):
                parts.forward(number, visit, parts.at(y, number, parts.row), after)

    def backward(
        self, call: Steps, above: Array, carried: list[Array], d_x: list[Array], kind: str
    ) -> tuple[list[Array], list[Array]]:
        module, manifest, arrays = self.module, self.module.manifest, call.arrays
        shapes = [module._weight_shapes[name] for name in manifest["gradients"]]
        d_weights = [arrays.zeros(shape, kind) for shape in shapes]
        parts = Parts(call.device, arrays, self, ("forward_train", "backward"))
        longest = self.plan.segment * self.B
        zeros = arrays.full(longest * math.prod(module._output), 0.0) if above is None else None
        rows = arrays.workspace(longest * parts.row) if self.output is None else None
        ends, results, *turns = (module._after(arrays, self.B) for _ in range(4))
        own = [arrays.typed(shape, kind) for shape in shapes]
        handed = arrays.workspace(handed_bytes(manifest, self.T, self.B)) if self.segments.alone else None
        given = carried
        with self.segments.lock:
            for number, visit, begins, last in self.segments.backward():
                if self.segments.held[0] != (number, visit):
                    y = parts.at(self.output, number, parts.row) if rows is None else rows
                    parts.forward(number, visit, y, ends)
                gradient = zeros if above is None else parts.at(above, number, parts.row)
                given, after = carried if begins else given, results if last else turns[number % 2]
                parts.backward(number, visit, gradient, d_x, own, (given, after), handed)
                add(arrays, *of_visit(manifest, visit, d_weights, own))
                given = after
        return results, d_weights


class Parts:
    """The calls of one module's programs on parts of one tape's time, in the order of the stream."""

    def __init__(self, device: TrainingDevice, arrays: Arrays, tape: CudaSegmentedTape, ways: Sequence[str]) -> None:
        self.device, self.arrays, self.tape, self.module = device, arrays, tape, tape.module
        self.item = ITEM_BYTES[self.module._kind]
        self.row = self.item * math.prod(self.module._output)
        steps, stream = {count for _, count in tape.plan.spans}, arrays.stream()
        work = max(int(device.parts[way].workspace(count, tape.B, stream)) for way in ways for count in steps)
        self.work = arrays.workspace(work)
        self.inputs = [fresh(array) for array in tape.inputs]
        self.rows = [None if row is None else fresh(row) for row in tape.rows]

    def at(self, array: Array, number: int, row_bytes: int) -> int:
        """The address of a part's first row in an array over all of the time."""
        if type(array) is not int:
            array = self.arrays.address(array)
        return int(array) + self.tape.plan.spans[number][0] * self.tape.B * row_bytes

    def given(self, number: int) -> tuple[list[int], list[Array]]:
        """A part's inputs, and its lengths and resets. A row that ends after the part has its next step, too."""
        start, count = self.tape.plan.spans[number]
        inputs = [self.at(a, number, size) for a, size in zip(self.inputs, self.tape.row_bytes, strict=True)]
        lengths, reset = self.rows
        if lengths is not None:
            lengths = clipped(lengths, start, count + int(start + count < self.tape.T))
        return inputs, [lengths, None if reset is None else self.at(reset, number, 1)]

    def more(self, number: int, visit: int) -> list[Array]:
        """What masks are made of, and what the call is for."""
        start, count = self.tape.plan.spans[number]
        seed, seed_at, first = self.tape.masks or (0, 0, 0)
        masks = [seed, seed_at, first + start] if self.tape.masks else []
        return [*masks, *numbers(self.module.manifest, Part(start, count, self.tape.T, visit))]

    def forward(self, number: int, visit: int, y: Array, last: Sequence[Array]) -> None:
        """Run forward through a part, onto the tape. y: where its output goes; last: the states after all parts."""
        inputs, rows = self.given(number)
        tape, part = self.tape, self.device.parts["forward_train"]
        before, after = tape.ends(number, visit, last)
        held = [y, *rows, self.work, *inputs, tape.array, *self.more(number, visit), *before, *after]
        self.module._call(part, self.arrays, (tape.plan.spans[number][1], tape.B), rows, held)
        tape.segments.held[0] = number, visit

    def backward(
        self,
        number: int,
        visit: int,
        above: Array,
        d_x: Array,
        d_weights: Array,
        states: tuple[list[Array], list[Array]],
        handed: Array,
    ) -> None:
        """backward of a part that is on the tape. states: gradients of those after it, and where those of the ones
        before it go; handed: memory for what layers hand down, where each goes through time for itself."""
        tape, part, (before, after) = self.tape, self.device.parts["backward"], states
        inputs, rows = self.given(number)
        inputs = inputs if self.module.manifest.get("reads_inputs", False) else []
        d_x = [self.at(array, number, size) for array, size in zip(d_x, tape.row_bytes, strict=True)]
        more = [*self.more(number, visit), *([] if handed is None else [handed])]
        y = None if tape.output is None else self.at(tape.output, number, self.row)
        held = [y, *rows, self.work, above, tape.array, *inputs, *d_x, *d_weights, *more, *before, *after]
        self.module._call(part, self.arrays, (tape.plan.spans[number][1], tape.B), rows, held)


def clipped(lengths: Array, start: int, count: int) -> Array:
    """Of rows' lengths what lies in a part of the time."""
    if isinstance(lengths, Piece):
        return Piece(np.clip(lengths.array - start, 0, count), lengths.dtype)
    return (lengths - start).clip(0, count)


def _lasting(arrays: Arrays, state: Array) -> Array:
    """A first state for as long as the tape: kept initial values stay where they are, the caller's may change."""
    if type(state) is int:
        return state
    return Sent(arrays, state) if isinstance(arrays, HostArrays) else arrays.copy(state)


class Sent:
    """A state of the CPU, in memory on the GPU that other calls do not use."""

    def __init__(self, arrays: HostArrays, piece: Piece) -> None:
        self.block = arrays.lasting(max(piece.array.nbytes, 1))
        self.address = self.block.address
        arrays.library["transfer"](
            arrays.number, arrays.stream(), self.address, piece.array.ctypes.data, piece.array.nbytes
        )


def of_visit(manifest: Facts, visit: int, *arrays: Sequence[Array]) -> list[list[Array]]:
    """Of arrays in the order of the gradients of weights, those of one layer and direction; of -1: all."""
    layer, direction = divmod(visit, int(manifest["num_directions"]))
    end = f"_l{layer}" + ("_reverse" if direction else "")
    mine = [visit < 0 or name.endswith(end) for name in manifest["gradients"]]
    return [[array for array, own in zip(found, mine, strict=True) if own] for found in arrays]


def add(arrays: Arrays, totals: Sequence[Array], own: Sequence[Array]) -> None:
    """Gradients of weights of one more part."""
    for total, part in zip(totals, own, strict=True):
        if isinstance(part, Piece):
            total.array += arrays.flat(part).reshape(total.array.shape)
        else:
            total += part


__all__ = ["CudaSegmentedTape", "Parts", "sizes_of"]
