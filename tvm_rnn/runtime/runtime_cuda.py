"""Modules for GPUs: the same calls as runtime.py's, on arrays that may already be on the GPU.

In: a .so file for one or several GPU archs, and arrays: torch or cupy on a GPU (used where they are, on the caller's
stream, results from their own allocator), anything else with DLPack there, or arrays of the CPU, which are copied. Out:
new arrays of the same kind and place. Works alone beside a .so, together with runtime.py and gpu_arrays.py.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from . import gpu_arrays, runtime
from .gpu_arrays import Arrays
from .runtime import Array, DeviceError, InputError, LoadError, Manifest, Module, Opened, Shape, State

Result = TypeVar("Result")
KEPT_STATE_BYTES = 64 << 20  # of initial states, which stay on the GPU so that a call need not write them again
KEPT_CALLS = 256  # of each module: the shapes of x that it knows
ARCH = re.compile(r"(?P<kind>sm|compute)_(?P<number>[0-9]{2,3})(?P<letter>[a-z]?)")


class Variant(Protocol):
    """The code of one function for one GPU arch, in a manifest. parameters: (name, dtype) of what its packing reads."""

    arch: str
    packed_bytes: int
    parameters: Sequence[tuple[str, str]]

    def get(self, name: str) -> object: ...


class Call(NamedTuple):
    """One call. values: inputs in the manifest's order; axes: names of the leading ones; lengths and reset: None where
    there are none."""

    values: list[object]
    state: Mapping[str, object] | None
    axes: tuple[str, ...]
    lengths: object = None
    reset: object = None


class Given(NamedTuple):
    """A call's arrays on the GPU. lead: the leading axes; rows: lengths and resets, None where there are none."""

    inputs: list[Array]
    lead: Shape
    T: int
    B: int
    rows: list[Array]


def fits(arch: str, capability: int) -> bool:
    """Whether code for "sm_80", "sm_90a" or "compute_80" runs on a GPU of compute capability 89 (8.9): the same major
    number and at least the minor one; with a letter that very capability; PTX from its own on. A name that is no arch
    fits none."""
    found = ARCH.fullmatch(arch)
    if found is None:
        return False
    number, exact = int(found["number"]), bool(found["letter"])
    if found["kind"] == "compute":
        return not exact and number <= capability
    return number == capability if exact else number // 10 == capability // 10 and number <= capability


class Program:
    """One function of a module on one GPU: how it is called there, and the weights in its kernels' order, which take
    memory from the first call on. way: "" for plain calls, else of training. stale: they are not the module's. finite:
    all of them are known to be, so that what they make of a state that is 0 is 0. tells_starts: its last argument says
    whether a call is given no states."""

    def __init__(self, device: Device, module: CudaModule, way: str, stream: int) -> None:
        self.device, self.stale, self.sizes = device, True, dict[tuple[int, int], int]()
        self.variant: Variant = getattr(device.variant, way) if way else device.variant
        self.tells_starts = bool(self.variant.get("tells_starts"))
        suffix = "_".join([device.variant.arch, *filter(None, [module.manifest.get("part"), way])])
        names = ("load", "pack", "workspace", "sequence")
        self.functions = {n: module._library.get_function(f"{n}_{suffix}") for n in names}
        self.functions["load"](device.number, stream)
        self.packed, self.finite, self._module = 0, False, weakref.ref(module)

    def workspace(self, T: int, B: int, stream: int) -> int:
        """Bytes that a call needs."""
        if (T, B) not in self.sizes:
            if len(self.sizes) > 1000:
                self.sizes = {}
            self.sizes[T, B] = int(self.functions["workspace"](self.device.number, stream, T, B))
        return self.sizes[T, B]

    def pack(self, stream: int, addresses: Mapping[str, int]) -> None:
        """Write the weights, of raw ones that are on the GPU; enqueued on the stream."""
        if not self.packed:
            self.device.check_outside(stream, "weights that take memory in their first call")
            self.packed = self.device.allocate(self._module(), int(self.variant.packed_bytes))
        self.finite = False
        raw = (addresses[name] for name, _ in self.variant.parameters)
        self.functions["pack"](self.device.number, stream, self.packed, *raw)

    def known(self, sources: Mapping[str, np.ndarray]) -> bool:
        """Whether these are all the weights that it reads."""
        return all(name in sources for name, _ in self.variant.parameters)

    def pack_arrays(self, sources: Mapping[str, np.ndarray]) -> None:
        """Write the weights, of arrays of the CPU."""
        device, stream, raw = self.device, gpu_arrays.PER_THREAD_STREAM, dict[str, int]()
        try:
            for name, dtype in self.variant.parameters:
                raw[name] = device.send(np.ascontiguousarray(sources[name], dtype))
            self.pack(stream, raw)
            self.finite = self.tells_starts and all(np.isfinite(sources[name]).all() for name in raw)
            device.functions["finish"](device.number, stream, 0)
        finally:
            for address in raw.values():
                device.functions["release"](device.number, address)
        self.stale = False


