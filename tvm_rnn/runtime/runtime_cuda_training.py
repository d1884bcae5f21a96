"""Modules for GPUs that train: the calls of runtime_cuda.py, and forward_train and backward.

In: a .so file that was compiled for training for GPUs, arrays as for every such module, and gradients of results. Out:
results with a `CudaTape`, and gradients of inputs, states and weights, of the kind and at the place of x. Works alone
beside a .so, together with runtime.py, runtime_cuda.py, runtime_cuda_tape.py, runtime_training.py and gpu_arrays.py,
and of networks with regularisers runtime_random.py; with max_bytes also with runtime_memory.py and
runtime_cuda_segments.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from . import gpu_arrays, runtime
from .gpu_arrays import Arrays
from .runtime import Array, DeviceError, InputError, State
from .runtime_cuda import Call, CudaModule, Device, Program
from .runtime_cuda_tape import CudaTape, Steps, new_output, readable
from .runtime_training import Gradients, Trainable

if TYPE_CHECKING:
    from .runtime_memory import MemoryPlan, Sizes

WAYS = ("forward_train", "backward")


class Way:
    """One of the two programs on one GPU: its functions, and the weights in its kernels' order."""

    def __init__(self, device: TrainingDevice, module: CudaModule, way: str, stream: int) -> None:
        self.device, self.stale = device, True
        self.facts: Program = getattr(device.variant, way)
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
        self.used: dict[str, dict[str, int]] = {}  # addresses of the caller's tensors that were packed last, by program
        self.held: dict[str, Mapping[str, Array]] = {}  # and these
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

    def pack_drawn(self, module: CudaModule, way: str, stream: int, masks: Sequence[Array], seed_at: int) -> None:
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
        device.pack_there(stream, {**which, **device.constants(self)}, ways)
        device.held = {**device.held, **dict.fromkeys(ways, weights)}  # nobody else gets their memory meanwhile
        device.used = {**device.used, **dict.fromkeys(ways, which)}

    def _recorded(
        self,
        x: object,
        inputs: Mapping[str, object],
        state: Mapping[str, object] | None,
        rows: tuple[object, object],
        drawn: tuple[object, object],
        max_bytes: int | None,
    ) -> tuple[Array, State, CudaTape]:
        call = Call(self._asked(x, inputs), state, ("T", "B"), *rows)
        return self._on_device(call.values[0], lambda arrays: self._forward_on(arrays, call, drawn, max_bytes))

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

    def _forward_on(
        self, arrays: Arrays, call: Call, drawn: tuple[object, object], max_bytes: int | None
    ) -> tuple[Array, State, CudaTape]:
        device, given, stream = self._device(arrays), self._given(arrays, call), arrays.stream()
        T, B, reset, lengths = given.T, given.B, call.reset is not None, call.lengths is not None
        plan = self._planned(device, T, B, max_bytes, reset, lengths)
        device.prepare({**self.weights, **self._constants}, stream)
        before, shape = self._before(device, arrays, call.state, B, stream), (T, B, *self._output)
        y, lasting = new_output(arrays, self.manifest, shape, lengths or reset)
        inputs, flagged = readable(arrays, given.inputs), lengths or reset
        tape = self._new_tape(arrays, call.values[0], (T, B), inputs, flagged, plan)
        tape.keep(lasting)
        tape.rows, tape.masks = [self._lasting(arrays, row) for row in given.rows], self._drawn(arrays, *drawn)
        if not T or not B:
            after = self._unchanged(arrays, before, B)
        else:
            after = self._after(arrays, B)
            self._drop(device, arrays, "forward_train", tape)
            tape.forward(Steps(device, arrays, given.rows), inputs, before, y, after)
        return arrays.result(y, shape), self._shaped(arrays, after, B), tape

    def _new_tape(
        self,
        arrays: Arrays,
        x: object,
        sizes: tuple[int, int],
        inputs: Sequence[Array],
        flagged: bool,
        plan: MemoryPlan | None,
    ) -> CudaTape:
        if plan is None or not plan.again:
            return CudaTape(self, arrays, x, sizes, inputs, flagged)
        from .runtime_cuda_segments import CudaSegmentedTape

        return CudaSegmentedTape(self, arrays, x, plan, inputs, flagged)

    @staticmethod
    def _drop(device: TrainingDevice, arrays: Arrays, way: str, tape: CudaTape) -> None:
        """Pack this call's weights, where they are dropped."""
        if device.drops and tape.masks:
            at = tape.masks[1]
            address = at if type(at) is int else arrays.address(at)
            device.pack_drawn(tape.module, way, arrays.stream(), tape.masks, address)

    @staticmethod
    def _lasting(arrays: Arrays, row: Array) -> Array:
        """lengths or resets for as long as the tape: a caller's tensor may change before backward."""
        return None if row is None else arrays.copy(row)

    def _call(
        self, way: Way, arrays: Arrays, sizes: tuple[int, int], rows: Sequence[Array], held: Sequence[Array]
    ) -> None:
        """Call one of the two programs."""
        self._launch(way.device, way.functions["sequence"], way.packed, arrays, sizes, rows, held)

    def _gradients(self, tape: CudaTape, gy: object, gstate: object) -> Gradients:
        return self._on_device(tape.like, lambda arrays: self._backward_on(arrays, tape, gy, gstate))

    def _backward_on(self, arrays: Arrays, tape: CudaTape, gy: object, gstate: object) -> Gradients:
        T, B, device = tape.T, tape.B, self._device(arrays)
        above = None
        if gy is not None:
            taken = self._take(arrays, "the gradient of y", gy, (T, B, *self._output), "[T, B, D*H], as y")
            (above,) = readable(arrays, [taken])
        if gstate is None:
            before = [arrays.full(size, 0.0) for _, _, size, _ in self._plan(B)]
        else:
            before = self._taken(arrays, self._gradient_arrays(gstate, B))
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
        device = self._device(gpu_arrays.HostArrays(self, None))
        return self._sizes_on(device, steps, batch, reset, lengths)

    def _sizes_on(self, device: TrainingDevice, T: int, B: int, reset: bool, lengths: bool) -> Sizes:
        from .runtime_cuda_segments import sizes_on

        return sizes_on(self, device, T, B, reset, lengths)

    def _planned(
        self, device: TrainingDevice, T: int, B: int, max_bytes: int | None, reset: bool, lengths: bool
    ) -> MemoryPlan | None:
        if not self._limited(T, B, max_bytes):
            return None
        return self._within(lambda: self._sizes_on(device, T, B, reset, lengths), max_bytes)


__all__ = ["CudaTrainingModule", "TrainingDevice"]
