"""Modules that train: the calls of runtime.py, and forward_train and backward.

In: a .so file that was compiled for training, arrays as for every module, and gradients of results. Out: results with a
`Tape`, and gradients of inputs, states and weights, as arrays of the kind of x. Works alone beside a .so, together with
runtime.py, and of networks with regularisers runtime_random.py; with max_bytes also with runtime_memory.py.
`Trainable`, `Recorded` and `Segments` are what runtime_cuda_training.py shares.

Within a budget of memory (max_bytes) a call may go through time in parts: a `SegmentedTape` is for one part, and
forward runs once more where a part's values are not there. Arrays are time-major, so that a part of the time is a slice
of each: nothing is copied. States lie at borders: number i before part i in time, the last one after the last part.
What goes forward in time reads the border before its part and writes that after it, what goes back does the reverse. In
a network of two directions each layer and direction goes through all parts for itself, in its own order; all use the
same arrays of borders, each its own place in them.
"""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from . import runtime
from .runtime import Array, Facts, FunctionFacts, InputError, Module, Pack, State, turned

if TYPE_CHECKING:
    import tvm_ffi

    from .runtime_memory import MemoryPlan, Sizes

Gradients = tuple[Array, State, dict[str, Array]]  # of x, of the first state, of weights
Flats = list[np.ndarray]
MaskRow = Sequence[str | int | float]  # a weight, its mask, layer, direction, and the probability of being kept
AnyTape = TypeVar("AnyTape", bound="Recorded")
SPARE_BYTES = 1 << 22  # from which on a tape's memory is kept for the next one


class Asked(NamedTuple):
    """What `forward_train` was given."""

    x: object
    inputs: Mapping[str, object]
    state: Mapping[str, object] | None
    lengths: object
    reset: object
    seed: object
    first_step: object
    max_bytes: int | None


class Part(NamedTuple):
    """Steps of a call's time, from step `start` on, of `whole` in all. visit: -1: of all layers and directions; else of
    that one, by its number, where `longest` is how many steps the longest part has."""

    start: int
    steps: int
    whole: int
    visit: int = -1
    longest: int = 0

    @property
    def tiled(self) -> int:
        """Of how many steps the workspace is."""
        return max(self.steps, self.longest)

    @property
    def place(self) -> tuple[int, int, int]:
        """What functions that take one layer and direction at a time are told: steps of all arrays, the first one of
        the part, and the visit. A call of all layers is one like others, of arrays for its own steps."""
        return (self.steps, 0, -1) if self.visit < 0 else (self.whole, self.start, self.visit)

    @property
    def border(self) -> int:
        """1: steps follow; 2: steps come before; 3: both."""
        return int(self.start + self.steps < self.whole) + 2 * int(self.start > 0)