class Device:
    """One GPU with one module on it: its programs for that arch, and initial states."""

    ways: tuple[str, ...] = ("",)

    def __init__(self, module: CudaModule, number: int, stream: int) -> None:
        variants: Sequence[Variant] = module.manifest.variants
        self.number = number
        library, first = module._library, variants[0].arch
        capability = int(library.get_function(f"capability_{first}")(number))
        fitting = [v for v in variants if fits(v.arch, capability)]
        if not fitting:
            raise _wrong_gpu(module, f"compute capability {capability / 10}")
        self.variant = max(fitting, key=lambda v: (int("".join(filter(str.isdigit, v.arch))), v.arch))
        self.functions = {n: library.get_function(f"{n}_{self.variant.arch}") for n in gpu_arrays.FUNCTIONS}
        self.check_outside(stream, "the first call on this GPU")
        ways = (*self.ways, *(["generate"] if hasattr(self.variant, "generate") else []))
        self.parts = {way or "sequence": Program(self, module, way, stream) for way in ways}
        self._kept: dict[tuple[int, int], tuple[int, int]] = {}  # (state, B): address, bytes
        self.around = dict[str, object]()  # functions of what is around the network, by name
        self._lock = threading.Lock()

    def allocate(self, owner: object, size: int) -> int:
        """Memory that lives as long as `owner`."""
        address = int(self.functions["allocate"](self.number, max(size, 256)))
        weakref.finalize(owner, self.functions["release"], self.number, address).atexit = False
        return address

    def send(self, array: np.ndarray, address: int = 0) -> int:
        """Copy an array of the CPU to an address, or to new memory, which is returned."""
        address = address or int(self.functions["allocate"](self.number, array.nbytes))
        stream = gpu_arrays.PER_THREAD_STREAM
        self.functions["transfer"](self.number, stream, address, array.ctypes.data, array.nbytes)
        return address

    def check_outside(self, stream: int, got: str) -> None:
        """Raises DeviceError where the stream is captured into a CUDA graph."""
        if self.functions["capturing"](self.number, stream):
            do = "call it once, then capture: kernels and weights are loaded then"
            raise runtime._error(DeviceError, "the module cannot be captured into a graph yet", got, do=do)

    def pack(self, sources: Mapping[str, np.ndarray]) -> None:
        """Take new weights: those of plain calls, where there were some, at once, after all work that may still read
        the old ones; others are written in their next call."""
        plain = self.parts["sequence"]
        for part in self.parts.values():
            part.stale = True
        if plain.packed and plain.known(sources):
            self.functions["settle"](self.number)
            plain.pack_arrays(sources)

    def ready(self, program: Program, sources: Mapping[str, np.ndarray], stream: int) -> None:
        """Write a program's weights, where it has not the module's."""
        with self._lock:
            if program.stale:
                self.check_outside(stream, "weights that were loaded meanwhile")
                self.functions["settle"](self.number)
                program.pack_arrays(sources)

    def initial(self, module: CudaModule, index: int, B: int, stream: int) -> int | None:
        """The address of a state's initial values, or None where they are not kept: a recorded graph must not be the
        first to ask for them, since only its replay would write them."""
        found = self._kept.get((index, B))
        if found is not None or self.functions["capturing"](self.number, stream):
            return found[0] if found else None
        state = module._plan(B)[index]
        with self._lock:
            held = gpu_arrays.narrow(np.full(state.size, state.initial, np.float64), module._kind)
            total = sum(count for _, count in self._kept.values())
            if (index, B) not in self._kept and total + held.nbytes <= KEPT_STATE_BYTES:
                self._kept[index, B] = self.send(held, self.allocate(module, held.nbytes)), held.nbytes
            return self._kept.get((index, B), (None,))[0]


