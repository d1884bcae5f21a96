"""Run a whole model on a GPU: its network, and the kernels of what is around it, one after the other in one stream.

In: a module for GPUs that was made from a model's file, and arrays by name. Out: arrays by name. Nothing waits for the
GPU and nothing is allocated but by the caller's library, so that a call can be captured in a CUDA graph after a first
one; what is not compiled for the GPU (the manifest says why) runs on the CPU, which waits. Works alone beside a .so,
with the other files of the runtime.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from . import gpu_arrays, runtime, runtime_model
from .gpu_arrays import Arrays
from .runtime import Array, Facts, InputError, Opened, Shape
from .runtime_cuda import Call, CallersThread, CudaModule, Device


class Ready(NamedTuple):
    """What a function needs for inputs of some shapes: their axes; shapes of results; bytes of memory; bounds of the
    elements that are looked at."""

    axes: np.ndarray
    shapes: list[Shape]
    memory: int
    bounds: list[tuple[int, int]]


class DeviceFunction:
    """A function of the module's file on one GPU. It is asked once for each shapes of inputs how large results are."""

    def __init__(self, module: CudaModule, device: Device, attributes: Facts) -> None:
        self.name, self.axes, self.device = attributes["function"], attributes["axes"], device
        self.takes, self.dtypes, arch = attributes.get("takes"), attributes["dtypes"], device.variant.arch
        self.run = module._library.get_function(f"{self.name}_{arch}")
        self.sizes = module._library.get_function(f"{self.name}_sizes_{arch}")
        self.ready = dict[tuple[Shape, ...], Ready]()
        self.constants: list[int] | None = None
        self.looked_at: list[tuple[int, str]] = [(int(i), text) for i, text in attributes.get("looked_at", ())]

    def __call__(self, module: CudaModule, arrays: Arrays, given: Sequence[Array], constants: Facts) -> list[Array]:
        """given: the graph's inputs; constants: arrays of the CPU, by name, which stay on the GPU."""
        dtypes = self.takes or [None] * len(given)
        taken = [arrays.adopt(value, dtype) for value, dtype in zip(given, dtypes, strict=True)]
        stream, number = arrays.stream(), self.device.number
        key = tuple(tuple(map(int, array.shape)) for array in taken)
        ready = self.ready.get(key) or self._prepared(key, stream)
        for (i, text), (low, high) in zip(self.looked_at, ready.bounds, strict=True):
            value = given[i]  # of a GPU it is not looked at, which would wait: what is beyond is the nearest
            if isinstance(value, np.ndarray) and value.size and not (low <= value.min() and value.max() < high):
                raise self._wrong(key, text)
        if self.constants is None:
            self.device.check_outside(stream, "constants that are loaded in their first call")
            self.constants = [self._kept(module, value) for value in constants.values()]
        made = [arrays.typed(shape, dtype) for shape, dtype in zip(ready.shapes, self.dtypes, strict=True)]
        memory = module._address(arrays, arrays.workspace(ready.memory))
        inputs, results = ([arrays.address(array) for array in own] for own in (taken, made))
        self.run(number, stream, ready.axes.ctypes.data, memory, *inputs, *self.constants, *results)
        return made

    def _wrong(self, key: tuple[Shape, ...], text: str) -> Exception:
        what = f"a part of this model cannot be computed ({self.name})"
        got = f"{', '.join(str(list(shape)) for shape in key)}: {text}"
        return runtime._error(InputError, what, got, do="check the shapes of the inputs, and their elements")

    def _kept(self, module: CudaModule, value: np.ndarray) -> int:
        own = np.ascontiguousarray(value)
        return self.device.send(own, self.device.allocate(module, own.nbytes))

    def _prepared(self, key: tuple[Shape, ...], stream: int) -> Ready:
        axes = np.array([size for shape in key for size in shape] or [0], np.int64)
        found = np.zeros(sum(self.axes) + 1 + 2 * len(self.looked_at), np.int64)
        try:
            self.sizes(self.device.number, stream, axes.ctypes.data, found.ctypes.data)
        except ValueError as error:
            raise self._wrong(key, str(error)) from None
        ends, numbers = [*itertools.accumulate(self.axes, initial=0)], found.tolist()
        shapes = [tuple(numbers[begin:end]) for begin, end in itertools.pairwise(ends)]
        memory, *bounds = numbers[ends[-1] :]
        ready = Ready(axes, shapes, memory, [*zip(bounds[::2], bounds[1::2], strict=True)])
        self.ready = {**self.ready, key: ready} if len(self.ready) < runtime_model.MOST_READY else {key: ready}
        return ready


