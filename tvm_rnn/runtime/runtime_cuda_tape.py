"""The tape of one call of training on a GPU: what forward_train left there, and the caller's arrays that it goes with.

In: a module's manifest, the sizes of a call, its inputs. Out: a `CudaTape`, which `runtime_cuda_training.py` and
`runtime_cuda_segments.py` fill and read. Works alone beside a .so, together with runtime.py,
runtime_training.py and gpu_arrays.py.

Inputs are not copied to the tape: backward reads the caller's arrays, as torch's own layers do. Nor is y, where it is a
state of the last layer. What torch says of its tensors, that one was changed since, is asked before backward.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from . import gpu_arrays, runtime
from .gpu_arrays import Arrays
from .runtime import Array, Facts, InputError, Shape
from .runtime_training import Part, Recorded, by_visit

if TYPE_CHECKING:
    from .runtime_cuda_training import CudaTrainingModule, TrainingDevice

ALIGNMENT = 256  # of every array of the tape
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
COPIED = 16  # bytes that kernels copy at a time, of arrays whose addresses are multiples of it


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
        if flagged or not only:
            total += rounded(((max(steps, whole) if number < lasting else steps) + more) * batch * row)
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


def readable(arrays: Arrays, given: Sequence[Array]) -> list[Array]:
    """Inputs as kernels read them: one that begins between multiples of 16 bytes is copied."""
    return [
        array if isinstance(array, gpu_arrays.Piece) or arrays.address(array) % COPIED == 0 else arrays.copy(array)
        for array in given
    ]


def fresh(array: Array) -> Array:
    """An array of the CPU, to be sent to the GPU by this call; others as they are."""
    return gpu_arrays.Piece(array.array, array.dtype) if isinstance(array, gpu_arrays.Piece) else array


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
        steps: int | None = None,
    ) -> None:
        """sizes: T and B. flagged: there are lengths or resets. steps: that it has room for, where these are not
        all."""
        T, B = sizes
        super().__init__(module, T, B, x)
        self.weights = module.weights
        self.bytes = tape_bytes(module.manifest, T if steps is None else steps, B, flagged, T)
        self.array = arrays.lasting(max(self.bytes, ALIGNMENT))
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
        T, B, arrays, way = self.T, self.B, call.arrays, call.device.parts["forward_train"]
        work, more = (
            arrays.workspace(way.workspace(T, B, arrays.stream())),
            numbers(self.module.manifest, Part(0, T, T)),
        )
        held = [y, *call.rows, work, *inputs, self.array, *self.masks, *more, *before, *after]
        self.module._call(way, arrays, (T, B), call.rows, held)

    def backward(
        self, call: Steps, above: Array, carried: list[Array], d_x: list[Array], kind: str
    ) -> tuple[list[Array], list[Array]]:
        """From the gradient of y (None: zeros) and those of the last states to those of the first and of weights, in
        dtype `kind`, which are returned; the gradients of inputs go to d_x."""
        T, B, module, arrays, way = self.T, self.B, self.module, call.arrays, call.device.parts["backward"]
        manifest = module.manifest
        if above is None:
            above = arrays.full(T * B * math.prod(module._output), 0.0)
        d_weights = [arrays.typed(module._weight_shapes[name], kind) for name in manifest["gradients"]]
        after, work = module._after(arrays, B), arrays.workspace(way.workspace(T, B, arrays.stream()))
        more = [*self.masks, *numbers(manifest, Part(0, T, T)), *([0] if by_visit(manifest) else [])]
        held = [
            self.output,
            *call.rows,
            work,
            above,
            self.array,
            *self.given,
            *d_x,
            *d_weights,
            *more,
            *carried,
            *after,
        ]
        module._call(way, arrays, (T, B), call.rows, held)
        return after, d_weights


class Steps(NamedTuple):
    """Where a call runs. rows: its lengths and resets, None where there are none."""

    device: TrainingDevice
    arrays: Arrays
    rows: Sequence[Array]


__all__ = [
    "ITEM_BYTES",
    "CudaTape",
    "Steps",
    "fresh",
    "new_output",
    "numbers",
    "readable",
    "reads_output",
    "rounded",
    "tape_bytes",
    "version_of",
]