def _wrong_gpu(module: CudaModule, got: str) -> Exception:
    """got: what this machine has; "": no GPU, or no driver that works."""
    archs = ", ".join(v.arch for v in module.manifest["variants"])
    if not got:
        do = "run it on a machine with one, and NVIDIA's driver; for a CPU compile it without a target"
        return runtime._error(LoadError, f"{module.path!r} is for a GPU", "no GPU", archs, do)
    do = "compile it with target='cuda' on this machine, or with this GPU's arch"
    return runtime._error(LoadError, f"{module.path!r} is for another GPU", got, archs, do)


class RepeatedCall:
    """How calls of torch tensors go whose x has the shape of one that went the whole way: Python's part of that takes
    longer than the kernels of a few steps. Each tensor is asked whether kernels read it as it is, and nothing is made
    but results; calls with other arrays go the whole way."""

    def __init__(
        self, module: CudaModule, arrays: gpu_arrays.TorchArrays, given: Given, before: Sequence[Array]
    ) -> None:
        """given, before: of a call whose first states were the initial ones, or the caller's."""
        self.tensor, self.place, self.stream = arrays.lib.Tensor, arrays.place, arrays.stream
        self.kind, self.int64 = arrays.kind, arrays.lib.int64
        self.take, self.memory = gpu_arrays.kept_work.take, arrays.workspace
        self.program = module._device(arrays).parts["sequence"]
        self.T, self.B, self.x, self.y = given.T, given.B, given.inputs[0].shape, (*given.lead, *module._output)
        self.states = {flat.name: flat.parts[0][1] for flat in module._plan(given.B)}
        self.initial: list[int] | None = None
        self.begin(before)
        self.work = self.program.workspace(given.T, given.B, arrays.stream())

    def begin(self, before: Sequence[Array]) -> None:
        """Take the first states of a call, where they are initial ones that stay on the GPU."""
        if all(type(state) is int for state in before):
            self.initial = [*before]

    def address(self, value: Array, shape: Shape, kind: object) -> int:
        """Where a tensor is that kernels read as it is; of anything else 0."""
        if value.__class__ is not self.tensor or value.dtype is not kind or value.shape != shape:
            return 0
        if value.device != self.place or not value.is_contiguous() or value.is_neg() or value.requires_grad:
            return 0
        found: int = value.data_ptr()
        return 0 if found % gpu_arrays.COPIED else found

    def places(self, x: Array, state: Mapping[str, Array] | None, lengths: Array) -> list[int] | None:
        """Where lengths, x and the first states are; None: not all are as kernels read them."""
        ends = 0 if lengths is None else self.address(lengths, (self.B,), self.int64)
        found = [ends, self.address(x, self.x, self.kind)]
        if state is None:
            if self.initial is None:
                return None
            found += self.initial
        elif state.__class__ in (State, dict) and len(state) == len(self.states):
            found += [self.address(state.get(name), shape, self.kind) for name, shape in self.states.items()]
        else:
            return None
        return found if all(found[lengths is None :]) else None

    def __call__(self, x: Array, places: list[int], has_state: bool) -> tuple[Array, State]:
        """The results; enqueued."""
        program, new, stream = self.program, x.new_empty, self.stream()
        y, after = new(self.y), {name: new(shape) for name, shape in self.states.items()}
        work = self.take(program.device.number, stream, self.work, self.memory)
        lengths, *read = places
        given = (bool(lengths), False, y.data_ptr(), lengths, 0, program.packed, work.data_ptr(), *read)
        written = [state.data_ptr() for state in after.values()]
        told = (int(program.finite and not has_state),) if program.tells_starts else ()
        program.functions["sequence"](program.device.number, stream, self.T, self.B, *given, *written, *told)
        return y, State(after)


