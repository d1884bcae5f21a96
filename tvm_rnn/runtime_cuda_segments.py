"""Training in parts of the time on GPUs: one tape for a part, and forward once more where its values are not there.

In: a training module, a plan of memory (`runtime_memory.py`), and arrays on a GPU. Out: what `forward_train` and
`backward` return, with a `CudaSegmentedTape`. A part of the time is an address further on in each array: nothing is
copied. All of it is enqueued, and can be captured in a CUDA graph. Works alone beside a .so, together with what
runtime_cuda_training.py needs, and runtime_memory.py.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

try:
    from . import gpu_arrays
    from .runtime_cuda_tape import CudaTape, fresh, tape_bytes
    from .runtime_cuda_training import CudaTrainingModule
    from .runtime_memory import (
        MemoryPlan,
        Sizes,
        input_elements,
        row_elements,
        state_elements,
        weight_elements,
        why_whole,
    )
except ImportError:  # this file and those that it names alone, beside a .so
    gpu_arrays = importlib.import_module("gpu_arrays")
    for _home in ("runtime_cuda_tape", "runtime_cuda_training", "runtime_memory"):
        globals().update(vars(importlib.import_module(_home)))

# Of the model of time, measured on an H200 with forward_train and backward of LSTMs in bfloat16 (1 layer of 256 with
# B = 32, and 4 of 512 with B = 64): the least time of a step of one layer in both; FLOPs per microsecond of larger
# ones; what one start of either program takes per layer; what FLOPs of products that run again outside of the loop
# count.
STEP_US, START_US, OUTSIDE = 2.85, 42.0, 1 / 3
FLOPS_PER_US = {"bfloat16": 80e6, "float16": 80e6, "tf32": 40e6, "float32": 15e6, "float64": 10e6}
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def sizes_of(
    manifest: Any, T: int, B: int, reset: bool, workspace: Callable[[str, int], int], lengths: bool = False
) -> Sizes:
    """What calls of T steps of B rows take, of the module that has this manifest. reset, lengths: with them.
    workspace(way, steps): bytes of working memory of one of its programs."""
    item, output = ITEM_BYTES[manifest["dtype"]], row_elements(manifest)
    weights = max(4, item) * weight_elements(manifest)

    def tape(steps: int) -> int:
        return tape_bytes(manifest, steps, B, reset or lengths) if steps and B else 0

    def work(steps: int, again: bool) -> int:
        if not steps or not B:
            return 0
        most = max(workspace(way, steps) for way in ("forward_train", "backward"))
        # Beside what the caller gets: y of steps that run again, and gradients of weights of one part.
        return most + (item * steps * B * output + weights if again else 0)

    states = item * B * state_elements(manifest)
    results = item * T * B * (output + input_elements(manifest)) + weights + 2 * states
    return Sizes(T, B, tape, work, states, 0, results, *times(manifest, B), whole=why_whole(manifest, reset))


def sizes_on(module: Any, device: Any, T: int, B: int, reset: bool, lengths: bool) -> Sizes:
    """What calls take on a GPU that the module is on."""

    def workspace(way: str, steps: int) -> int:
        return int(device.parts[way].workspace(steps, B, gpu_arrays.PER_THREAD_STREAM))

    return sizes_of(module.manifest, T, B, reset, workspace, lengths)


def times(manifest: Any, batch: int) -> tuple[float, float, float]:
    """Microseconds of a step forward and backward, and of a program's start: a rough model of an H200."""
    memory, visits = manifest.get("memory", {}), int(manifest["num_layers"]) * int(manifest["num_directions"])
    forward, backward, again = (
        batch * float(memory.get(f"{name}_flops_per_row", rate))
        for name, rate in (("forward", 1), ("backward", 2), ("again", 0))
    )
    usual = backward - again  # as it is where no product runs again
    rate = FLOPS_PER_US.get(str(manifest.get("precision", manifest["dtype"])), FLOPS_PER_US["float32"])
    step = max(STEP_US * visits, (forward + usual) / rate)
    share = forward / max(forward + usual, 1.0)
    return step * share, step * (1 - share) * (usual + OUTSIDE * again) / max(usual, 1.0), START_US * visits


