"""Modules that train: the calls of runtime.py, and forward_train and backward.

In: a .so file that was compiled for training, arrays as for every module, and gradients of results. Out: results with a
`Tape`, and gradients of inputs, states and weights, as arrays of the kind of x. Works alone beside a .so, together with
runtime.py, and of networks with regularisers runtime_random.py; with max_bytes also with runtime_memory.py and
runtime_segments.py.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

try:
    from ..errors import InputError, WeightError
    from . import runtime
    from .runtime import Module
except ImportError:  # this file and runtime.py alone, beside a .so
    runtime = importlib.import_module("runtime")
    globals().update({n: getattr(runtime, n) for n in ("InputError", "WeightError", "Module")})


class Weights:
    """The weights that a module was given at one time, as its functions of training read them. drawn: those of one
    call, in which elements of `whole` are dropped."""

    def __init__(self, module: TrainingModule, whole: Weights | None = None, drawn: Drawn | None = None) -> None:
        self.lock, self.inference, self.whole = threading.Lock(), module._packed, whole or self
        self.packed: dict[str, Any] = {}  # by function, packed when it is first called
        # Copies: what users can read is read-only, which DLPack refuses.
        arrays = {name: np.array(array) for name, array in {**module.weights, **module._constants}.items()}
        if drawn is not None:
            arrays |= {row[0]: drawn.dropped(row, arrays[row[0]]) for row in module.manifest["masks"].weights}
        self.sources = {name: module._tensor(array.ravel()) for name, array in arrays.items()}

    def packed_for(self, module: TrainingModule, way: str) -> Any:
        """As the module's "forward" or "backward" function reads them."""
        facts = module.manifest.training[way]
        if facts.get("packed_as_inference"):
            return self.inference
        with self.lock:
            if way not in self.packed:
                packed = runtime._aligned(max(1, int(facts.packed_elements)), module._dtype)
                packed[:] = 0
                for pack in facts.packs:
                    raw = (self.sources[name] for name in pack.weights)
                    module._library.get_function(pack.function)(*raw, packed, int(pack.offset))
                self.packed[way] = module._tensor(packed)
            return self.packed[way]


class Drawn:
    """The masks of one call: of which seed they are made, and from which step of the whole sequence on."""

    def __init__(self, module: TrainingModule, seed: Any, first_step: Any) -> None:
        masks, m = module.manifest["masks"], module.manifest
        self.module, self.random = module, runtime._beside("runtime_random")
        self.seed, self.first = self.random.checked(m, seed, first_step, partial(runtime._error, InputError))
        keys = self.random.keys(self.seed, [*masks.streams], int(m.num_layers), int(m.num_directions))
        self.keys, self.streams = keys.ravel(), bool(masks.streams)

    def arguments(self, start: int) -> tuple[Any, ...]:
        """The last ones of a function, for steps from that one of the call on."""
        return (self.first + start, self.keys) if self.streams else ()

    def dropped(self, row: Any, array: np.ndarray) -> np.ndarray:
        """A weight, or its gradient, with some of its elements 0 and the others scaled. row: of the manifest."""
        _, stream, layer, direction, keep = row
        words = self.random.key(self.seed, stream, int(layer), int(direction))
        result = np.empty_like(array)
        limit, drop = self.random.threshold(keep), self.module._library.get_function("weight_drop")
        drop(array.size, *words, limit, 1.0 / keep, array.ravel(), result.ravel())
        return result


class Tape:
    """What one call of `forward_train` left for `backward`: inputs, states and kept values of T steps of B rows.
    `nbytes` is how much memory that takes; it is freed with the tape. Any number of backward calls may read it."""

    def __init__(
        self, module: TrainingModule, given: Weights, T: int, B: int, like: Any, steps: int | None = None
    ) -> None:
        """steps: that it has room for, where these are not all."""
        self.module, self.given, self.T, self.B, self.like = module, given, T, B, like
        elements = tape_elements(module.manifest, T if steps is None else steps, B, T)
        self.array = runtime._aligned(elements, module._dtype)
        self.has, self.rows = (0, 0), (module._no_lengths, module._no_reset)
        self.drawn: Drawn | None = None  # from which backward makes the masks again

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def __repr__(self) -> str:
        return f"<Tape of {self.module.manifest.cell}, {self.T} steps of {self.B} rows, {self.nbytes} bytes>"