class CudaModelModule(CallersThread, runtime_model.ModelModule):
    """A model of several networks for GPUs, in one file: `run` is how it is called; `networks` are its parts, each a
    CudaModule."""

    def __init__(self, path: str | os.PathLike[str], opened: Opened | None = None, anywhere: bool = False) -> None:
        """anywhere: as of CudaModule."""
        self.path, self._file, self.manifest, arrays, self._elf_size = opened or runtime._open_container(path)
        self._constants = {name: arrays[name] for name in arrays if name.startswith(runtime.CONSTANT)}
        self.networks, self._threads = [], 0
        for i, own in enumerate(self.manifest.networks):
            mine = {name.partition(".")[2]: value for name, value in arrays.items() if name.startswith(f"{i}.")}
            manifest = runtime.Manifest({**self.manifest, **own})
            network = CudaModule(path, Opened(self.path, self._file, manifest, mine, self._elf_size), anywhere)
            self.networks.append(network)
            self._constants |= {f"{i}.{name}": value for name, value in network._constants.items()}
        self._library = self.networks[0]._library
        self._gather()

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """All of the model, as CudaModule.run."""
        return run(self, inputs)


def run(module: CudaModule | CudaModelModule, inputs: Mapping[str, object]) -> dict[str, Array]:
    """The outputs by name, as `runtime_model.run` returns them; where the first input is on a GPU, they are."""
    plan = runtime_model._plan(module)
    networks: list[CudaModule] = getattr(module, "networks", [module])
    home = networks[0]  # whose file has the functions
    if not any(step["op"] == "Compiled" for step in plan.steps) or not isinstance(inputs, Mapping):
        return _beside(module, inputs)
    values = _checked(plan.inputs, inputs)
    first = next(iter(inputs.values()))

    def all_steps(arrays: Arrays) -> dict[str, Array]:
        device = home._device(arrays)

        def made(step: Facts, given: Sequence[Array]) -> Sequence[Array]:
            attributes = step["attributes"]
            if attributes.get("on") == "gpu":
                count = len(given) - int(attributes["constants"])
                constants = dict(zip(step["inputs"][count:], given[count:], strict=True))
                return _function(home, device, attributes)(home, arrays, given[:count], constants)
            network = networks[int(attributes["network"])] if step["op"] == "Network" else home
            alike = not attributes.get("weights") and not network._held and network._kind == home._kind
            if step["op"] == "Network" and alike:
                return _network(network, arrays, given)
            here = [value if value is None else arrays.numpy(value) for value in given]
            if step["op"] == "Network":
                return runtime_model.call(network, _in_its_dtype(network, here, attributes), attributes)
            takes = [*attributes.get("takes", ()), *(None,) * len(here)]
            here = [np.asarray(value, dtype) for value, dtype in zip(here, takes, strict=False)]
            return runtime_model.call_compiled(module, here, attributes)

        found, taken = dict[str, Array](), {*map(id, values.values())}
        dtypes = {item["name"]: item["dtype"] for item in home.manifest["model"]["outputs"]}
        for name, value in plan.run(values, made).items():
            own = arrays.adopt(value, dtypes[name] if _of_16_bits(value) else None)
            own = arrays.copy(own) if id(own) in taken else own  # nobody else's memory
            taken.add(id(own))
            found[name] = arrays.result(own, tuple(own.shape))
        return found

    return home._on_device(first, all_steps)