class Recorded(ABC):
    """What one call of `forward_train` left for `backward`, on any device. like: what makes results, or an array of
    their kind."""

    module: Module

    def __init__(self, module: Module, T: int, B: int, like: Array) -> None:
        self.module, self.T, self.B, self.like = module, T, B, like

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How much memory it takes."""

    @property
    @abstractmethod
    def stale(self) -> bool:
        """Whether the module has other weights since."""

    @abstractmethod
    def check_arrays(self) -> None:
        """Raises InputError where arrays of the caller that backward reads have changed since."""

    def __repr__(self) -> str:
        name, cell = type(self).__name__, self.module.manifest.cell
        return f"<{name} of {cell}, {self.T} steps of {self.B} rows, {self.nbytes} bytes>"


class Trainable(Module, Generic[AnyTape], ABC):
    """A Module with `forward_train` and `backward`. Thread-safe as a Module is, but for changes of weights between the
    two."""

    tape_type: type = Recorded

    def forward_train(
        self,
        x: object,
        state: Mapping[str, object] | None = None,
        *,
        lengths: object = None,
        reset: object = None,
        max_bytes: int | None = None,
        seed: object = None,
        first_step: int = 0,
        **inputs: object,
    ) -> tuple[Array, State, AnyTape]:
        """All steps, as calling the module, and the tape that `backward` reads.

        x, state, lengths, reset: as for a call of the module.
        max_bytes: how much memory this call and backward may take besides what they return; None: the module's own
            `max_bytes`. Where all steps do not fit, backward reads x once more, which must not change until then.
        seed: an integer of 64 bits, of which all masks are made; on a GPU also an array of one int64 there, which a
            CUDA graph reads anew at each replay. A network without regularisers needs none.
        first_step: the number of x's first step in a longer sequence, whose chunks then have the masks of the whole.

        On a GPU backward reads x in any case and, where the output of the last layer is a state, y: these must not
        change until then. Where there are lengths or resets, the tape has copies.

        Returns (y [T, B, D*H], {name: state after the last step}, tape). Raises InputError as a call does, and, with
        the smallest number possible, where no plan fits max_bytes."""
        if self._held:
            x, state, inputs = self.hold(x, state, inputs, reset)
        if not self.batch_first:
            return self._recorded(Asked(x, inputs, state, lengths, reset, seed, first_step, max_bytes))
        x, reset = self._time_first(x, inputs, reset)
        y, last, tape = self._recorded(Asked(x, {}, state, lengths, reset, seed, first_step, max_bytes))
        return turned(y), last, tape

    @abstractmethod
    def _recorded(self, asked: Asked) -> tuple[Array, State, AnyTape]:
        """What `forward_train` returns."""

    def backward(self, tape: AnyTape, gy: object = None, gstate: Mapping[str, object] | None = None) -> Gradients:
        """The gradients of sum(gy * y) + sum(gstate * state) for what `forward_train` returned with that tape.

        tape: of this module, with its present weights. Any number of calls may read it.
        gy: [T, B, D*H]; None: zeros. What it holds after a row's length counts nothing.
        gstate: {name: gradient of the last state} of all states; None: zeros. In truncated back-propagation the
            gradient of the next chunk's first state.

        Returns the gradient of x (where the cell has several inputs {input: gradient}), of the first state {name:
        gradient}, and {weight: gradient}, of the kind and at the place of x, in the network's dtype; those of weights
        of 16-bit networks are float32. Raises InputError for another module's tape, for weights or, on a GPU, an x that
        changed since, and for arrays that do not fit."""
        do = "call forward_train of this module, and give backward the tape that it returns"
        kind = self.tape_type
        if not isinstance(tape, kind):
            article = f"a {kind.__name__}"
            raise runtime._error(InputError, "this is not a tape", type(tape).__name__, article, do)
        if tape.module is not self:
            raise runtime._error(InputError, "the tape is another module's", tape, f"a tape of {self.path!r}", do)
        if tape.stale:
            got = "weights that were loaded after it was written"
            raise runtime._error(InputError, "the tape was written with other weights", got, "the same weights", do)
        tape.check_arrays()
        if not self.batch_first:
            return self._gradients(tape, gy, gstate)
        above: Array = gy
        if above is not None:
            above = above if hasattr(above, "swapaxes") else runtime._numpy("the gradient of y", above)
            shape, found = (tape.B, tape.T, *self._output), tuple(above.shape)
            if found != shape:
                what, expected = "the gradient of y has the wrong shape", f"{shape} = [B, T, D*H], as y"
                raise runtime._error(InputError, what, found, expected, "reshape it")
            above = turned(above)
        d_x, d_state, d_weights = self._gradients(tape, above, gstate)
        d_x = {name: turned(own) for name, own in d_x.items()} if isinstance(d_x, dict) else turned(d_x)
        return d_x, d_state, d_weights

    @abstractmethod
    def _gradients(self, tape: AnyTape, gy: object, gstate: Mapping[str, object] | None) -> Gradients:
        """What `backward` returns, for the weights that the tape was written with."""

    def _named(self, d_x: Sequence[Array]) -> Array:
        """The gradient of x, or those of several inputs by name."""
        return d_x[0] if len(d_x) == 1 else dict(zip((name for name, _ in self._inputs), d_x, strict=True))

    # --- memory ----------------------------------------------------------------------------------------------------

    @cached_property
    def _max_bytes(self) -> int | None:
        found: int | None = self.manifest.get("memory", {}).get("max_bytes")
        return found

    @property
    def max_bytes(self) -> int | None:
        """How much memory forward_train and backward may take together besides what they return, in bytes; None: all
        they want, which is quickest. Calls for which it is too little for one tape go through time in parts
        (`plan_memory`). Raises InputError for what is no number of bytes."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, count: int | None) -> None:
        from .runtime_memory import check_budget

        self._max_bytes = check_budget(count)

    @abstractmethod
    def memory_sizes(self, steps: int, batch: int, reset: bool = False, lengths: bool = False) -> Sizes:
        """What calls of T = `steps` steps of B = `batch` rows take, as `runtime_memory.Sizes`. reset, lengths: whether
        they are given."""

    def plan_memory(
        self, steps: int, batch: int, max_bytes: int | None = None, *, reset: bool = False, lengths: bool = False
    ) -> MemoryPlan:
        """How forward_train and backward would use memory.

        steps, batch: T and B of the call.
        max_bytes: the budget in bytes; None: the module's own `max_bytes`.
        reset, lengths: whether they are given.

        Returns a `MemoryPlan`, which says its `bytes` and the `time` it takes relative to no limit. Raises InputError,
        with the smallest number possible, where no plan fits."""
        from .runtime_memory import within

        for name, value in (("steps", steps), ("batch", batch)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise runtime._error(InputError, f"plan_memory: {name}", repr(value), "an integer, at least 0")
        return within(self.memory_sizes(steps, batch, reset, lengths), max_bytes, self._max_bytes)

    def _in_parts(self, sizes: Callable[[], Sizes], T: int, B: int, max_bytes: int | None) -> MemoryPlan | None:
        """The plan of a call that goes through time in parts; None: all of its steps are on one tape."""
        if (max_bytes is None and self._max_bytes is None) or not T or not B:
            return None
        from .runtime_memory import within

        plan = within(sizes(), max_bytes, self._max_bytes)
        return plan if plan.again else None


class Segments:
    """In which order one call goes through the parts of its time, by their numbers. A visit is a layer and direction
    that goes for itself, by its number, or -1: all at once. held: the part whose values are on the tape, and whose they
    are; whoever reads these has the lock."""

    def __init__(self, manifest: Facts, plan: MemoryPlan) -> None:
        self.count, self.alone, self.reverse = len(plan.spans), plan.by_visit, bool(manifest.get("reverse", False))
        self.layers, self.directions = int(manifest["num_layers"]), int(manifest["num_directions"])
        self.held, self.lock = (-1, -1), threading.Lock()

    def goes_back(self, visit: int) -> bool:
        """Whether a visit goes from the last step to the first."""
        return self.reverse != (visit >= 0 and visit % self.directions == 1)

    def order(self, visit: int) -> list[int]:
        """The parts as forward goes through them."""
        numbers = [*range(self.count)]
        return numbers[::-1] if self.goes_back(visit) else numbers

    def forward(self, write: Callable[[int, int], None]) -> None:
        """All of forward. write(part, visit): forward through one part, onto the tape."""
        for visit in range(self.layers * self.directions) if self.alone else [-1]:
            for number in self.order(visit):
                self._hold(number, visit, write)

    def _hold(self, number: int, visit: int, write: Callable[[int, int], None]) -> None:
        """Write a part onto the tape, which holds none where that fails half-way."""
        self.held = -1, -1
        write(number, visit)
        self.held = number, visit

    def backward(
        self,
        write: Callable[[int, int], None],
        read: Callable[[int, int, list[Array], list[Array]], None],
        carried: list[Array],
        results: list[Array],
        turns: Sequence[list[Array]],
    ) -> None:
        """All of backward. write: as for forward, of what is not on the tape. read(part, visit, before, after): through
        one part that is, from the gradients of its last states to those of its first: from `carried`, of the call's
        last states, to `results`, by way of the two lists `turns`. Layers go from the last one, but directions as they
        are."""
        d = self.directions
        visits = [layer * d + i for layer in reversed(range(self.layers)) for i in range(d)] if self.alone else [-1]
        with self.lock:
            for visit in visits:
                before, order = carried, self.order(visit)[::-1]
                for number in order:
                    if self.held != (number, visit):
                        self._hold(number, visit, write)
                    after = results if number == order[-1] else turns[number % 2]
                    read(number, visit, before, after)
                    before = after


class Weights:
    """The weights that a module was given at one time, as its functions of training read them. drawn: those of one
    call, in which elements of `whole` are dropped."""

    def __init__(self, module: TrainingModule, whole: Weights | None = None, drawn: Drawn | None = None) -> None:
        self.lock, self.inference, self.whole = threading.Lock(), module._packed, whole or self
        self.packed: dict[str, tvm_ffi.Tensor] = {}  # by function, packed when it is first called
        # Copies: what users can read is read-only, which DLPack refuses.
        arrays = {name: np.array(array) for name, array in {**module.weights, **module._constants}.items()}
        if drawn is not None:
            arrays |= {row[0]: drawn.dropped(row, arrays[row[0]]) for row in module.manifest["masks"].weights}
        self.sources = {name: module._tensor(array.ravel()) for name, array in arrays.items()}

    def packed_for(self, module: TrainingModule, way: str) -> tvm_ffi.Tensor:
        """As the module's "forward" or "backward" function reads them."""
        facts: FunctionFacts = module.manifest.training[way]
        if getattr(facts, "packed_as_inference", False):
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

    def __init__(self, module: TrainingModule, seed: object, first_step: object) -> None:
        from . import runtime_random

        masks, m = module.manifest["masks"], module.manifest
        self.module, self.random = module, runtime_random
        self.seed, self.first = self.random.checked(m, seed, first_step, partial(runtime._error, InputError))
        keys = self.random.keys(self.seed, [*masks.streams], int(m.num_layers), int(m.num_directions))
        self.keys, self.streams = keys.ravel(), bool(masks.streams)

    def arguments(self, start: int) -> tuple[int | np.ndarray, ...]:
        """The last ones of a function, for steps from that one of the call on."""
        return (self.first + start, self.keys) if self.streams else ()

    def dropped(self, row: MaskRow, array: np.ndarray) -> np.ndarray:
        """A weight, or its gradient, with some of its elements 0 and the others scaled. row: of the manifest."""
        stream, layer, direction, keep = str(row[1]), int(row[2]), int(row[3]), float(row[4])
        words = self.random.key(self.seed, stream, layer, direction)
        result = np.empty_like(array)
        limit, drop = self.random.threshold(keep), self.module._library.get_function("weight_drop")
        drop(array.size, *words, limit, 1.0 / keep, array.ravel(), result.ravel())
        return result


class Spare:
    """The memory of the last large tape that is gone, for the next one: the system may take longer to hand out fresh
    pages than forward takes to run."""

    def __init__(self) -> None:
        self.last = deque[np.ndarray](maxlen=1)

    def array(self, elements: int, dtype: np.dtype) -> np.ndarray:
        """A flat array of whatever was in its memory, which comes back here when nobody looks at it any more."""
        size = elements * dtype.itemsize
        if size < SPARE_BYTES:
            return runtime._aligned(elements, dtype)
        try:
            memory = self.last.pop()
        except IndexError:
            memory = None
        if memory is None or memory.nbytes != size:
            memory = None  # first goes the old one
            memory = runtime._aligned(size, np.dtype(np.uint8))
        array = np.frombuffer(memory.data, dtype, elements)  # the base of all of its views, which `memory` is not
        weakref.finalize(array, self.last.append, memory).atexit = False
        return array


class Tape(Recorded):
    """What one call of `forward_train` left for `backward`: inputs, states and kept values of T steps of B rows.
    `nbytes` is how much memory that takes; it is freed with the tape. Any number of backward calls may read it."""

    module: TrainingModule

    def __init__(self, module: TrainingModule, call: Call, array: np.ndarray | None = None) -> None:
        """array: of an earlier tape of the same call; None: a new one."""
        super().__init__(module, call.T, call.B, call.like)
        self.given, self.drawn, self.has, self.rows = call.given, call.drawn, call.has, call.rows
        self.array = self.new_array(self.T) if array is None else array

    def new_array(self, steps: int) -> np.ndarray:
        """One that has room for so many steps."""
        elements = tape_elements(self.module.manifest, steps, self.B, self.T)
        return self.module.tape_memory(elements, self.module._dtype)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def stale(self) -> bool:
        return self.given.whole is not self.module._given

    def check_arrays(self) -> None:
        """Nothing: it has copies."""

    def work(self, way: str, part: Part, more: int = 0) -> np.ndarray:
        """The working memory of the thread for one call of a function, and so many elements more. The old one goes
        before a larger one comes."""
        local, elements = self.module._local, work_elements(self.module.manifest, way, part.tiled, self.B) + more
        work: np.ndarray | None = getattr(local, "training", None)
        if work is None or work.size < elements:
            local.training = work = None
            local.training = work = runtime._aligned(max(1, elements), self.module._dtype)
        return work

    def run(self, way: str, part: Part, arrays: Flats, rows: list[Array], last: Flats) -> None:
        """Call the "forward" or "backward" function for a part. arrays: what it takes before lengths and resets
        (`rows`), all flat; last: sums and working memory."""
        module, m = self.module, self.module.manifest
        tile, place = tile_steps(m, way, part.tiled, self.B), part.place if by_visit(m) else ()
        numbers = (part.steps, self.B, tile, module._threads_for(self.B), *map(int, self.has), *place)
        masks = () if self.drawn is None else self.drawn.arguments(part.start)
        function = module._library.get_function("forward_train" if way == "forward" else way)
        function(*numbers, *arrays, *rows, self.given.packed_for(module, way), self.array, *last, *masks)

    def forward(self, inputs: Flats, before: Flats, y: np.ndarray) -> Flats:
        """Run all steps, from the states `before`, all arrays flat; returns the last states."""
        after, part = [array.copy() for array in before], Part(0, self.T, self.T)
        if self.T and self.B:
            self.run("forward", part, [*inputs, y, *before, *after], self.rows, [self.work("forward", part)])
        return after

    def backward(self, above: np.ndarray | None, carried: Flats, d_x: Flats, row_sums: np.ndarray) -> Flats:
        """From the gradient of y (None: zeros) and those of the last states to those of the first, which are returned;
        the gradients of inputs go to d_x, sums over rows to row_sums."""
        module, after, part = self.module, [array.copy() for array in carried], Part(0, self.T, self.T)
        if above is None:
            above = np.zeros(self.T * self.B * math.prod(module._output), module._dtype)
        last = [row_sums, self.work("backward", part)]
        self.run("backward", part, [above, *carried, *after, *d_x], self.rows, last)
        return after


class Call(NamedTuple):
    """One call of forward_train on a CPU. has: whether there are lengths and resets, which are in `rows`; inputs: flat;
    drawn: from which backward makes the masks again."""

    T: int
    B: int
    like: Callable[[np.ndarray], Array] | None
    inputs: list[np.ndarray]
    has: tuple[bool, bool]
    rows: list[Array]
    given: Weights
    drawn: Drawn | None


def by_visit(manifest: Facts) -> bool:
    """Whether the module's functions take one layer and direction at a time."""
    if "training" in manifest:
        return "inputs_per_row" in manifest["training"]["tape"]
    return str(manifest.get("parts", {}).get("by", "")) == "visits"


def tape_elements(manifest: Facts, T: int, B: int, whole: int) -> int:
    """Of the tape of T steps of B rows, a part of `whole` steps."""
    sizes = manifest["training"]["tape"]
    more = (whole - T) * int(sizes.get("inputs_per_row", 0))  # where layers go through time for themselves
    marks = -(-T // int(sizes.get("mark", 1))) * int(sizes.get("per_mark", 0))  # of matrices, kept now and then
    of_steps = T * int(sizes["per_sequence_row"]) + more + marks
    return int(sizes["fixed"]) + B * (int(sizes["per_row"]) + of_steps) if T and B else 0


def work_elements(manifest: Facts, way: str, T: int, B: int, whole: int = 0) -> int:
    """Of the workspace of "forward" or "backward"; whole: steps of all of the time, where T is of a part whose layers
    hand on what lasts."""
    w, tile = manifest["training"][way]["workspace"], tile_steps(manifest, way, T, B)
    per_row = int(w["per_row"]) + tile * int(w["per_tile_row"]) + (whole or T) * int(w["per_sequence_row"])
    return int(w["fixed"]) + B * per_row


def tile_steps(manifest: Facts, way: str, T: int, B: int) -> int:
    """How many steps are computed at a time before and after the loop. Backward begins where a matrix was kept."""
    steps = int(manifest["training"][way]["rows_per_tile"]) // max(1, B)
    mark = int(manifest["training"]["tape"].get("mark", 1)) if way == "backward" else 1
    return max(1, min(T, max(mark, steps - steps % mark)))


def sizes_of(manifest: Facts, T: int, B: int) -> Sizes:
    """What calls of T steps of B rows take, of the module that has this manifest."""
    from .runtime_memory import Counts, Sizes, why_whole

    item, count = np.dtype(manifest["dtype"]).itemsize, Counts.of(manifest)
    memory, facts = manifest.get("memory", {}), manifest["training"]
    elements, alone = int(facts["backward"]["totals_elements"]) if T and B else 0, by_visit(manifest)
    states = item * B * count.states

    def tape(steps: int) -> int:
        return int(item * tape_elements(manifest, steps, B, T))

    def work(steps: int, again: bool) -> int:
        if not steps or not B:
            return 0
        forward = work_elements(manifest, "forward", steps, B) + (steps * B * count.output if again else 0)
        if again and alone:  # what layers hand down lasts while others run forward again, and one border more
            return int(item * (forward + work_elements(manifest, "backward", steps, B, T)) + states)
        return int(item * max(forward, work_elements(manifest, "backward", steps, B)))

    results = item * (T * B * (count.output + count.inputs) + count.weights) + 2 * states
    flops = [B * float(memory.get(f"{way}_flops_per_row", rate)) for way, rate in (("forward", 1), ("backward", 2))]
    whole = why_whole(manifest, alone)
    return Sizes(T, B, tape, work, states, item * elements, results, flops[0], flops[1], by_visit=alone, whole=whole)


class SegmentedTape(Tape):
    """What one call of `forward_train` left for `backward` where its plan has several parts: the states at their
    borders, the inputs themselves, which must not change until then, and the values of one part at a time. Of a network
    of two directions these are of one layer and direction, and what layers hand to the next is there for all steps."""

    def __init__(self, module: TrainingModule, call: Call, plan: MemoryPlan) -> None:
        super().__init__(module, call, np.empty(0))
        self.array = self.new_array(plan.segment)
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
        (first, last), own, module = self.ends(number, visit), self.part(number, visit), self.module
        rest = own.steps * self.B * math.prod(module._output) if y is None else 0
        work = self.work("forward", own, rest)
        y = work[len(work) - rest :] if y is None else y
        self.run("forward", own, [*inputs, y, *self.borders[first], *self.borders[last]], rows, [work])
        if self.segments.goes_back(visit):
            self.begin_again(self.borders[last], own.start, visit, [state.initial for state in module._plan(self.B)])

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
        segments.forward(lambda number, visit: self.write(number, visit, part(y, *self.plan.spans[number], self.T)))
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

    def backward(self, above: np.ndarray | None, carried: Flats, d_x: Flats, row_sums: np.ndarray) -> Flats:
        module, segments, lasting = self.module, self.segments, None
        results, *turns = ([np.empty_like(array) for array in carried] for _ in range(3))
        if segments.alone:  # what layers hand down must last
            elements = work_elements(module.manifest, "backward", self.plan.segment, self.B, self.T)
            lasting = runtime._aligned(elements, module._dtype)

        def read(number: int, visit: int, before: Flats, after: Flats) -> None:
            own = self.part(number, visit)
            if above is None:
                gradient = np.zeros(own.steps * self.B * math.prod(module._output), module._dtype)
            else:
                gradient = part(above, own.start, own.steps, self.T)
            below = [part(array, own.start, own.steps, self.T) for array in d_x]
            work = self.work("backward", own) if lasting is None else lasting
            arrays, rows = [gradient, *before, *after, *below], self.slices(number)[1]
            self.run("backward", own, arrays, rows, [row_sums, work])
            if segments.goes_back(visit):
                self.begin_again(after, own.start + own.steps, visit, [0.0] * len(after))

        segments.backward(lambda number, visit: self.write(number, visit, None), read, carried, results, turns)
        return results


def part(array: np.ndarray, start: int, count: int, steps: int) -> np.ndarray:
    """Some steps of a flat array that has T of them."""
    row = array.size // steps
    return array[start * row : (start + count) * row]


class TrainingModule(Trainable["Tape"]):
    """A compiled RNN that can be trained on a CPU."""

    _given: Weights | None = None
    tape_type = Tape

    @cached_property
    def tape_memory(self) -> Callable[[int, np.dtype], np.ndarray]:
        """Not all of a tape is written: what is not has whatever this gives."""
        return Spare().array

    def _recorded(self, asked: Asked) -> tuple[Array, State, Tape]:
        arrays, lead, like = self._read_inputs(asked.x, asked.inputs, ("T", "B"))
        (T, B), (has, counts) = lead, self._read_rows(asked.lengths, asked.reset, lead)
        given, masks = self._masked(asked.seed, asked.first_step)
        before, y = self._read_states(asked.state, B), np.empty((T, B, *self._output), self._dtype)
        call = Call(T, B, like, arrays, has, counts, given, masks)
        plan = self._in_parts(lambda: self.memory_sizes(T, B), T, B, asked.max_bytes)
        tape = Tape(self, call) if plan is None else SegmentedTape(self, call, plan)
        after = tape.forward(arrays, before, y.ravel())
        return (y if like is None else like(y)), self._shape_states(after, B, like), tape

    def _masked(self, seed: object, first_step: object) -> tuple[Weights, Drawn | None]:
        """The present weights as one call has them, and its masks."""
        if self._given is None:
            raise self._weightless()
        if "masks" not in self.manifest:
            return self._given, None
        masks = Drawn(self, seed, first_step)
        return Weights(self, self._given, masks) if self.manifest["masks"].weights else self._given, masks

    def tape_of(self, array: np.ndarray, lead: tuple[int, int], lengths: object, reset: object, *drawn: object) -> Tape:
        """The tape that has this array again, of a call of [T, B] = `lead` with the present weights. lengths, reset,
        and `drawn`, seed and first step: as forward_train was given them."""
        (has, counts), (given, masks) = self._read_rows(lengths, reset, lead), self._masked(*drawn)
        return Tape(self, Call(*lead, None, [], has, counts, given, masks), array)

    def _gradients(self, tape: Tape, gy: object, gstate: Mapping[str, object] | None) -> Gradients:
        T, B, like = tape.T, tape.B, tape.like
        shape = (T, B, *self._output)
        above = None if gy is None else self._flat("the gradient of y", gy, shape, "[T, B, D*H], as y")
        if gstate is None:
            before = [np.zeros(flat.size, self._dtype) for flat in self._plan(B)]
        else:
            before = self._each_state(gstate, B, self._flat, np.concatenate, "gradient")
        d_x = [np.zeros((T, B, *inner), self._dtype) for _, inner in self._inputs]
        d_weights = {name: np.zeros(inner, self._dtype) for name, inner in self._weight_shapes.items()}
        after = before if T and B else [array.copy() for array in before]
        if T and B:
            facts = self.manifest.training.backward
            row_sums = runtime._aligned(max(1, int(facts.totals_elements)), self._dtype)
            row_sums[:] = 0
            after = tape.backward(above, before, [array.ravel() for array in d_x], row_sums)
            self._finish(tape, row_sums, d_weights)
        if like is not None:
            d_x, d_weights = [*map(like, d_x)], {name: like(array) for name, array in d_weights.items()}
        return self._named(d_x), self._shape_states(after, B, like), d_weights

    def _finish(self, tape: Tape, row_sums: np.ndarray, d_weights: dict[str, np.ndarray]) -> None:
        """Gradients of weights from sums over steps."""
        finishes: Sequence[Pack] = self.manifest.training.backward.finishes
        for row in finishes:
            raw = (tape.given.sources[name] for name in row.weights)
            filled = (d_weights[name].ravel() for name in row.gradients)
            self._library.get_function(row.function)(*raw, row_sums, int(row.offset), *filled)
        if tape.drawn is not None:
            for mask in self.manifest["masks"].weights:
                d_weights[mask[0]] = tape.drawn.dropped(mask, d_weights[mask[0]])

    def memory_sizes(self, steps: int, batch: int, reset: bool = False, lengths: bool = False) -> Sizes:
        return sizes_of(self.manifest, steps, batch)

    def _use_weights(self, weights: dict[str, np.ndarray]) -> None:
        super()._use_weights(weights)
        self._given = Weights(self)
