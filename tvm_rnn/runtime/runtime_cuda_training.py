"""Modules for GPUs that train: the calls of runtime_cuda.py, and forward_train and backward.

In: a .so file that was compiled for training for GPUs, arrays as for every such module, and gradients of results. Out:
results with a `CudaTape`, and gradients of inputs, states and weights, of the kind and at the place of x. Works alone
beside a .so, together with runtime.py, runtime_cuda.py, runtime_cuda_tape.py and gpu_arrays.py, and of networks with
regularisers runtime_random.py; with max_bytes also with runtime_memory.py and runtime_cuda_segments.py.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

try:
    from ..errors import DeviceError, InputError
    from . import gpu_arrays, runtime
    from .runtime_cuda import CudaModule, Device
    from .runtime_cuda_tape import CudaTape, Part, by_visit, check_tape, new_output, numbers, readable
except ImportError:  # this file and those that it names alone, beside a .so
    globals().update({name: importlib.import_module(name) for name in ("gpu_arrays", "runtime")})
    globals().update({n: getattr(importlib.import_module("runtime_cuda"), n) for n in ("CudaModule", "Device")})
    globals().update({n: getattr(importlib.import_module("runtime_cuda"), n) for n in ("DeviceError", "InputError")})
    _tape = importlib.import_module("runtime_cuda_tape")
    globals().update(vars(_tape))

WAYS = ("forward_train", "backward")


class Way:
    """One of the two programs on one GPU: its functions, and the weights in its kernels' order."""

    def __init__(self, device: TrainingDevice, module: CudaModule, way: str, stream: int) -> None:
        self.facts, self.device, self.stale = device.variant[way], device, True
        names = ("load", "pack", "workspace", "sequence")
        library, arch = module._library, device.variant.arch
        self.functions = {n: library.get_function(f"{n}_{arch}_{way}") for n in names}
        self.functions["load"](device.number, stream)
        self.packed = device.allocate(module, int(self.facts.packed_bytes))

    def workspace(self, T: int, B: int, stream: int) -> int:
        """Bytes that a call needs."""
        return int(self.functions["workspace"](self.device.number, stream, T, B))


class TrainingDevice(Device):
    """One GPU with one module on it, which may train there."""

    def __init__(self, module: CudaModule, number: int, stream: int) -> None:
        super().__init__(module, number, stream)
        self._constants: dict[str, int] | None = None
        self.used: dict[str, Any] = {}  # addresses of the caller's tensors that were packed last, by program
        self.held: dict[str, Any] = {}  # and these
        self.drops = bool(module.manifest.get("masks", {}).get("weights"))  # then weights are packed in every call
        self._own: dict[str, int] = {}  # addresses of the module's own weights, for such calls
        self._fresh = False
        self.parts = {way: Way(self, module, way, stream) for way in WAYS}

    def pack(self, sources: Mapping[str, np.ndarray]) -> None:
        """The weights of calls at once, those of training when it next begins."""
        super().pack(sources)
        self.used, self.held, self._fresh = {}, {}, False
        for part in self.parts.values():
            part.stale = True

    def prepare(self, sources: Mapping[str, np.ndarray], stream: int) -> None:
        """Weights in the order of both programs."""
        if self.drops or not any(part.stale for part in self.parts.values()):
            return
        if self.functions["capturing"](self.number, stream):
            got, do = "weights that were loaded meanwhile", "call forward_train once, then capture"
            raise runtime._error(DeviceError, "the module cannot be captured into a graph yet", got, do=do)
        self.functions["settle"](self.number)
        for part in self.parts.values():
            if part.stale:
                self.pack_as(part.functions["pack"], part.facts, part.packed, sources)
                part.stale = False

    def constants(self, module: CudaModule) -> dict[str, int]:
        """The addresses of the equations' constants."""
        if self._constants is None:
            self._constants = {}
            kind = np.float64 if module._kind == "float64" else np.float32
            for name, value in module._constants.items():
                array = np.ascontiguousarray(value, kind)
                address = self.allocate(module, array.nbytes)
                stream = gpu_arrays.PER_THREAD_STREAM
                self.functions["transfer"](self.number, stream, address, array.ctypes.data, array.nbytes)
                self._constants[name] = address
        return self._constants

    def pack_there(self, stream: int, addresses: Mapping[str, int], ways: Sequence[str]) -> None:
        """Weights that are on the GPU, dense, in the dtype that they are kept in; enqueued on the stream."""
        programs = {"sequence": (self.functions["pack"], self.variant, self.packed)}
        programs |= {way: (part.functions["pack"], part.facts, part.packed) for way, part in self.parts.items()}
        for way in ways if not self.drops else [way for way in ways if way not in self.parts]:
            pack, facts, packed = programs[way]
            pack(self.number, stream, packed, *(addresses[name] for name, _ in facts.parameters))
            if way in self.parts:
                self.parts[way].stale = False

    def pack_drawn(self, module: CudaModule, way: str, stream: int, masks: Sequence[Any], seed_at: int) -> None:
        """The weights of one call, where some of their elements are dropped; enqueued on the stream."""
        part, there = self.parts[way], self.used.get(way)
        known = {**(there or self._given(module)), **self.constants(module), "masks.seed": masks[0]}
        known["masks.seed_at"] = seed_at
        part.functions["pack"](self.number, stream, part.packed, *(known[name] for name, _ in part.facts.parameters))

    def _given(self, module: CudaModule) -> dict[str, int]:
        """The addresses of the weights that the module was given, dense."""
        kind, per_thread = np.float64 if module._kind == "float64" else np.float32, gpu_arrays.PER_THREAD_STREAM
        for name, value in module.weights.items() if not self._fresh else ():
            array = np.ascontiguousarray(value, kind)
            if name not in self._own:
                self._own[name] = self.allocate(module, array.nbytes)
            self.functions["transfer"](self.number, per_thread, self._own[name], array.ctypes.data, array.nbytes)
        self._fresh = True
        return self._own