class CallersThread:
    """What a module for GPUs says of threads of the CPU."""

    @property
    def threads(self) -> int:
        """Of the CPU: a call uses the caller's."""
        return 1

    @threads.setter
    def threads(self, count: int | None) -> None:
        raise runtime._error(InputError, "a module for a GPU has no threads to set", repr(count))


class CudaModule(CallersThread, Module):
    """A compiled RNN for GPUs; called as Module says. dtypes are never cast, but for bfloat16, which NumPy lacks: there
    arrays of the CPU may be float32, and are rounded and widened. `lengths` on a GPU are not checked: that would wait
    for the GPU. Calls on a GPU only enqueue work, and can be captured in a CUDA graph after a first call outside.
    Arrays that are not contiguous, or whose address is no multiple of 16, are copied first, in the same stream.

    device: the GPU for arrays of the CPU. watchdog_seconds: if set (or TVM_RNN_WATCHDOG_SECONDS is), each call that is
    not being captured waits for its end, and raises DeviceError where that takes longer."""

    device_type = Device
    _generation = ".runtime_cuda_generate"

    def __init__(self, path: str | os.PathLike[str], opened: Opened | None = None, anywhere: bool = False) -> None:
        """anywhere: also where no GPU fits: the module can then be exported, not called."""
        self.path, self._file, self.manifest, arrays, self._elf_size = opened or runtime._open_container(path)
        try:
            m, self._kind = self.manifest, str(self.manifest.dtype)
            held = self._kind if self._kind in ("float32", "float64") else "float32"
            self._read_manifest(Manifest({**m, "dtype": held}))
            runtime._check_machine(self.path, m.target)
            self._first = str(m.variants[0].arch)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            what = f"{self.path!r} has an unusable manifest"
            raise runtime._error(LoadError, what, error, do="export it again") from None
        self._library = runtime._open_library(self.path, self._file, self._elf_size, f"devices_{self._first}")
        self._tensor: Callable[[np.ndarray], Array] = lambda array: array
        self._lock, self._devices, self.device = threading.Lock(), dict[int, Device](), 0
        self._kinds = dict[tuple[int, type], Arrays]()  # what handles the arrays of a GPU and type
        self._known = dict[Shape, RepeatedCall]()  # calls by the shape of x
        seconds = os.environ.get("TVM_RNN_WATCHDOG_SECONDS", "")
        self.watchdog_seconds: float | None = float(seconds) if seconds else None
        self._begin(arrays)
        self._draws = bool(m.get("draws"))
        if not anywhere and not self._fits_here():
            found = self._capabilities()
            raise _wrong_gpu(self, "compute capability " + ", ".join(f"{c / 10}" for c in found) if found else "")
        if arrays or not self._weight_shapes:
            self._use_weights(arrays)

    def _capabilities(self) -> list[int]:
        """Of the GPUs of this machine."""
        ask = self._library.get_function(f"capability_{self._first}")
        return [int(ask(i)) for i in range(self._library.get_function(f"devices_{self._first}")())]

    def _fits_here(self) -> bool:
        """Whether a GPU of this machine can run it."""
        return any(fits(v.arch, capability) for v in self.manifest.variants for capability in self._capabilities())

    def _use_weights(self, weights: dict[str, np.ndarray]) -> None:
        super()._use_weights(weights)
        with self._lock:
            for device in self._devices.values():
                device.pack({**self.weights, **self._constants})

    def load_weights(self, weights: Mapping[str, object] | str | os.PathLike[str]) -> None:
        """Replace all weights, as Module.load_weights; from arrays anywhere. Graphs captured before use them too."""
        if isinstance(weights, Mapping):
            weights = {name: gpu_arrays.to_numpy(value, self._dtype == np.float32) for name, value in weights.items()}
        super().load_weights(weights)

    def init_state(self, batch: int) -> State:
        """The initial state for that many rows, as numpy arrays, which a call with any kind of x takes."""
        dtype = np.float16 if self._kind == "float16" else self._dtype
        found = State()
        for name, value in super().init_state(batch).items():
            found[name] = [v.astype(dtype) for v in value] if isinstance(value, list) else value.astype(dtype)
        return found

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """All of the model, as Module.run: on the GPU, in the caller's stream, where all that is around the network is
        compiled for it; what is not runs on the CPU, and its arrays are copied there and back. Results are where the
        first input is."""
        found: dict[str, Array] = importlib.import_module(".runtime_cuda_model", __package__).run(self, inputs)
        return found

    def _all_steps(
        self, x: object, state: Mapping[str, object] | None, inputs: dict[str, Array], lengths: object, reset: object
    ) -> tuple[Array, State]:
        """What a call returns, of arrays [T, B, ...]. x, state, lengths and reset may each be on the GPU or of the CPU;
        results are of the kind and at the place of x. Raises DeviceError too, where the GPU fails."""
        if reset is None and not inputs and (found := self._as_before(x, state, lengths)) is not None:
            return found
        call = Call(self._asked(x, inputs), state, ("T", "B"), lengths, reset)
        return self._on_device(call.values[0], lambda arrays: self._run_on(arrays, call))

    def _as_before(
        self, x: Array, state: Mapping[str, Array] | None, lengths: Array = None
    ) -> tuple[Array, State] | None:
        """What a call returns that is like an earlier one; None: it is not known to be."""
        try:
            again = self._known.get(x.shape)
            if again is None or again.program.stale or self.watchdog_seconds:
                return None
            places = again.places(x, state, lengths)
        except (AttributeError, RuntimeError, TypeError):  # it is no dense tensor: the whole way says what is wrong
            return None
        try:
            return None if places is None else again(x, places, state is not None)
        except RuntimeError as error:
            raise self._failed(error) from error

    @staticmethod
    def _failed(error: RuntimeError) -> Exception:
        return runtime._error(DeviceError, "the GPU could not run this", error)

    def step(
        self,
        x: object,
        state: Mapping[str, object] | None = None,
        *,
        out: tuple[Array, State] | None = None,
        **inputs: object,
    ) -> tuple[Array, State]:
        """One step, as Module says. out: only of modules for CPUs."""
        if not self._steps:
            do = "call mod(x) with all steps"
            raise runtime._error(InputError, "this module cannot step", "two directions or reverse", "forward", do)
        if out is not None:
            do = "capture the step in a CUDA graph, whose arrays stay where they are"
            raise runtime._error(InputError, "out= is of modules for CPUs", "a module for a GPU", do=do)
        if self._held:
            x, state, inputs = self.hold(x, state, inputs)
        if not inputs and (found := self._as_before(x, state)) is not None:
            return found
        call = Call(self._asked(x, inputs), state, ("B",))
        return self._on_device(call.values[0], lambda arrays: self._run_on(arrays, call))

    def _asked(self, x: object, named: Mapping[str, object]) -> list[object]:
        """The inputs of a call, for which there must be weights."""
        values = self._name_inputs(x, named)
        if not self.weights and self._weight_shapes and not self._lent():
            raise self._weightless()
        if self._draws:
            runtime._no_seed()
        return values

    def _lent(self) -> bool:
        """Whether the caller's own tensors are the weights."""
        return False

    def _on_device(self, x: object, run: Callable[[Arrays], Result]) -> Result:
        """What `run` returns, given what handles arrays like x on their GPU."""
        try:
            arrays = gpu_arrays.kind_of(x, self)
        except (ImportError, ValueError) as error:
            do = "pass a torch tensor on that GPU, or a numpy array"
            what = f"{self._inputs[0][0]} is not an array for this module"
            raise runtime._error(InputError, what, f"{type(x).__name__}: {error}", do=do) from None
        try:
            device = self._device(arrays)
            if isinstance(arrays, gpu_arrays.HostArrays):
                arrays.use(device.functions)
            return run(arrays)
        except RuntimeError as error:
            raise self._failed(error) from error

    def _device(self, arrays: Arrays) -> Device:
        """The GPU that arrays are on, with the module on it."""
        if (known := self._devices.get(arrays.number)) is not None:
            return known
        with self._lock:
            if arrays.number not in self._devices:
                count = self._library.get_function(f"devices_{self._first}")()
                if not 0 <= arrays.number < count:
                    raise _wrong_gpu(self, f"GPU {arrays.number} of {count}" if count else "")
                self._devices[arrays.number] = self.device_type(self, arrays.number, arrays.stream())
            return self._devices[arrays.number]

    def _given(self, arrays: Arrays, call: Call) -> Given:
        (name, shape), *others = self._inputs
        first = self._take(arrays, name, call.values[0], None, "")
        self._check_lead(name, shape, tuple(first.shape), call.axes)
        lead = tuple(first.shape[: len(call.axes)])
        text = f"[{', '.join(call.axes)}, ...], as in {name}"
        pairs = zip(others, call.values[1:], strict=True)
        more = [self._take(arrays, n, v, (*lead, *s), text) for (n, s), v in pairs]
        T, B = (1, *lead) if len(lead) == 1 else lead
        lengths = None if call.lengths is None else self._rows(arrays, "lengths", call.lengths, np.int64, (B,), T)
        reset = None if call.reset is None else self._rows(arrays, "reset", call.reset, bool, (T, B), T)
        return Given([first, *more], lead, T, B, [lengths, reset])

    def _run_on(self, arrays: Arrays, call: Call) -> tuple[Array, State]:
        given = self._given(arrays, call)
        before = self._before(self._device(arrays), arrays, call.state, given.B)
        y, after = self._computed(arrays, given, before, call.state is None)
        self._remember(arrays, given, before)
        return arrays.result(y, (*given.lead, *self._output)), self._shaped(arrays, after, given.B)

    def _remember(self, arrays: Arrays, given: Given, before: Sequence[Array]) -> None:
        """Know the next call of this shape, where it may be one that goes the short way."""
        if not isinstance(arrays, gpu_arrays.TorchArrays) or arrays.back is not None or not given.T * given.B:
            return
        (x, *others), plain = given.inputs, all(len(flat.parts) == 1 for flat in self._plan(given.B))
        if (again := self._known.get(x.shape)) is not None:
            again.begin(before)
        elif plain and not others:
            known = self._known if len(self._known) < KEPT_CALLS else {}
            self._known = {**known, x.shape: RepeatedCall(self, arrays, given, before)}

    def _computed(
        self, arrays: Arrays, given: Given, before: Sequence[Array], starts: bool
    ) -> tuple[Array, list[Array]]:
        """y and the last states, flat, of given inputs and first states; enqueued. starts: the latter are the initial
        ones."""
        T, B, y = given.T, given.B, arrays.empty((*given.lead, *self._output))
        if not T or not B:
            return y, self._unchanged(arrays, before, B)
        stream = arrays.stream()
        after, program = self._after(arrays, B), self._ready(self._device(arrays), "sequence", stream)
        work = arrays.workspace(program.workspace(T, B, stream))
        told = [int(starts and program.finite)] if program.tells_starts else []
        self._launch(program, arrays, (T, B), [y, *given.rows], [work, *given.inputs, *before, *after, *told])
        return y, after

    def _ready(self, device: Device, way: str, stream: int) -> Program:
        """A program with weights in it."""
        program = device.parts[way]
        if program.stale:
            sources = {**self.weights, **self._constants}
            if not program.known(sources):
                raise self._weightless()
            device.ready(program, sources, stream)
        return program

    def _launch(
        self, program: Program, arrays: Arrays, sizes: tuple[int, int], first: Sequence[Array], rest: Sequence[Array]
    ) -> None:
        """Call a program. sizes: T and B; first, rest: its arguments in order, arrays or numbers, before and after
        packed weights, beginning with y, lengths and resets."""
        number, stream = program.device.number, arrays.stream()
        before, after = ([self._address(arrays, array) for array in own] for own in (first, rest))
        has = [array is not None for array in first[1:]]
        program.functions["sequence"](number, stream, *sizes, *has, *before, program.packed, *after)
        functions = program.device.functions
        if self.watchdog_seconds and not functions["capturing"](number, stream):
            functions["finish"](number, stream, max(1, int(1000 * self.watchdog_seconds)))

    @staticmethod
    def _address(arrays: Arrays, array: Array) -> int:
        """Where an array is, or 0 for None; a number stays one."""
        return 0 if array is None else array if type(array) is int else arrays.address(array)

    def _after(self, arrays: Arrays, B: int) -> list[Array]:
        """Memory for the last states."""
        return [arrays.empty(parts[0][1] if len(parts) == 1 else (size,)) for _, _, size, parts, _ in self._plan(B)]

    def _unchanged(self, arrays: Arrays, before: Sequence[Array], B: int) -> list[Array]:
        """The last states of no steps."""
        pairs = zip(self._plan(B), before, strict=True)
        return [arrays.full(p.size, p.initial) if type(b) is int else arrays.copy(b) for p, b in pairs]

    def _take(self, arrays: Arrays, what: str, value: object, shape: Shape | None, axes: str) -> Array:
        """The array on the GPU, contiguous and aligned; its memory where it is so already."""
        try:
            array = arrays.adopt(value)
        except (AttributeError, RuntimeError, BufferError, TypeError, ValueError) as error:
            got, do = f"{type(value).__name__}: {error}", "a dense array: torch, cupy, numpy, DLPack"
            raise runtime._error(InputError, f"{what} is not an array for this module", got, do) from None
        if shape is not None and tuple(array.shape) != shape:
            what = f"{what} has the wrong shape"
            raise runtime._error(InputError, what, tuple(array.shape), f"{shape} = {axes}", "reshape it")
        if (found := arrays.dtype(array)) != self._kind:
            raise runtime._error(InputError, f"{what} has the wrong dtype", found, self._kind, "cast it")
        return arrays.aligned(array)

    def _rows(self, arrays: Arrays, what: str, value: object, dtype: type, shape: Shape, steps: int) -> Array:
        """lengths as int64, reset as uint8 (0 or 1), on the GPU."""
        if gpu_arrays.gpu_of(value) is None:
            own = runtime._per_row(what, value, dtype, shape, steps)
            return arrays.adopt_rows(own.view(np.uint8) if dtype is bool else own)
        array: Array = arrays.adopt_rows(value)
        allowed, expected = (("bool", "uint8"), "bool or uint8") if dtype is bool else (gpu_arrays.INTEGERS, "integers")
        if arrays.dtype(array) not in allowed or tuple(array.shape) != shape:
            got = f"{arrays.dtype(array)} of shape {tuple(array.shape)}"
            do = "cast or reshape it"
            raise runtime._error(InputError, f"{what} does not fit x", got, f"{expected} of shape {shape}", do)
        return arrays.flags(array) if dtype is bool else arrays.cast(array, "int64")

    def _before(self, device: Device, arrays: Arrays, state: Mapping[str, object] | None, B: int) -> list[Array]:
        """Each first state as one flat array, or as the address of kept initial values."""
        if state is not None:
            return self._each_state(state, B, partial(self._take, arrays), arrays.join)
        return self._filled(device, arrays, B, [flat.initial for flat in self._plan(B)])

    def _filled(self, device: Device, arrays: Arrays, B: int, values: Sequence[float]) -> list[Array]:
        """States that have one value each: the address of kept initial values where it is theirs."""
        result = []
        for i, (flat, value) in enumerate(zip(self._plan(B), values, strict=True)):
            kept = flat.size and value == flat.initial
            address = device.initial(self, i, B, arrays.stream()) if kept else None
            result.append(arrays.full(flat.size, value) if address is None else address)
        return result

    def _shaped(self, arrays: Arrays, flat: Sequence[Array], B: int) -> State:
        result = State()
        for array, (name, _, _, parts, _) in zip(flat, self._plan(B), strict=True):
            if len(parts) == 1:
                result[name] = arrays.result(array, parts[0][1])
                continue
            whole = arrays.flat(array)
            result[name] = [arrays.result(whole[place], shape) for place, shape in parts]
        return result

    def _runs_on(self) -> str:
        archs = ", ".join(variant.arch for variant in self.manifest.variants)
        return f"{self.manifest.get('precision', self._kind)} on {self.manifest.target.name} ({archs})"


__all__ = ["CudaModule", "Device", "fits"]