class Part(NamedTuple):
    """Steps of a call's time, from step `start` on. visit: -1: of all layers and directions; else of that one, by its
    number, where `longest` is how many steps the longest part has."""

    start: int
    steps: int
    visit: int = -1
    longest: int = 0

    @property
    def tiled(self) -> int:
        """Of how many steps the workspace is."""
        return max(self.steps, self.longest)


def by_visit(manifest: Any) -> bool:
    """Whether the module's functions take one layer and direction at a time."""
    return "inputs_per_row" in manifest["training"]["tape"]


def tape_elements(manifest: Any, T: int, B: int, whole: int) -> int:
    """Of the tape of T steps of B rows, a part of `whole` steps."""
    sizes = manifest["training"]["tape"]
    more = (whole - T) * int(sizes.get("inputs_per_row", 0))  # where layers go through time for themselves
    of_steps = T * int(sizes["per_sequence_row"]) + more
    return int(sizes["fixed"]) + B * (int(sizes["per_row"]) + of_steps) if T and B else 0


def work_elements(manifest: Any, way: str, T: int, B: int, whole: int = 0) -> int:
    """Of the workspace of "forward" or "backward"; whole: steps of all of the time, where T is of a part whose layers
    hand on what lasts."""
    w, tile = manifest["training"][way]["workspace"], tile_steps(manifest, way, T, B)
    per_row = int(w["per_row"]) + tile * int(w["per_tile_row"]) + (whole or T) * int(w["per_sequence_row"])
    return int(w["fixed"]) + B * per_row