def _beside(module: CudaModule | CudaModelModule, inputs: Mapping[str, object]) -> dict[str, Array]:
    """The model with all that is around the network on the CPU."""
    if not isinstance(inputs, Mapping):
        return runtime_model.run(module, inputs)
    widens = any(own._kind == "bfloat16" for own in getattr(module, "networks", [module]))
    found = runtime_model.run(module, {name: gpu_arrays.to_numpy(value, widens) for name, value in inputs.items()})
    home = gpu_arrays.sender(next(iter(inputs.values()), None))
    return {name: home(value) for name, value in found.items()}


def _checked(declared: Sequence[Facts], inputs: Facts) -> dict[str, Array]:
    """The inputs, if they are what the model says of them, where they are. Raises InputError."""
    there = {name: value for name, value in inputs.items() if gpu_arrays.gpu_of(value) is not None}
    found = runtime_model.check_inputs(declared, {**inputs, **{n: _as_numpy(value) for n, value in there.items()}})
    return {**found, **there}


def _as_numpy(value: Array) -> Array:
    """Something of NumPy's with the shape and dtype of an array on a GPU, and without its elements."""
    try:
        kind = np.dtype(str(value.dtype).removeprefix("torch."))
    except TypeError:
        return value
    return np.broadcast_to(np.zeros((), kind), tuple(map(int, value.shape)))


def _of_16_bits(value: Array) -> bool:
    """Whether it is what a network of 16 bits made."""
    return str(value.dtype).removeprefix("torch.") in ("float16", "bfloat16")


def _in_its_dtype(network: CudaModule, given: Sequence[Array], attributes: Facts) -> list[Array]:
    """What a network that runs beside the others is given, of the CPU: x and states as it takes them."""
    if network._kind != "float16":
        return list(given)
    x, lengths, *rest = given
    count = len(rest) - len(attributes.get("weights", ()))
    half = [value if value is None else gpu_arrays.narrow(value, network._kind) for value in (x, *rest[:count])]
    return [half[0], lengths, *half[1:], *rest[count:]]


def _function(module: CudaModule, device: Device, attributes: Facts) -> DeviceFunction:
    name = attributes["function"]
    if name not in device.around:
        device.around[name] = DeviceFunction(module, device, attributes)
    found = device.around[name]
    assert isinstance(found, DeviceFunction)
    return found


def _network(module: CudaModule, arrays: Arrays, given: Sequence[Array]) -> list[Array]:
    """One step that is the network, as `runtime_model.call` has it, on the GPU."""
    x, lengths, *rest = given
    x, rest = arrays.adopt(x, module._kind), [v if v is None else arrays.adopt(v, module._kind) for v in rest]
    rows = arrays.numpy(lengths) if isinstance(lengths, gpu_arrays.Piece) else lengths
    own = module._given(arrays, Call([x], None, ("T", "B"), rows))
    plan, layers = module._plan(own.B), int(module.manifest.num_layers)
    before = module._filled(module._device(arrays), arrays, own.B, [flat.initial for flat in plan])
    starts = all(part is None for part in rest)
    each = [_by_layer(flat.parts, layers) for flat in plan]
    for i, (flat, shapes) in enumerate(zip(plan, each, strict=True)):
        parts = rest[i * layers : (i + 1) * layers]
        if any(part is not None for part in parts):
            what = f"an initial {flat.name}"
            before[i] = arrays.join(
                [
                    arrays.full(int(np.prod(shape)), flat.initial)
                    if part is None
                    else module._take(arrays, what, part, shape, "[D, B, ...]")
                    for part, shape in zip(parts, shapes, strict=True)
                ]
            )
    y, after = module._computed(arrays, own, before, starts)
    found = [y]
    for whole, shapes in zip(after, each, strict=True):
        begin = 0
        for shape in shapes:
            found.append(arrays.part(whole, begin, shape))
            begin += int(np.prod(shape))
    return found


def _by_layer(parts: Sequence[tuple[slice, Shape]], layers: int) -> list[Shape]:
    """The shapes of a state's layers, of those of its arrays: one for all layers where they are alike."""
    shapes = [shape for _, shape in parts]
    if len(shapes) == layers:
        return shapes
    (rows, *rest) = shapes[0]
    return [(rows // layers, *rest)] * layers


__all__ = ["CudaModelModule", "run"]
