"""The tape of one call of training on a GPU: what forward_train left there, and the caller's arrays that it goes with.

In: a module's manifest, the sizes of a call, its inputs. Out: a `CudaTape`, which `runtime_cuda_training.py` and
`runtime_cuda_segments.py` fill and read. Works alone beside a .so, together with runtime.py and gpu_arrays.py.

Inputs are not copied to the tape: backward reads the caller's arrays, as torch's own layers do. Nor is y, where it is a
state of the last layer. What torch says of its tensors, that one was changed since, is asked before backward.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

try:
    from ..errors import InputError
    from . import gpu_arrays, runtime
except ImportError:  # this file and those that it names alone, beside a .so
    globals().update({name: importlib.import_module(name) for name in ("gpu_arrays", "runtime")})
    globals()["InputError"] = vars(importlib.import_module("runtime"))["InputError"]

ALIGNMENT = 256  # of every array of the tape
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
COPIED = 16  # bytes that kernels copy at a time, of arrays whose addresses are multiples of it


class Part(NamedTuple):
    """Steps of a call's time, from step `start` on, of `whole` in all. visit: -1: of all layers and directions; else of
    that one, by its number."""

    start: int
    steps: int
    whole: int
    visit: int = -1

    @property
    def border(self) -> int:
        """1: steps follow; 2: steps come before; 3: both."""
        return int(self.start + self.steps < self.whole) + 2 * int(self.start > 0)


def numbers(manifest: Any, part: Part) -> list[int]:
    """What programs are given besides, of modules whose time is gone through in parts in a way of their own."""
    if "parts" not in manifest:
        return []
    if part.visit < 0:  # a call like others, of arrays for its own steps
        return [part.steps, 0, -1, part.border]
    return [part.whole, part.start, part.visit, part.border]


def by_visit(manifest: Any) -> bool:
    """Whether the module's programs take one layer and direction at a time."""
    return str(manifest.get("parts", {}).get("by", "")) == "visits"


def rounded(size: int) -> int:
    """Bytes of an array, up to where the next one may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def tape_bytes(manifest: Any, steps: int, batch: int, flagged: bool, whole: int = 0) -> int:
    """Of the tape of so many steps. flagged: of a call with lengths or resets, which has arrays of its own. whole:
    steps of all of the time, where these are of a part: what layers hand to the next has room for all."""
    lasting = int(manifest["parts"]["whole_arrays"]) if by_visit(manifest) else 0
    total = 0
    for number, (row, more, *only) in enumerate(manifest["tape"]):
        if flagged or not only:
            total += rounded(((max(steps, whole) if number < lasting else steps) + more) * batch * row)
    return total


def reads_output(manifest: Any, flagged: bool) -> bool:
    """Whether backward reads y, which then has room for one step more. flagged: of a call with lengths or resets."""
    return not flagged and bool(manifest.get("reads_output", False))


def new_output(arrays: Any, manifest: Any, shape: tuple[int, ...], flagged: bool) -> tuple[Any, Any]:
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


def version_of(array: Any) -> Any:
    """torch's count of changes to a tensor; None: there is none, as of other arrays and in inference mode."""
    with contextlib.suppress(RuntimeError):
        return getattr(array, "_version", None)
    return None


def readable(arrays: Any, given: Sequence[Any]) -> list[Any]:
    """Inputs as kernels read them: one that begins between multiples of 16 bytes is copied."""
    return [
        array if isinstance(array, gpu_arrays.Piece) or arrays.address(array) % COPIED == 0 else arrays.copy(array)
        for array in given
    ]


def fresh(array: Any) -> Any:
    """An array of the CPU, to be sent to the GPU by this call; others as they are."""
    return gpu_arrays.Piece(array.array, array.dtype) if isinstance(array, gpu_arrays.Piece) else array


class CudaTape:
    """What one call of `forward_train` left for `backward`, in memory of its own on the GPU, which is freed with it.
    `nbytes`: how much. Any number of backward calls may read it. inputs: the caller's, which must not change until
    then, in a call without lengths and resets: others copy them."""

    def __init__(
        self,
        module: Any,
        arrays: Any,
        x: Any,
        sizes: tuple[int, int],
        weights: Any,
        inputs: Sequence[Any],
        flagged: bool,
        steps: int | None = None,
    ) -> None:
        """sizes: T and B. flagged: there are lengths or resets. steps: that it has room for, where these are not
        all."""
        T, B = sizes
        self.module, self.T, self.B, self.like, self.weights = module, T, B, x, weights
        self.nbytes = tape_bytes(module.manifest, T if steps is None else steps, B, flagged, T)
        self.array = arrays.lasting(max(self.nbytes, ALIGNMENT))
        whole = flagged and steps is None
        self.inputs: list[Any] = [None] * len(inputs) if whole else list(inputs)
        self.versions = [version_of(array) for array in self.inputs]
        self.output: Any = None
        self.version: Any = None
        self.rows: Sequence[Any] = (None, None)
        self.masks: tuple[Any, ...] = ()  # what they are made of: the seed, where it is on the GPU, the first step

    @property
    def given(self) -> list[Any]:
        """The inputs as backward takes them. Modules that were compiled when tapes had copies of all take none."""
        return [fresh(array) for array in self.inputs] if self.module.manifest.get("reads_inputs", False) else []

    def keep(self, output: Any) -> None:
        """Where y is, which backward reads."""
        self.output, self.version = output, version_of(output)

    def __repr__(self) -> str:
        return f"<CudaTape of {self.module.manifest.cell}, {self.T} steps of {self.B} rows, {self.nbytes} bytes>"


def check_tape(module: Any, tape: Any) -> None:
    """Raises InputError where it is not one that the module can read still."""
    do = "call forward_train of this module, and give backward the tape that it returns"
    if not isinstance(tape, CudaTape):
        raise runtime._error(InputError, "this is not a tape", type(tape).__name__, "a CudaTape", do)
    if tape.module is not module:
        raise runtime._error(InputError, "the tape is another module's", tape, f"a tape of {module.path!r}", do)
    if tape.weights is not module.weights:
        got = "weights that were loaded after it was written"
        raise runtime._error(InputError, "the tape was written with other weights", got, "the same weights", do)
    if [version_of(array) for array in tape.inputs] != tape.versions:
        do = "give forward_train a copy (x.clone()), or write to x after backward"
        raise runtime._error(InputError, "backward reads x, which was changed", "a new version of x", "the same x", do)
    if version_of(tape.output) != tape.version:
        do = "change a copy of y (y.clone()), or write to y after backward"
        raise runtime._error(InputError, "backward reads y, which was changed", "a new version of y", "the same y", do)


__all__ = [
    "ITEM_BYTES",
    "CudaTape",
    "Part",
    "by_visit",
    "check_tape",
    "fresh",
    "new_output",
    "numbers",
    "readable",
    "reads_output",
    "rounded",
    "tape_bytes",
    "version_of",
]