def tile_steps(manifest: Any, way: str, T: int, B: int) -> int:
    """How many steps are computed at a time before and after the loop."""
    return max(1, min(T, int(manifest["training"][way]["rows_per_tile"]) // max(1, B)))


class TrainingModule(Module):
    """A compiled RNN that can be trained: a Module with `forward_train` and `backward`. Thread-safe as a Module is, but
    for changes of weights between the two.

    max_bytes: how much memory forward_train and backward may take together besides what they return; None: all they
    want, which is quickest. Calls for which it is too little for one tape go through time in parts (`plan_memory`)."""

    _given: Weights | None = None

    @cached_property
    def _max_bytes(self) -> int | None:
        found: int | None = self.manifest.get("memory", {}).get("max_bytes")
        return found

    def forward_train(
        self,
        x: Any,
        state: Any = None,
        *,
        lengths: Any = None,
        reset: Any = None,
        max_bytes: int | None = None,
        seed: int | None = None,
        first_step: int = 0,
        **inputs: Any,
    ) -> tuple[Any, dict[str, Any], Tape]:
        """As calling the module: (y, {name: state after the last step}), and the tape that `backward` reads.

        seed: an integer of 64 bits, of which all masks are made; a network without regularisers needs none. first_step:
        the number of x's first step in a longer sequence, whose chunks then have the masks of the whole.

        max_bytes: for this call; None: the module's own. Where all steps do not fit, backward reads x once more, which
        must not change until then. Raises InputError, with the smallest number possible, where no plan fits."""
        arrays, (T, B), like = self._read_inputs(x, inputs, ("T", "B"))
        counts = self._no_lengths if lengths is None else runtime._per_row("lengths", lengths, np.int64, (B,), T)
        mask = self._no_reset
        if reset is not None:
            mask = runtime._per_row("reset", reset, bool, (T, B), T).ravel().view(np.uint8)
        given, drawn = self._weights_given(), self._drawn(seed, first_step)
        if drawn is not None and self.manifest["masks"].weights:
            given = Weights(self, given, drawn)
        before, has = self._read_states(state, B), (int(lengths is not None), int(reset is not None))
        plan = self._planned(T, B, max_bytes, bool(has[1]))
        y = np.empty((T, B, *self._output), self._dtype)
        if plan is not None and plan.again:
            segments = runtime._beside("runtime_segments")
            tape = segments.SegmentedTape(self, given, plan, like, arrays, has, (counts, mask))
            tape.drawn = drawn
            after = segments.forward(tape, before, y.ravel())
        else:
            tape = Tape(self, given, T, B, like)
            tape.has, tape.rows, tape.drawn = has, (counts, mask), drawn
            after = [array.copy() for array in before]
            if T and B:
                self._forward(tape, Part(0, T), arrays, y.ravel(), before, after, tape.rows)
        return (y if like is None else like(y)), self._shape_states(after, B, like), tape

    def backward(self, tape: Tape, gy: Any = None, gstate: Any = None) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The gradients of sum(gy * y) + sum(gstate * state) for what `forward_train` returned with that tape.

        gy: [T, B, D*H], None: zeros; what it holds after a row's length counts nothing. gstate: a dict of all states,
        None: zeros; in truncated back-propagation the gradient of the next chunk's first state. Returns the gradient of
        x (where the cell has several inputs {input: gradient}), of the first state (a dict, as the state), and {weight:
        gradient}, of the kind that x was. Raises InputError for a tape that is not this module's, or whose weights are
        no longer the module's, and for arrays that do not fit."""
        self._check_tape(tape)
        return self._gradients(tape, gy, gstate)

    def _gradients(self, tape: Tape, gy: Any, gstate: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """What `backward` returns, for the weights that the tape was written with."""
        T, B, like = tape.T, tape.B, tape.like
        shape, parts = (T, B, *self._output), hasattr(tape, "plan")
        above = None if gy is None else self._flat("the gradient of y", gy, shape, "[T, B, D*H], as y")
        before = self._read_gradients(gstate, B)
        d_x = [np.zeros((T, B, *inner), self._dtype) for _, inner in self._inputs]
        d_weights = {name: np.zeros(inner, self._dtype) for name, inner in self._weight_shapes.items()}
        if T and B:
            facts = self.manifest.training.backward
            totals = runtime._aligned(max(1, int(facts.totals_elements)), self._dtype)
            totals[:] = 0
            flat = [array.ravel() for array in d_x]
            if parts:
                after = runtime._beside("runtime_segments").backward(tape, above, before, flat, totals)
            else:
                above = np.zeros(math.prod(shape), self._dtype) if above is None else above
                after = [array.copy() for array in before]
                self._backward(tape, Part(0, T), above, before, after, flat, tape.rows, totals)
            for row in facts.finishes:
                raw = (tape.given.sources[name] for name in row.weights)
                filled = (d_weights[name].ravel() for name in row.gradients)
                self._library.get_function(row.function)(*raw, totals, int(row.offset), *filled)
            if tape.drawn is not None:
                for row in self.manifest["masks"].weights:
                    d_weights[row[0]] = tape.drawn.dropped(row, d_weights[row[0]])
        else:
            after = [array.copy() for array in before]
        if like is not None:
            d_x, d_weights = [*map(like, d_x)], {name: like(array) for name, array in d_weights.items()}
        named = dict(zip((name for name, _ in self._inputs), d_x, strict=True))
        return (named if len(named) > 1 else d_x[0]), self._shape_states(after, B, like), d_weights

    def _check_tape(self, tape: Any) -> None:
        do = "call forward_train of this module, and give backward the tape that it returns"
        if not isinstance(tape, Tape):
            raise runtime._error(InputError, "this is not a tape", type(tape).__name__, "a Tape", do)
        if tape.module is not self:
            raise runtime._error(InputError, "the tape is another module's", tape, f"a tape of {self.path!r}", do)
        if tape.given.whole is not self._given:
            got = "weights that were loaded after it was written"
            raise runtime._error(InputError, "the tape was written with other weights", got, "the same weights", do)

    def _read_gradients(self, gstate: Any, B: int) -> list[np.ndarray]:
        """Flat gradients of the last states, in the order of the states."""
        plan = self._plan(B)
        if gstate is None:
            return [np.zeros(size, self._dtype) for _, _, size, _ in plan]
        if not isinstance(gstate, Mapping) or gstate.keys() != self._states.keys():
            got = [*gstate] if isinstance(gstate, Mapping) else type(gstate).__name__
            do = "give all of them, as backward returns them, or None"
            raise runtime._error(InputError, "the gradient of the state is not the module's", got, [*self._states], do)
        result = []
        for name, _, _, parts in plan:
            values = [gstate[name]] if len(parts) == 1 else gstate[name]
            what = f"the gradient of state {name}"
            if not isinstance(values, list | tuple) or len(values) != len(parts):
                raise runtime._error(InputError, f"{what} is not a list", type(values), f"{len(parts)} arrays by layer")
            axes = "[L*D, B, ...]" if len(parts) == 1 else "[D, B, ...]"
            flat = [self._flat(what, value, shape, axes) for value, (_, shape) in zip(values, parts, strict=True)]
            result.append(np.concatenate(flat) if len(flat) > 1 else flat[0])
        return result

    # --- one call of compiled code, and what it needs --------------------------------------------------------------

    def _forward(self, tape: Tape, part: Part, inputs: Any, y: Any, before: Any, after: Any, rows: Any) -> None:
        """forward_train of a part, all arrays flat. y: None: it is not wanted."""
        elements = work_elements(self.manifest, "forward", part.tiled, tape.B)
        own = part.steps * tape.B * math.prod(self._output) if y is None else 0
        work = self._workspace(elements + own)
        y = work[elements : elements + own] if y is None else y
        numbers, packed = self._prepared("forward", tape, part)
        last = (packed, tape.array, work, *(() if tape.drawn is None else tape.drawn.arguments(part.start)))
        self._library.forward_train(*numbers, *inputs, y, *before, *after, *rows, *last)

    def _backward(
        self,
        tape: Tape,
        part: Part,
        above: Any,
        before: Any,
        after: Any,
        d_x: Any,
        rows: Any,
        totals: Any,
        work: Any = None,
    ) -> None:
        """backward of a part, all arrays flat. work: memory for it, where that lasts for several parts."""
        if work is None:
            work = self._workspace(work_elements(self.manifest, "backward", part.tiled, tape.B))
        numbers, packed = self._prepared("backward", tape, part)
        last = (packed, tape.array, totals, work, *(() if tape.drawn is None else tape.drawn.arguments(part.start)))
        self._library.get_function("backward")(*numbers, above, *before, *after, *d_x, *rows, *last)

    def _workspace(self, elements: int) -> np.ndarray:
        """Of this thread; the old one goes before a larger one comes."""
        work = getattr(self._local, "training", None)
        if work is None or work.size < elements:
            self._local.training = work = None
            self._local.training = work = runtime._aligned(max(1, elements), self._dtype)
        return work

    def _prepared(self, way: str, tape: Tape, part: Part) -> tuple[tuple[int, ...], Any]:
        """Integers of a call, and packed weights."""
        B, T = tape.B, part.steps
        threads = self._threads or (1 if self._flops * B < runtime.PARALLEL_FLOPS_PER_STEP else self.threads)
        numbers: tuple[int, ...] = (T, B, tile_steps(self.manifest, way, part.tiled, B), threads, *tape.has)
        if by_visit(self.manifest):
            numbers += (T, 0, -1) if part.visit < 0 else (tape.T, part.start, part.visit)
        return numbers, tape.given.packed_for(self, way)

    # --- memory ----------------------------------------------------------------------------------------------------

    @property
    def max_bytes(self) -> int | None:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, count: int | None) -> None:
        self._max_bytes = runtime._beside("runtime_memory").check_budget(count)

    def memory_sizes(self, steps: int, batch: int, reset: bool = False, lengths: bool = False) -> Any:
        """What calls of T steps of B rows take, as `runtime_memory.Sizes`. reset, lengths: with them."""
        return runtime._beside("runtime_segments").sizes_of(self.manifest, steps, batch)

    def plan_memory(
        self, steps: int, batch: int, max_bytes: int | None = None, *, reset: bool = False, lengths: bool = False
    ) -> Any:
        """How forward_train and backward would use at most that many bytes (None: the module's own max_bytes) for T
        steps of B rows: a `MemoryPlan`, which says its `bytes` and the `time` it takes relative to no limit. reset:
        and lengths: with them. Raises InputError, with the smallest number possible, where no plan fits."""
        memory = runtime._beside("runtime_memory")
        budget = self._max_bytes if max_bytes is None else memory.check_budget(max_bytes)
        return memory.fastest(self.memory_sizes(steps, batch, reset), budget)

    def _planned(self, T: int, B: int, max_bytes: int | None, reset: bool) -> Any:
        limited = max_bytes is not None or self._max_bytes is not None
        return self.plan_memory(T, B, max_bytes, reset=reset) if limited and T and B else None

    def _drawn(self, seed: Any, first_step: Any) -> Drawn | None:
        """The masks of a call, where the network has any."""
        return Drawn(self, seed, first_step) if "masks" in self.manifest else None

    def _weights_given(self) -> Weights:
        if self._given is None:
            got, do = [*self._weight_shapes], "load_weights first"
            raise runtime._error(WeightError, "the module has no weights", "none", got, do)
        return self._given

    def _use_weights(self, weights: dict[str, np.ndarray]) -> None:
        super()._use_weights(weights)
        self._given = Weights(self)