class CudaSegmentedTape(CudaTape):
    """What one call of `forward_train` left for `backward` where its plan has several parts: the states before each,
    the inputs themselves, which must not change until then, and the values of one part at a time."""

    def __init__(
        self,
        module: CudaTrainingModule,
        arrays: Any,
        x: Any,
        plan: MemoryPlan,
        weights: Any,
        inputs: Sequence[Any],
        flagged: bool,
    ) -> None:
        super().__init__(module, arrays, x, (plan.steps, plan.batch), weights, inputs, flagged, plan.segment)
        self.plan = plan
        spans = plan.spans
        self.spans = spans[::-1] if module.manifest.get("reverse", False) else spans  # in the order in which they run
        self.before: list[list[Any]] = []
        self.held, self.lock = [-1], threading.Lock()  # the part whose values are on the tape
        item = ITEM_BYTES[module._kind]
        self.state_bytes = [item * size for _, _, size, _ in module._plan(plan.batch)]
        self.row_bytes = [item * math.prod(shape) for _, shape in module._inputs]
        self.nbytes += (len(spans) - 1) * sum(self.state_bytes)


class Parts:
    """The calls of one module's programs on parts of one tape's time, in the order of the stream."""

    def __init__(self, device: Any, arrays: Any, tape: CudaSegmentedTape, work: int) -> None:
        self.device, self.arrays, self.tape = device, arrays, tape
        self.module: Any = tape.module
        self.item = ITEM_BYTES[self.module._kind]
        self.row = self.item * math.prod(self.module._output)
        self.work = arrays.workspace(work)
        self.inputs = [fresh(array) for array in tape.inputs]
        self.rows = [None if row is None else fresh(row) for row in tape.rows]

    def at(self, array: Any, number: int, row_bytes: int) -> int:
        """The address of a part's first row in an array over all of the time."""
        if type(array) is not int:
            array = self.arrays.address(array)
        return int(array) + self.tape.spans[number][0] * self.tape.B * row_bytes

    def given(self, number: int) -> tuple[list[int], list[Any]]:
        """A part's inputs, and its lengths and resets."""
        start, count = self.tape.spans[number]
        inputs = [self.at(a, number, size) for a, size in zip(self.inputs, self.tape.row_bytes, strict=True)]
        lengths, reset = self.rows
        if lengths is not None:
            lengths = clipped(lengths, start, count)
        return inputs, [lengths, None if reset is None else self.at(reset, number, 1)]

    def forward(self, number: int, y: Any, after: Sequence[Any]) -> None:
        """Run forward through a part, onto the tape. y: where its output goes."""
        inputs, rows = self.given(number)
        tape, part = self.tape, self.device.parts["forward_train"]
        sizes = (tape.spans[number][1], tape.B)
        held = [y, *rows, self.work, *inputs, tape.array, *tape.before[number], *after]
        self.module._call(part, self.arrays, sizes, rows, held)
        tape.held[0] = number

    def backward(self, number: int, above: Any, d_x: Any, d_weights: Any, before: Any, after: Any) -> None:
        """backward of a part that is on the tape."""
        inputs, rows = self.given(number)
        sizes = (self.tape.spans[number][1], self.tape.B)
        part = self.device.parts["backward"]
        d_x = [self.at(array, number, size) for array, size in zip(d_x, self.tape.row_bytes, strict=True)]
        inputs = inputs if self.module.manifest.get("reads_inputs", False) else []
        held = [None, *rows, self.work, above, self.tape.array, *inputs, *d_x, *d_weights, *before, *after]
        self.module._call(part, self.arrays, sizes, rows, held)