class CudaTrainingModule(CudaModule):
    """A compiled RNN that can be trained on a GPU: a CudaModule with `forward_train` and `backward`, which only enqueue
    work, too, and can be captured in a CUDA graph after a first call outside.

    max_bytes: how much memory forward_train and backward may take together besides what they return; None: all they
    want, which is quickest. Calls for which it is too little for one tape go through time in parts (`plan_memory`)."""

    device_type = TrainingDevice

    @cached_property
    def _max_bytes(self) -> Any:
        return self.manifest.get("memory", {}).get("max_bytes")

    def use_there(self, weights: Mapping[str, Any], ways: Sequence[str], known: bool = False) -> None:
        """Use torch tensors as weights from here on, on their GPU's current stream: all of them, on one GPU, dense and
        in float32 (float64 for float64). ways: for "sequence" (plain calls), "forward_train", "backward". known: these
        tensors may have been given before, and not changed since. Nothing is copied to the CPU: `weights` stays as it
        was. Where a CUDA graph is captured, this is part of it."""
        arrays = gpu_arrays.kind_of(next(iter(weights.values())), self)
        device: Any = self._devices.get(arrays.number) or self._open_device(arrays)
        stream = arrays.stream()
        which = {name: arrays.address(tensor) for name, tensor in weights.items()}
        if known and all(device.used.get(way) == which for way in ways):
            return
        device.pack_there(stream, {**which, **device.constants(self)}, ways)
        device.held = {**device.held, **dict.fromkeys(ways, weights)}  # nobody else gets their memory meanwhile
        device.used = {**device.used, **dict.fromkeys(ways, which)}

    def forward_train(
        self,
        x: Any,
        state: Any = None,
        *,
        lengths: Any = None,
        reset: Any = None,
        max_bytes: int | None = None,
        seed: Any = None,
        first_step: int = 0,
        **inputs: Any,
    ) -> tuple[Any, dict[str, Any], CudaTape]:
        """As calling the module: (y, {name: state after the last step}), and the tape that `backward` reads. It reads x
        on the GPU too and, where the output of the last layer is a state, y, which must not change until then; where
        there are lengths or resets, the tape has copies.

        seed: an integer of 64 bits, of which all masks are made; or an array of one int64 on the GPU of x, which a CUDA
        graph reads anew at each replay. A network without regularisers needs none. first_step: the number of x's first
        step in a longer sequence, whose chunks then have the masks of the whole.

        max_bytes: for this call; None: the module's own. Where all steps do not fit, backward reads x in any case.
        Raises InputError, with the smallest number possible, where no plan fits."""
        run = partial(self._forward_on, drawn=(seed, first_step), max_bytes=max_bytes)
        found: tuple[Any, dict[str, Any], CudaTape] = self._enqueue(x, inputs, state, ("T", "B"), lengths, reset, run)
        return found

    def _drawn(self, arrays: Any, seed: Any, first_step: Any) -> tuple[Any, ...]:
        """The last inputs of both programs, where the network has regularisers."""
        if "masks" not in self.manifest:
            return ()
        there = gpu_arrays.gpu_of(seed) is not None
        if there:
            seed_at = arrays.copy(arrays.adopt_rows(seed))
            if arrays.dtype(seed_at) != "int64" or math.prod(seed_at.shape) != 1:
                got = f"{arrays.dtype(seed_at)} of shape {tuple(seed_at.shape)}"
                raise runtime._error(InputError, "the seed is wrong", got, "one int64")
        random, error = runtime._beside("runtime_random"), partial(runtime._error, InputError)
        number, first = random.checked(self.manifest, 0 if there else seed, first_step, error)
        signed = number - (1 << 64) if number >> 63 else number
        return signed, seed_at if there else 0, first

    def _forward_on(
        self,
        device: Any,
        arrays: Any,
        values: Any,
        state: Any,
        axes: tuple[str, ...],
        lengths: Any,
        reset: Any,
        drawn: tuple[Any, Any],
        max_bytes: int | None = None,
    ) -> Any:
        given, lead, (T, B), rows = self._given(arrays, values, axes, lengths, reset)
        given = readable(arrays, given)
        stream, part = arrays.stream(), device.parts["forward_train"]
        flagged = lengths is not None or reset is not None
        plan = self._planned(device, T, B, max_bytes, reset is not None, lengths is not None)
        device.prepare({**self.weights, **self._constants}, stream)
        before = self._before(device, arrays, state, B, stream)
        y, lasting = new_output(arrays, self.manifest, (*lead, *self._output), flagged)
        if plan is not None and plan.again:
            segments = runtime._beside("runtime_cuda_segments")
            tape = segments.CudaSegmentedTape(self, arrays, values[0], plan, self.weights, given, flagged)
        else:
            tape = CudaTape(self, arrays, values[0], (T, B), self.weights, given, flagged)
        tape.keep(lasting)
        tape.rows, tape.masks = [self._lasting(arrays, row) for row in rows], self._drawn(arrays, *drawn)
        if not T or not B:
            pairs = zip(self._plan(B), before, strict=True)
            after = [arrays.full(p[2], p[1]) if type(b) is int else arrays.copy(b) for p, b in pairs]
            return arrays.result(y, (*lead, *self._output)), self._shaped(arrays, after, B), tape
        after = [arrays.empty(parts[0][1] if len(parts) == 1 else (size,)) for _, _, size, parts in self._plan(B)]
        if hasattr(tape, "plan"):
            self._drop(device, arrays, "forward_train", tape)
            segments.forward(device, arrays, tape, before, y, after)
        else:
            work = arrays.workspace(part.workspace(T, B, stream))
            more = numbers(self.manifest, Part(0, T, T))
            held = [y, *rows, work, *given, tape.array, *tape.masks, *more, *before, *after]
            self._drop(device, arrays, "forward_train", tape)
            self._call(part, arrays, (T, B), rows, held)
        return arrays.result(y, (*lead, *self._output)), self._shaped(arrays, after, B), tape

    @staticmethod
    def _drop(device: TrainingDevice, arrays: Any, way: str, tape: CudaTape) -> None:
        """Pack this call's weights, where they are dropped."""
        if device.drops and tape.masks:
            at = tape.masks[1]
            address = at if type(at) is int else arrays.address(at)
            device.pack_drawn(tape.module, way, arrays.stream(), tape.masks, address)

    @staticmethod
    def _lasting(arrays: Any, row: Any) -> Any:
        """lengths or resets for as long as the tape: a caller's tensor may change before backward."""
        return None if row is None else arrays.copy(row)

    def _call(self, part: Way, arrays: Any, sizes: tuple[int, int], rows: Sequence[Any], held: Sequence[Any]) -> None:
        """sequence's arguments are in this order, but for the packed weights, which come fourth."""
        device, stream = part.device, arrays.stream()
        at = [0 if a is None else a if type(a) is int else arrays.address(a) for a in held]
        has = [row is not None for row in rows]
        part.functions["sequence"](device.number, stream, *sizes, *has, *at[:3], part.packed, *at[3:])
        if self.watchdog_seconds and not device.functions["capturing"](device.number, stream):
            device.functions["finish"](device.number, stream, max(1, int(1000 * self.watchdog_seconds)))

    def backward(
        self, tape: CudaTape, gy: Any = None, gstate: Any = None
    ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The gradients of sum(gy * y) + sum(gstate * state) for what `forward_train` returned with that tape.

        gy: [T, B, D*H], None: zeros; what it holds after a row's length counts nothing. gstate: a dict of all states,
        None: zeros; in truncated back-propagation the gradient of the next chunk's first state. Returns the gradient of
        x (where the cell has several inputs {input: gradient}), of the first state (a dict, as the state), both in the
        network's dtype, and {weight: gradient}, float32 for 16-bit networks, of the kind that x was. Raises InputError
        for a tape that is not this module's, whose weights are no longer the module's or whose x has changed, and for
        arrays that do not fit."""
        check_tape(self, tape)
        return self._gradients(tape, gy, gstate)

    def _gradients(self, tape: CudaTape, gy: Any, gstate: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """What `backward` returns, for the weights that the tape was written with."""
        try:
            arrays = gpu_arrays.kind_of(tape.like, self)
            device: Any = self._devices.get(arrays.number) or self._open_device(arrays)
            arrays.use(device.functions)
            found: tuple[Any, dict[str, Any], dict[str, Any]]
            found = self._backward_on(device, arrays, tape, gy, gstate)
            return found
        except RuntimeError as error:
            raise runtime._error(DeviceError, "the GPU could not run this", error) from error

    def _backward_on(self, device: Any, arrays: Any, tape: CudaTape, gy: Any, gstate: Any) -> Any:
        T, B, stream = tape.T, tape.B, arrays.stream()
        shape, part = (T, B, *self._output), device.parts["backward"]
        above = None
        if gy is not None:
            (above,) = readable(arrays, [self._take(arrays, "the gradient of y", gy, shape, "[T, B, D*H], as y")])
        elif not hasattr(tape, "plan"):
            above = arrays.full(math.prod(shape), 0.0)
        before = self._gradients_of_states(arrays, gstate, B)
        kind = "float64" if self._kind == "float64" else "float32"
        if not T or not B:
            return self._nothing(arrays, before, kind, T, B)
        d_x = [arrays.empty((T, B, *inner)) for _, inner in self._inputs]
        shapes = [self._weight_shapes[name] for name in self.manifest["gradients"]]
        if hasattr(tape, "plan"):
            d_weights = [arrays.zeros(inner, kind) for inner in shapes]
            segments = runtime._beside("runtime_cuda_segments")
            for way in WAYS:
                self._drop(device, arrays, way, tape)
            after = segments.backward(device, arrays, tape, above, before, d_x, d_weights, kind)
            return self._results(arrays, d_x, after, d_weights, T, B)
        d_weights = [arrays.typed(inner, kind) for inner in shapes]
        after = [arrays.empty(parts[0][1] if len(parts) == 1 else (size,)) for _, _, size, parts in self._plan(B)]
        work = arrays.workspace(part.workspace(T, B, stream))
        rows = [self._lasting(arrays, row) for row in tape.rows]
        more = [*tape.masks, *numbers(self.manifest, Part(0, T, T)), *([0] if by_visit(self.manifest) else [])]
        held = [tape.output, *rows, work, above, tape.array, *tape.given, *d_x, *d_weights, *more, *before, *after]
        self._drop(device, arrays, "backward", tape)
        self._call(part, arrays, (T, B), rows, held)
        return self._results(arrays, d_x, after, d_weights, T, B)

    def _results(self, arrays: Any, d_x: Any, after: Any, d_weights: Any, T: int, B: int) -> Any:
        """Gradients as the caller gets them."""
        pairs = zip(self._inputs, d_x, strict=True)
        named = {name: arrays.result(array, (T, B, *inner)) for (name, inner), array in pairs}
        made = zip(self.manifest["gradients"], d_weights, strict=True)
        found = {name: arrays.result(array, self._weight_shapes[name]) for name, array in made}
        weights = {name: found[name] for name in self._weight_shapes}
        return (named if len(named) > 1 else named[self._inputs[0][0]]), self._shaped(arrays, after, B), weights

    def _nothing(self, arrays: Any, before: Any, kind: str, T: int, B: int) -> Any:
        """No step, no row: the states' gradients go through."""
        d_x = [arrays.empty((T, B, *inner)) for _, inner in self._inputs]
        d_weights = []
        for name in self.manifest["gradients"]:
            d_weights.append(arrays.zeros(self._weight_shapes[name], kind))
        return self._results(arrays, d_x, [arrays.copy(value) for value in before], d_weights, T, B)

    def _gradients_of_states(self, arrays: Any, gstate: Any, B: int) -> list[Any]:
        """Flat gradients of the last states, in the order of the states."""
        if gstate is None:
            return [arrays.full(size, 0.0) for _, _, size, _ in self._plan(B)]
        if not isinstance(gstate, Mapping) or gstate.keys() != self._states.keys():
            got = [*gstate] if isinstance(gstate, Mapping) else type(gstate).__name__
            do = "give all of them, as backward returns them, or None"
            raise runtime._error(InputError, "the gradient of the state is not the module's", got, [*self._states], do)
        device: Any = None  # whose initial states are not wanted
        return self._before(device, arrays, gstate, B, arrays.stream())

    @property
    def max_bytes(self) -> Any:
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, count: int | None) -> None:
        self._max_bytes = runtime._beside("runtime_memory").check_budget(count)

    def memory_sizes(self, steps: int, batch: int, reset: bool = False, lengths: bool = False) -> Any:
        """What calls of T steps of B rows take, as `runtime_memory.Sizes`. reset, lengths: with them."""
        arrays = gpu_arrays.HostArrays(self, None)
        device: Any = self._devices.get(arrays.number) or self._open_device(arrays)
        return self._sizes_on(device, steps, batch, reset, lengths)

    def plan_memory(
        self, steps: int, batch: int, max_bytes: int | None = None, *, reset: bool = False, lengths: bool = False
    ) -> Any:
        """How forward_train and backward would use at most that many bytes (None: the module's own max_bytes) for T
        steps of B rows: a `MemoryPlan`, which says its `bytes` and the `time` it takes relative to no limit. reset:
        and lengths: with them. Raises InputError, with the smallest number possible, where no plan fits."""
        sizes = self.memory_sizes(steps, batch, reset, lengths)
        return runtime._beside("runtime_memory").within(sizes, max_bytes, self._max_bytes)

    def _sizes_on(self, device: Any, T: int, B: int, reset: bool, lengths: bool) -> Any:
        return runtime._beside("runtime_cuda_segments").sizes_on(self, device, T, B, reset, lengths)

    def _planned(self, device: Any, T: int, B: int, max_bytes: int | None, reset: bool, lengths: bool) -> Any:
        if (max_bytes is None and self._max_bytes is None) or not T or not B:
            return None
        sizes = self._sizes_on(device, T, B, reset, lengths)
        return runtime._beside("runtime_memory").within(sizes, max_bytes, self._max_bytes)


__all__ = ["CudaTrainingModule", "TrainingDevice"]
