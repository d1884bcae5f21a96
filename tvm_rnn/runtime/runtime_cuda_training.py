"""Modules for GPUs that train: the calls of runtime_cuda.py, and forward_train and backward.

In: a .so file that was compiled for training for GPUs, arrays as for every such module, and gradients of results. Out:
results with a `CudaTape`, and gradients of inputs, states and weights, of the kind and at the place of x. Works alone
beside a .so, together with runtime.py, runtime_cuda.py, runtime_training.py and gpu_arrays.py, and of networks with
regularisers runtime_random.py; with max_bytes also with runtime_memory.py.

A tape is what forward_train left on the GPU, and the caller's arrays that it goes with. Inputs are not copied to it:
backward reads the caller's arrays, as torch's own layers do. Nor is y, where it is a state of the last layer. What
torch says of its tensors, that one was changed since, is asked before backward.

Training in parts of the time is as in runtime_training.py. A part is an address further on in each array: nothing is
copied. All of it is enqueued, and can be captured in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from . import gpu_arrays, runtime
from .gpu_arrays import PER_THREAD_STREAM, Arrays, HostArrays, Piece
from .runtime import Array, Facts, InputError, Shape, State
from .runtime_cuda import Call, CudaModule, Device
from .runtime_training import Asked, Gradients, Part, Recorded, Segments, Trainable, by_visit

if TYPE_CHECKING:
    from .runtime_memory import MemoryPlan, Sizes

WAYS = ("forward_train", "backward")
ALIGNMENT = 256  # of every array of the tape
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
# Of the model of time, measured on an H200 with forward_train and backward of LSTMs in bfloat16 (1 layer of 256 with
# B = 32, and 4 of 512 with B = 64): the least time of a step of one layer in both; FLOPs per microsecond of larger
# ones; what one start of either program takes per layer; what FLOPs of products that run again outside of the loop
# count.
STEP_US, START_US, OUTSIDE = 2.85, 42.0, 1 / 3
FLOPS_PER_US = {"bfloat16": 80e6, "float16": 80e6, "tf32": 40e6, "float32": 15e6, "float64": 10e6}


def numbers(manifest: Facts, part: Part) -> list[int]:
    """What programs are given besides, of modules whose time is gone through in parts in a way of their own."""
    return [*part.place, part.border] if "parts" in manifest else []


def rounded(size: int) -> int:
    """Bytes of an array, up to where the next one may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def tape_bytes(manifest: Facts, steps: int, batch: int, flagged: bool, whole: int = 0) -> int:
    """Of the tape of so many steps. flagged: of a call with lengths or resets, which has arrays of its own. whole:
    steps of all of the time, where these are of a part: what layers hand to the next has room for all."""
    lasting = int(manifest["parts"]["whole_arrays"]) if by_visit(manifest) else 0
    total = 0
    for number, (row, more, *only) in enumerate(manifest["tape"]):
        every = only[1] if len(only) > 1 else 1  # steps that share a row
        if flagged or not only or not only[0]:
            rows = -(-(max(steps, whole) if number < lasting else steps) // every)
            total += rounded((rows + more) * batch * row)
    return total


def reads_output(manifest: Facts, flagged: bool) -> bool:
    """Whether backward reads y, which then has room for one step more. flagged: of a call with lengths or resets."""
    return not flagged and bool(manifest.get("reads_output", False))


def new_output(arrays: Arrays, manifest: Facts, shape: Shape, flagged: bool) -> tuple[Array, Array]:
    """y, not initialised, and what is to last as long as the tape reads it; None: the tape has all that is read. The
    step more, where forward leaves the first state, is before y, or behind it in a network that goes backwards."""
    if not reads_output(manifest, flagged):
        return arrays.empty(shape), None
    item = ITEM_BYTES[manifest["dtype"]]
    step, size = item * math.prod(shape[1:]), item * math.prod(shape)
    memory = arrays.lasting(step + max(size, 1))
    y = arrays.within(memory, 0 if manifest.get("reverse", False) else step, shape)
    # torch's tensor is the caller's: another one of the same memory, and with the same count of changes.
    return y, y.detach() if hasattr(y, "detach") else y


def version_of(array: Array) -> int | None:
    """torch's count of changes to a tensor; None: there is none, as of other arrays and in inference mode."""
    with contextlib.suppress(RuntimeError):
        return getattr(array, "_version", None)
    return None


def fresh(array: Array) -> Array:
    """An array of the CPU, to be sent to the GPU by this call; others as they are."""
    return Piece(array.array, array.dtype) if isinstance(array, Piece) else array


class Steps(NamedTuple):
    """Where a call runs. rows: its lengths and resets, None where there are none."""

    device: TrainingDevice
    arrays: Arrays
    rows: Sequence[Array]


class CudaTape(Recorded):
    """What one call of `forward_train` left for `backward`, in memory of its own on the GPU, which is freed with it.
    `nbytes`: how much. Any number of backward calls may read it. inputs: the caller's, which must not change until
    then, in a call without lengths and resets: others copy them."""

    module: CudaTrainingModule
    again = False  # whether forward runs once more in backward

    def __init__(
        self,
        module: CudaTrainingModule,
        arrays: Arrays,
        x: Array,
        sizes: tuple[int, int],
        inputs: Sequence[Array],
        flagged: bool,
        *,
        steps: int | None = None,
        array: Array = None,
    ) -> None:
        """sizes: T and B. flagged: there are lengths or resets. steps: that it has room for, where these are not
        all. array: its memory, of an earlier call; None: new memory."""
        T, B = sizes
        super().__init__(module, T, B, x)
        self.weights = module.weights
        self.bytes = tape_bytes(module.manifest, T if steps is None else steps, B, flagged, T)
        self.array = arrays.lasting(self.bytes or ALIGNMENT) if array is None else array
        whole = flagged and steps is None
        self.inputs: list[Array] = [None] * len(inputs) if whole else list(inputs)
        self.versions = [version_of(array) for array in self.inputs]
        self.output: Array = None
        self.version: int | None = None
        self.rows: Sequence[Array] = (None, None)
        self.masks: tuple[Array, ...] = ()  # what they are made of: the seed, where it is on the GPU, the first step

    @property
    def nbytes(self) -> int:
        return self.bytes

    @property
    def given(self) -> list[Array]:
        """The inputs as backward takes them. Modules that were compiled when tapes had copies of all take none."""
        return [fresh(array) for array in self.inputs] if self.module.manifest.get("reads_inputs", False) else []

    def keep(self, output: Array) -> None:
        """Where y is, which backward reads."""
        self.output, self.version = output, version_of(output)

    @property
    def stale(self) -> bool:
        return self.weights is not self.module.weights

    def check_arrays(self) -> None:
        """Raises InputError where x or y has changed since, as far as torch says so."""
        if [version_of(array) for array in self.inputs] != self.versions:
            what = "backward reads x, which was changed"
            do = "give forward_train a copy (x.clone()), or write to x after backward"
            raise runtime._error(InputError, what, "a new version of x", "the same x", do)
        if version_of(self.output) != self.version:
            what = "backward reads y, which was changed"
            do = "change a copy of y (y.clone()), or write to y after backward"
            raise runtime._error(InputError, what, "a new version of y", "the same y", do)

    def forward(self, call: Steps, inputs: Sequence[Array], before: list[Array], y: Array, after: list[Array]) -> None:
        """Run all steps. inputs: as kernels read them; before: first states; y and after: where results go."""
        arrays, way, more = call.arrays, call.device.parts["forward_train"], self._more()
        work = arrays.workspace(way.workspace(self.T, self.B, arrays.stream()))
        rest = [work, *inputs, self.array, *more, *before, *after]
        self.module._launch(way, arrays, (self.T, self.B), [y, *call.rows], rest)

    def _more(self) -> list[Array]:
        """What masks are made of, and what the call is for."""
        return [*self.masks, *numbers(self.module.manifest, Part(0, self.T, self.T))]

    def backward(
        self, call: Steps, above: Array, carried: list[Array], d_x: list[Array], kind: str
    ) -> tuple[list[Array], list[Array]]:
        """From the gradient of y (None: zeros) and those of the last states to those of the first and of weights, in
        dtype `kind`, which are returned; the gradients of inputs go to d_x."""
        module, arrays, way = self.module, call.arrays, call.device.parts["backward"]
        manifest = module.manifest
        if above is None:
            above = arrays.full(self.T * self.B * math.prod(module._output), 0.0)
        d_weights = [arrays.typed(module._weight_shapes[name], kind) for name in manifest["gradients"]]
        after, work = module._after(arrays, self.B), arrays.workspace(way.workspace(self.T, self.B, arrays.stream()))
        more = [*self._more(), *([0] if by_visit(manifest) else [])]
        rest = [work, above, self.array, *self.given, *d_x, *d_weights, *more, *carried, *after]
        module._launch(way, arrays, (self.T, self.B), [self.output, *call.rows], rest)
        return after, d_weights


def sizes_of(
    manifest: Facts, T: int, B: int, reset: bool, workspace: Callable[[str, int], int], lengths: bool = False
) -> Sizes:
    """What calls of T steps of B rows take, of the module that has this manifest. reset, lengths: with them.
    workspace(way, steps): bytes of working memory of one of its programs."""
    from .runtime_memory import Counts, Sizes, why_whole

    item, count, alone = ITEM_BYTES[manifest["dtype"]], Counts.of(manifest), by_visit(manifest)
    weights = max(4, item) * count.weights

    def tape(steps: int) -> int:
        return tape_bytes(manifest, steps, B, reset or lengths, T) if steps and B else 0

    def work(steps: int, again: bool) -> int:
        if not steps or not B:
            return 0
        most = max(workspace(way, steps) for way in ("forward_train", "backward"))
        # Beside what the caller gets: y of steps that run again, where it is not the caller's, and gradients of weights
        # of one part.
        rows = 0 if reads_output(manifest, reset or lengths) else item * steps * B * count.output
        more = rows + weights + handed_bytes(manifest, T, B) if again else 0
        return most + more

    states = item * B * count.states
    steps = T + int(reads_output(manifest, reset or lengths))
    results = item * B * (steps * count.output + T * count.inputs) + weights + 2 * states
    serial, whole = float(manifest["num_directions"]), why_whole(manifest, alone)
    timed = times(manifest, B)
    return Sizes(T, B, tape, work, states, 0, results, *timed, by_visit=alone, serial=serial, whole=whole)


def handed_bytes(manifest: Facts, T: int, B: int) -> int:
    """Of gradients that layers hand down, where each goes through time for itself."""
    if not by_visit(manifest):
        return 0
    buffers = 2 if int(manifest["num_layers"]) > 1 else 1
    return buffers * rounded(T * B * int(manifest["parts"]["handed_bytes"]) // buffers)


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
        super().__init__(module, arrays, x, (plan.steps, plan.batch), inputs, flagged, steps=plan.segment)
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
        parts = Parts(call, self, ("forward_train",))
        self.first = [_lasting(call.arrays, state) for state in before]
        self.segments.forward(lambda number, visit: parts.write(number, visit, parts.at(y, number, parts.row), after))

    def backward(
        self, call: Steps, above: Array, carried: list[Array], d_x: list[Array], kind: str
    ) -> tuple[list[Array], list[Array]]:
        module, manifest, arrays = self.module, self.module.manifest, call.arrays
        shapes = [module._weight_shapes[name] for name in manifest["gradients"]]
        d_weights = [arrays.zeros(shape, kind) for shape in shapes]
        parts = Parts(call, self, WAYS)
        longest = self.plan.segment * self.B
        zeros = arrays.full(longest * math.prod(module._output), 0.0) if above is None else None
        y = arrays.workspace(longest * parts.row) if self.output is None else None
        ends, results, *turns = (module._after(arrays, self.B) for _ in range(4))
        own = [arrays.typed(shape, kind) for shape in shapes]
        # Memory for what layers hand down, where each goes through time for itself.
        handed = [arrays.workspace(handed_bytes(manifest, self.T, self.B))] if self.segments.alone else []
        reads = manifest.get("reads_inputs", False)

        def write(number: int, visit: int) -> None:
            parts.write(number, visit, parts.at(self.output, number, parts.row) if y is None else y, ends)

        def read(number: int, visit: int, before: list[Array], after: list[Array]) -> None:
            gradient = zeros if above is None else parts.at(above, number, parts.row)
            inputs = parts.rows_of(parts.inputs, number) if reads else []
            arrays_of = [gradient, self.array, *inputs, *parts.rows_of(d_x, number), *own]
            given = None if self.output is None else parts.at(self.output, number, parts.row)
            parts.run("backward", (number, visit), given, arrays_of, [*handed, *before, *after])
            add(arrays, *of_visit(manifest, visit, d_weights, own))

        self.segments.backward(write, read, carried, results, turns)
        return results, d_weights


class Parts:
    """The calls of one module's programs on parts of one tape's time, in the order of the stream."""

    def __init__(self, call: Steps, tape: CudaSegmentedTape, ways: Sequence[str]) -> None:
        self.call, self.tape, self.module = call, tape, tape.module
        self.row = ITEM_BYTES[self.module._kind] * math.prod(self.module._output)
        steps, stream = {count for _, count in tape.plan.spans}, call.arrays.stream()
        work = max(call.device.parts[way].workspace(count, tape.B, stream) for way in ways for count in steps)
        self.work = call.arrays.workspace(work)
        self.inputs = [fresh(array) for array in tape.inputs]
        self.rows = [None if row is None else fresh(row) for row in tape.rows]

    def at(self, array: Array, number: int, row_bytes: int) -> int:
        """The address of a part's first row in an array over all of the time."""
        address = array if type(array) is int else self.call.arrays.address(array)
        return int(address) + self.tape.plan.spans[number][0] * self.tape.B * row_bytes

    def rows_of(self, inputs: Sequence[Array], number: int) -> list[int]:
        """The same of arrays with the inputs' shapes."""
        return [self.at(array, number, size) for array, size in zip(inputs, self.tape.row_bytes, strict=True)]

    def run(self, way: str, part: tuple[int, int], y: Array, arrays: Sequence[Array], states: Sequence[Array]) -> None:
        """Call a program for a part, by its number and visit. arrays, states: what it takes before and after what masks
        are made of and what the call is for."""
        (number, visit), tape = part, self.tape
        start, count = tape.plan.spans[number]
        lengths, reset = self.rows
        if lengths is not None:  # a row that ends after the part has its next step, too
            lengths = clipped(lengths, start, count + int(start + count < tape.T))
        rows = [lengths, None if reset is None else self.at(reset, number, 1)]
        masks = [*tape.masks[:2], tape.masks[2] + start] if tape.masks else []
        more = [*masks, *numbers(self.module.manifest, Part(start, count, tape.T, visit))]
        program, rest = self.call.device.parts[way], [self.work, *arrays, *more, *states]
        self.module._launch(program, self.call.arrays, (count, tape.B), [y, *rows], rest)

    def write(self, number: int, visit: int, y: Array, last: Sequence[Array]) -> None:
        """Run forward through a part, onto the tape. y: where its output goes; last: the states after all parts."""
        before, after = self.tape.ends(number, visit, last)
        arrays = [*self.rows_of(self.inputs, number), self.tape.array]
        self.run("forward_train", (number, visit), y, arrays, [*before, *after])


def clipped(lengths: Array, start: int, count: int) -> Array:
    """Of rows' lengths what lies in a part of the time."""
    if isinstance(lengths, Piece):
        return Piece(np.clip(lengths.array - start, 0, count), lengths.dtype)
    return (lengths - start).clip(0, count)


def _lasting(arrays: Arrays, state: Array) -> Array:
    """A first state for as long as the tape: kept initial values stay where they are, the caller's may change."""
    if type(state) is int:
        return state
    if not isinstance(arrays, HostArrays):
        return arrays.copy(state)
    block, size = arrays.lasting(max(state.array.nbytes, 1)), state.array.nbytes
    arrays.library["transfer"](arrays.number, arrays.stream(), block.address, state.array.ctypes.data, size)
    return block


def of_visit(manifest: Facts, visit: int, *arrays: Sequence[Array]) -> list[list[Array]]:
    """Of arrays in the order of the gradients of weights, those of one layer and direction; of -1: all."""
    layer, direction = divmod(visit, int(manifest["num_directions"]))
    end = f"_l{layer}" + ("_reverse" if direction else "")
    mine = [visit < 0 or name.endswith(end) for name in manifest["gradients"]]
    return [[array for array, own in zip(found, mine, strict=True) if own] for found in arrays]


def add(arrays: Arrays, sums: Sequence[Array], own: Sequence[Array]) -> None:
    """Gradients of weights of one more part."""
    for whole, part in zip(sums, own, strict=True):
        if isinstance(part, Piece):
            whole.array += arrays.flat(part).reshape(whole.array.shape)
        else:
            whole += part


class TrainingDevice(Device):
    """One GPU with one module on it, which may train there."""

    ways = ("", *WAYS)

    def __init__(self, module: CudaModule, number: int, stream: int) -> None:
        super().__init__(module, number, stream)
        self._constants: dict[str, int] | None = None
        self.used: dict[str, dict[str, int]] = {}  # addresses of the caller's tensors that were packed last, by program
        self.held: dict[str, Mapping[str, Array]] = {}  # and these
        self.drops = bool(module.manifest.get("masks", {}).get("weights"))  # then weights are packed in every call
        self._own: dict[str, int] = {}  # addresses of the module's own weights, for such calls
        self._fresh = False

    def pack(self, sources: Mapping[str, np.ndarray]) -> None:
        super().pack(sources)
        self.used, self.held, self._fresh = {}, {}, False

    def prepare(self, sources: Mapping[str, np.ndarray], stream: int) -> None:
        """Weights in the order of both programs, where they are the module's own."""
        for way in WAYS:
            if self.parts[way].stale and not (self.drops or self.held):
                self.ready(self.parts[way], sources, stream)

    def constants(self, module: CudaModule) -> dict[str, int]:
        """The addresses of the equations' constants."""
        if self._constants is None:
            kind = np.float64 if module._kind == "float64" else np.float32
            arrays = {name: np.ascontiguousarray(value, kind) for name, value in module._constants.items()}
            own = {name: self.send(array, self.allocate(module, array.nbytes)) for name, array in arrays.items()}
            self._constants = own
        return self._constants

    def own(self, module: CudaModule) -> dict[str, int]:
        """The addresses of the weights that the module was given, dense."""
        kind = np.float64 if module._kind == "float64" else np.float32
        for name, value in module.weights.items() if not self._fresh else ():
            array = np.ascontiguousarray(value, kind)
            if name not in self._own:
                self._own[name] = self.allocate(module, array.nbytes)
            self.send(array, self._own[name])
        self._fresh = True
        return self._own


class CudaTrainingModule(Trainable[CudaTape], CudaModule):
    """A compiled RNN that can be trained on a GPU. forward_train and backward only enqueue work, as calls do, and can
    be captured in a CUDA graph after a first call outside."""

    device_type, tape_type = TrainingDevice, CudaTape

    def _device(self, arrays: Arrays) -> TrainingDevice:
        device = super()._device(arrays)
        assert isinstance(device, TrainingDevice)
        return device

    def use_there(self, weights: Mapping[str, Array], ways: Sequence[str], known: bool = False) -> None:
        """Use torch tensors as weights from here on, on their GPU's current stream: all of them, on one GPU, dense and
        in float32 (float64 for float64). ways: for "sequence" (plain calls), "forward_train", "backward". known: these
        tensors may have been given before, and not changed since. Nothing is copied to the CPU: `weights` stays as it
        was. Where a CUDA graph is captured, this is part of it."""
        arrays = gpu_arrays.kind_of(next(iter(weights.values())), self)
        device, stream = self._device(arrays), arrays.stream()
        which = {name: arrays.address(tensor) for name, tensor in weights.items()}
        if known and all(device.used.get(way) == which for way in ways):
            return
        for way in ways:
            if way not in WAYS or not device.drops:
                device.parts[way].pack(stream, {**which, **device.constants(self)})
                device.parts[way].stale = False
        device.held = {**device.held, **dict.fromkeys(ways, weights)}  # nobody else gets their memory meanwhile
        device.used = {**device.used, **dict.fromkeys(ways, which)}

    def _lent(self) -> bool:
        return any(cast(TrainingDevice, device).held for device in self._devices.values())

    def _recorded(self, asked: Asked) -> tuple[Array, State, CudaTape]:
        call = Call(self._asked(asked.x, asked.inputs), asked.state, ("T", "B"), asked.lengths, asked.reset)
        return self._on_device(call.values[0], lambda arrays: self._forward_on(arrays, call, asked))

    def _drawn(self, arrays: Arrays, seed: object, first_step: object) -> tuple[Array, ...]:
        """The last inputs of both programs, where the network has regularisers."""
        if "masks" not in self.manifest:
            return ()
        from . import runtime_random as random

        there = gpu_arrays.gpu_of(seed) is not None
        if there:
            seed_at = arrays.copy(arrays.adopt_rows(seed))
            if arrays.dtype(seed_at) != "int64" or math.prod(seed_at.shape) != 1:
                got = f"{arrays.dtype(seed_at)} of shape {tuple(seed_at.shape)}"
                raise runtime._error(InputError, "the seed is wrong", got, "one int64")
        error = partial(runtime._error, InputError)
        number, first = random.checked(self.manifest, 0 if there else seed, first_step, error)
        signed = number - (1 << 64) if number >> 63 else number
        return signed, seed_at if there else 0, first

    def _forward_on(self, arrays: Arrays, call: Call, asked: Asked) -> tuple[Array, State, CudaTape]:
        device, given = self._device(arrays), self._given(arrays, call)
        T, B, (lengths, reset) = given.T, given.B, (row is not None for row in given.rows)
        plan = self._in_parts(lambda: self._sizes_on(device, T, B, reset, lengths), T, B, asked.max_bytes)
        device.prepare({**self.weights, **self._constants}, arrays.stream())
        before, shape, flagged = self._before(device, arrays, call.state, B), (T, B, *self._output), lengths or reset
        y, lasting = new_output(arrays, self.manifest, shape, flagged)
        inputs, x = [arrays.aligned(array, always=True) for array in given.inputs], call.values[0]
        if plan is None:
            tape = CudaTape(self, arrays, x, (T, B), inputs, flagged)
        else:
            tape = CudaSegmentedTape(self, arrays, x, plan, inputs, flagged)
        tape.keep(lasting)
        tape.rows = [self._lasting(arrays, row) for row in given.rows]
        tape.masks = self._drawn(arrays, asked.seed, asked.first_step)
        if not T or not B:
            after = self._unchanged(arrays, before, B)
        else:
            after = self._after(arrays, B)
            self._drop(device, arrays, "forward_train", tape)
            tape.forward(Steps(device, arrays, given.rows), inputs, before, y, after)
        return arrays.result(y, shape), self._shaped(arrays, after, B), tape

    @staticmethod
    def _drop(device: TrainingDevice, arrays: Arrays, way: str, tape: CudaTape) -> None:
        """Pack this call's weights, where some of their elements are dropped; enqueued on the stream."""
        if device.drops and tape.masks:
            seed, at, _ = tape.masks
            there = {"masks.seed": seed, "masks.seed_at": at if type(at) is int else arrays.address(at)}
            given = device.used.get(way) or device.own(tape.module)
            device.parts[way].pack(arrays.stream(), {**given, **device.constants(tape.module), **there})

    @staticmethod
    def _lasting(arrays: Arrays, row: Array) -> Array:
        """lengths or resets for as long as the tape: a caller's tensor may change before backward."""
        return None if row is None else arrays.copy(row)

    def let_go(self) -> None:
        """Forget which tensors were given by `use_there`: nothing keeps them, and the next ones are packed anew."""
        for device in self._devices.values():
            known = cast(TrainingDevice, device)
            known.held, known.used = {}, {}

    def tape_of(
        self,
        kept: Sequence[Array],
        lead: tuple[int, int],
        inputs: Sequence[Array],
        rows: tuple[object, object],
        *drawn: object,
    ) -> CudaTape:
        """The tape that has these arrays again, of a call of [T, B] = `lead` with the present weights.

        kept: the tape's array and, where backward reads y, the memory that y was in, with the step more. inputs: of the
        call, as torch tensors on the GPU. rows: lengths and reset; drawn: seed and first step: as forward_train was
        given them."""
        arrays, (T, B), (array, *whole) = gpu_arrays.kind_of(kept[0], self), lead, kept
        lengths, reset = rows
        own = [arrays.aligned(arrays.adopt(value), always=True) for value in inputs]
        flagged, shape = lengths is not None or reset is not None, (T, B, *self._output)
        tape = CudaTape(self, arrays, array, lead, own, flagged, array=array)
        if whole:
            step = ITEM_BYTES[self.manifest["dtype"]] * math.prod(shape[1:])
            tape.output = arrays.within(whole[0], 0 if self.manifest.get("reverse", False) else step, shape)
        counts = None if lengths is None else self._rows(arrays, "lengths", lengths, np.int64, (B,), T)
        tape.rows = [counts, None if reset is None else self._rows(arrays, "reset", reset, bool, (T, B), T)]
        tape.masks = self._drawn(arrays, *drawn)
        return tape

    def _gradients(self, tape: CudaTape, gy: object, gstate: Mapping[str, object] | None) -> Gradients:
        return self._on_device(tape.like, lambda arrays: self._backward_on(arrays, tape, gy, gstate))

    def _backward_on(
        self, arrays: Arrays, tape: CudaTape, gy: object, gstate: Mapping[str, object] | None
    ) -> Gradients:
        T, B, device = tape.T, tape.B, self._device(arrays)
        above = None
        if gy is not None:
            above = self._take(arrays, "the gradient of y", gy, (T, B, *self._output), "[T, B, D*H], as y")
            above = arrays.aligned(above, always=True)
        if gstate is None:
            sizes = [flat.size for flat in self._plan(B)]
            zeros = [0.0] * len(sizes)
            before = self._filled(device, arrays, B, zeros) if T and B else [arrays.full(n, 0.0) for n in sizes]
        else:
            before = self._each_state(gstate, B, partial(self._take, arrays), arrays.join, "gradient")
        kind = "float64" if self._kind == "float64" else "float32"
        d_x = [arrays.empty((T, B, *inner)) for _, inner in self._inputs]
        names: Sequence[str] = self.manifest["gradients"]
        if not T or not B:  # the states' gradients go through
            after, d_weights = [*map(arrays.copy, before)], [arrays.zeros(self._weight_shapes[n], kind) for n in names]
        else:
            for way in WAYS if tape.again else WAYS[1:]:
                self._drop(device, arrays, way, tape)
            rows = [self._lasting(arrays, row) for row in tape.rows]
            after, d_weights = tape.backward(Steps(device, arrays, rows), above, before, d_x, kind)
        pairs = zip(self._inputs, d_x, strict=True)
        d_inputs = [arrays.result(array, (T, B, *inner)) for (_, inner), array in pairs]
        found = {n: arrays.result(a, self._weight_shapes[n]) for n, a in zip(names, d_weights, strict=True)}
        weights = {name: found[name] for name in self._weight_shapes}
        return self._named(d_inputs), self._shaped(arrays, after, B), weights

    def memory_sizes(self, steps: int, batch: int, reset: bool = False, lengths: bool = False) -> Sizes:
        device = self._device(HostArrays(self, None))
        return self._sizes_on(device, steps, batch, reset, lengths)

    def _sizes_on(self, device: TrainingDevice, T: int, B: int, reset: bool, lengths: bool) -> Sizes:
        def workspace(way: str, steps: int) -> int:
            return device.parts[way].workspace(steps, B, PER_THREAD_STREAM)

        return sizes_of(self.manifest, T, B, reset, workspace, lengths)