def clipped(lengths: Any, start: int, count: int) -> Any:
    """Of rows' lengths what lies in a part of the time."""
    if isinstance(lengths, gpu_arrays.Piece):
        return gpu_arrays.Piece(np.clip(lengths.array - start, 0, count), lengths.dtype)
    return (lengths - start).clip(0, count)


def forward(device: Any, arrays: Any, tape: CudaSegmentedTape, before: Any, y: Any, after: Any) -> None:
    """All parts. before: the first states; y and after: where results go."""
    parts = Parts(device, arrays, tape, _work(device, tape, ("forward_train",), arrays.stream()))
    tape.before.append([_lasting(arrays, state) for state in before])
    for number in range(len(tape.spans)):
        last = number == len(tape.spans) - 1
        ends = after if last else [arrays.lasting(max(size, 1)) for size in tape.state_bytes]
        parts.forward(number, parts.at(y, number, parts.row), ends)
        if not last:
            tape.before.append(ends)


def _lasting(arrays: Any, state: Any) -> Any:
    """A first state for as long as the tape: kept initial values stay where they are, the caller's may change."""
    if type(state) is int:
        return state
    return Sent(arrays, state) if isinstance(state, gpu_arrays.Piece) else arrays.copy(state)


class Sent:
    """A state of the CPU, in memory on the GPU that other calls do not use."""

    def __init__(self, arrays: Any, piece: Any) -> None:
        self.block = arrays.lasting(max(piece.array.nbytes, 1))
        self.address = self.block.address
        arrays.library["transfer"](
            arrays.number, arrays.stream(), self.address, piece.array.ctypes.data, piece.array.nbytes
        )


def _work(device: Any, tape: CudaSegmentedTape, ways: Sequence[str], stream: int) -> int:
    """Bytes for any part."""
    steps = {count for _, count in tape.spans}
    return max(int(device.parts[way].workspace(count, tape.B, stream)) for way in ways for count in steps)


def backward(
    device: Any, arrays: Any, tape: CudaSegmentedTape, above: Any, carried: Any, d_x: Any, d_weights: Any, kind: str
) -> Any:
    """From the gradient of y (None: zeros) and those of the last states to those of the first, which are returned; the
    gradients of inputs go to d_x, those of weights are added up in d_weights, of dtype `kind`."""
    module: Any = tape.module
    plan, stream = module._plan(tape.B), arrays.stream()
    parts = Parts(device, arrays, tape, _work(device, tape, ("forward_train", "backward"), stream))
    longest, last = tape.plan.segment * tape.B, len(tape.spans) - 1
    zeros = arrays.full(longest * math.prod(module._output), 0.0) if above is None else None
    y = arrays.workspace(longest * parts.row)
    turns = [[arrays.empty(p[0][1] if len(p) == 1 else (size,)) for _, _, size, p in plan] for _ in range(2)]
    own = [arrays.typed(module._weight_shapes[name], kind) for name in module.manifest["gradients"]]
    ends = [arrays.empty(p[0][1] if len(p) == 1 else (size,)) for _, _, size, p in plan]
    with tape.lock:
        for number in reversed(range(last + 1)):
            if tape.held[0] != number:
                parts.forward(number, y, ends)
            given = zeros if above is None else parts.at(above, number, parts.row)
            after = turns[number % 2]
            parts.backward(number, given, d_x, own, carried, after)
            add(arrays, d_weights, own)
            carried = after
    return carried


def add(arrays: Any, totals: Sequence[Any], own: Sequence[Any]) -> None:
    """Gradients of weights of one more part."""
    for total, part in zip(totals, own, strict=True):
        if isinstance(part, gpu_arrays.Piece):
            total.array += arrays.flat(part).reshape(total.array.shape)
        else:
            total += part


__all__ = ["CudaSegmentedTape", "Parts", "backward", "forward", "sizes_of"]
