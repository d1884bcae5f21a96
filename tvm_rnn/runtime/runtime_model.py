"""Run a whole model, by its own names: its recurrent networks, and compiled functions of what is around them.

In: `manifest.model` of a module that was made from a model's file (steps, constants, what its inputs and outputs are),
and arrays by name. Out: arrays by name. Works alone beside a .so, with runtime.py.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from . import runtime
from .runtime import Array, Facts, InputError, LoadError, Module, Opened, Shape, State, TvmRnnError, WeightError


class Network(Protocol):
    """A compiled network, or the oracle's of the same equations."""

    @property
    def manifest(self) -> Facts:
        """Of which the states and the number of layers are read."""

    def __call__(self, x: Array, state: Facts | None, *, lengths: Array) -> tuple[Array, State]:
        """All steps."""

    def init_state(self, batch: int) -> State:
        """The initial state."""

    def load_weights(self, weights: Mapping[str, Array]) -> None:
        """Replace all weights."""


MOST_READY = 64  # shapes of inputs whose sizes are remembered
SEEN, UNFIT = "seen", "unfit"
SMALL = 1 << 18  # bytes of all arrays of a call, above which the work is what takes time, not how it is called
Key = tuple[tuple[int, ...] | bytes, ...]  # shapes of inputs, and elements of those that say sizes
Runner = Callable[[Facts, Sequence[Array]], Sequence[Array]]  # what a step makes of values
# What NumPy, or a network that is given what does not fit, may say of a model's arrays.
FAILURES = (ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError, MemoryError, AttributeError)


class Plan:
    """A model's steps, ready to run: which function makes what of which values, and when a value has served."""

    def __init__(self, model: Facts, constants: Mapping[str, np.ndarray]) -> None:
        self.inputs, self.outputs = list(model["inputs"]), [item["name"] for item in model["outputs"]]
        self.dtypes = [(item["name"], np.dtype(item["dtype"])) for item in self.inputs]
        self.small = SmallCalls()
        self.constants = {item["name"]: constants[item["array"]] for item in model["constants"]}
        self.lasting = frozenset(map(id, self.constants.values()))
        self.steps = list(model["steps"])
        last = {name: i for i, step in enumerate(self.steps) for name in step["inputs"]}
        kept = {*self.outputs, *self.constants}
        self.dropped = [
            [name for name in {*step["inputs"], *step["outputs"]} if name not in kept and last.get(name, i) == i]
            for i, step in enumerate(self.steps)
        ]

    def run(self, values: Facts, made: Runner) -> dict[str, Array]:
        """The model's outputs. values: its inputs."""
        found: dict[str, Array] = {**self.constants, **values, "": None}
        with np.errstate(all="ignore"):  # NaN and inf are results, not accidents
            for step, dropped in zip(self.steps, self.dropped, strict=True):
                given = [found[name] for name in step["inputs"]]
                found.update(zip(step["outputs"], made(step, given), strict=False))
                for name in dropped:
                    found.pop(name, None)
        return {name: found[name] for name in self.outputs}


def _plan(module: Module) -> Plan:
    """The module's plan, made at the first call."""
    plan: Plan | None = getattr(module, "_model_plan", None)
    if plan is None:
        if "model" not in module.manifest:
            do = "call mod(x); run() is for modules of ONNX or Keras models"
            raise runtime._error(InputError, "this module has no model around its network", "run()", "mod(x)", do)
        try:
            plan = Plan(module.manifest["model"], module._constants)
            if strange := {step["op"] for step in plan.steps} - {"Network", "Compiled"}:
                raise ValueError(f"steps of an earlier version: {', '.join(sorted(strange))}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{module.path!r} has an unusable model"
            raise runtime._error(LoadError, what, error, do="export it again") from None
        vars(module)["_model_plan"] = plan
    return plan


def run(module: Module, inputs: Mapping[str, object]) -> dict[str, Array]:
    """The outputs by name of the model that `module` was made from. inputs: all of the model's, by name; numpy, torch
    or anything with DLPack on the CPU, with the model's dtypes. Results are of the kind of the first input.

    Raises InputError for inputs that are missing, unknown, or of a wrong dtype or shape."""
    plan, networks = _plan(module), getattr(module, "networks", [module])
    kinds: list[type] = [type(inputs.get(name)) for name, _ in plan.dtypes[:1]] if isinstance(inputs, Mapping) else []
    like = runtime._like(kinds[0]) if kinds else None
    if (small := _small_call(module, plan, inputs)) is not None:
        return small if like is None else {name: like(own) for name, own in small.items()}
    arrays = check_inputs(plan.inputs, inputs)

    def made(step: Facts, given: Sequence[Array]) -> Sequence[Array]:
        attributes = step["attributes"]
        if step["op"] == "Network":
            return call(networks[int(attributes["network"])], given, attributes)
        return call_compiled(module, given, attributes)

    results = plan.run(arrays, made)
    taken = {*plan.lasting, *map(id, arrays.values())}
    found = {}
    for name, value in results.items():
        own = value if value.flags.owndata and id(value) not in taken else np.array(value)  # nobody else's memory
        taken.add(id(own))
        found[name] = own if like is None else like(own)
    return found


def check_inputs(declared: Sequence[Facts], inputs: Facts) -> dict[str, Array]:
    """A model's inputs as arrays, if they are what it says of them. Raises InputError."""
    names = [item["name"] for item in declared]
    if not isinstance(inputs, Mapping) or {*inputs} != {*names}:
        got = [*inputs] if isinstance(inputs, Mapping) else type(inputs).__name__
        do = "give each input once, in a dict by the model's names"
        raise runtime._error(InputError, "the inputs are not the model's", got, names, do)
    sizes: dict[str, tuple[int, str]] = {}
    return {item["name"]: _fitting(item, inputs[item["name"]], sizes) for item in declared}


def _fitting(item: Facts, value: object, sizes: dict[str, tuple[int, str]]) -> Array:
    """The array, if it is what the model says of this input. sizes: of the axes that have a name, as seen so far."""
    name, shape = item["name"], item["shape"]
    if isinstance(value, list | tuple | int | float):
        with contextlib.suppress(ValueError, TypeError):  # what is ragged stays a list, and is refused below
            value = np.asarray(value, item["dtype"])
    value = np.asarray(value) if isinstance(value, np.generic) else value  # a NumPy number is an array of no axes
    array = runtime._numpy(name, value)
    if array.dtype.newbyteorder("=") != np.dtype(item["dtype"]):
        raise runtime._error(InputError, f"{name} has the wrong dtype", array.dtype, item["dtype"], "cast it: .astype")
    if shape is None:
        return array
    fits = array.ndim == len(shape)
    for axis, size in zip(shape, array.shape, strict=False):
        if isinstance(axis, int):
            fits = fits and axis == size
        elif axis:
            known, first = sizes.setdefault(axis, (size, name))
            if known != size:
                what, got = f"{name} does not fit {first}", f"{axis} = {size} in {name}"
                raise runtime._error(InputError, what, got, f"{axis} = {known}, as in {first}", "give one size")
    if not fits:
        expected = f"[{', '.join('any' if axis is None else str(axis) for axis in shape)}]"
        raise runtime._error(InputError, f"{name} has the wrong shape", list(array.shape), expected, "reshape it")
    return array


# --- networks among the steps ----------------------------------------------------------------------------------------

_loading = threading.Lock()  # weights that are values of the model: nobody else may use the module meanwhile


def call(module: Network, given: Sequence[Array], attributes: Facts) -> list[Array]:
    """One step that is a network. given: x [T, B, I], lengths or None, each state of each layer [D, B, *shape] or None
    for its first value, then weights that are no constants. Returns y [T, B, D*H] and each state of each layer."""
    names, weights = [state["name"] for state in module.manifest["states"]], attributes.get("weights", ())
    x, lengths, *rest = given
    count = len(rest) - len(weights)
    state = None
    if any(value is not None for value in rest[:count]):
        state = _joined(module, names, rest[:count], np.shape(x)[1] if np.ndim(x) > 1 else 0)
    if not weights:
        return _parts(module, names, module(x, state, lengths=lengths))
    with _loading:
        module.load_weights(dict(zip(weights, rest[count:], strict=True)))
        return _parts(module, names, module(x, state, lengths=lengths))


def call_compiled(module: Module, given: Sequence[Array], attributes: Facts) -> list[Array]:
    """One step that is a function of the module's file."""
    known: dict[str, Function] = vars(module).setdefault("_around", {})
    name = attributes["function"]
    if name not in known:
        known[name] = Function(module._library, attributes)
    return known[name](given, module.threads)


class Ready(NamedTuple):
    """What a function needs for inputs of some shapes: their strides; shapes of results; elements of its memory."""

    strides: list[tuple[int, ...]]
    shapes: list[tuple[int, ...]]
    memory: list[int]


class Function:
    """A function of the module's file. It is asked once how large results and memory are for inputs of some shapes;
    its memory stays with the thread."""

    def __init__(self, library: runtime.Library, attributes: Facts) -> None:
        self.name, self.axes, self.inner = attributes["function"], attributes["axes"], attributes["memory"]
        self.dtypes = [np.dtype(dtype) for dtype in attributes["dtypes"]]
        self.constants, self.numbers = int(attributes["constants"]), list(attributes.get("numbers", ()))
        self.arrays: list[Array] | None = None
        self.run, self.sizes = library.get_function(self.name), library.get_function(f"{self.name}_sizes")
        self.ready: dict[Key, Ready] = {}
        self.local = threading.local()

    def __call__(self, given: Sequence[Array], threads: int) -> list[Array]:
        count = len(given) - self.constants
        if (constants := self.arrays) is None:
            tensor = sys.modules["tvm_ffi"].from_dlpack
            self.arrays = constants = [tensor(_writable(_dense(_on_lines(np.asarray(v))))) for v in given[count:]]
        arrays = [np.asarray(value) for value in given[:count]]
        key = (*[array.shape for array in arrays], *[arrays[i].tobytes() for i in self.numbers])
        try:
            ready = self.ready.get(key) or self._prepared(key, arrays)
            for i, strides in enumerate(ready.strides):
                if arrays[i].strides != strides or not arrays[i].flags.writeable:
                    arrays[i] = _writable(_dense(np.asarray(arrays[i], order="C")))
            made = [np.empty(shape, dtype) for shape, dtype in zip(ready.shapes, self.dtypes, strict=True)]
            results = made if all(array.size for array in made) else [_dense(array) for array in made]
            self.run(threads, *arrays, *constants, *results, *self._memory(ready.memory))
        except (*FAILURES, RuntimeError) as error:
            got = ", ".join(f"{v.dtype}{list(v.shape)}" for v in arrays)
            what = f"a part of this model cannot be computed ({self.name})"
            raise runtime._error(InputError, what, f"{got}: {error}", do="check the shapes of the inputs") from None
        return made

    def _prepared(self, key: Key, arrays: Sequence[np.ndarray]) -> Ready:
        sizes = np.zeros(max(1, sum(self.axes) + len(self.inner)), np.int64)  # of no elements there are no strides
        inputs = [_writable(_dense(np.asarray(array, order="C"))) for array in arrays]
        self.sizes(*inputs, sizes)
        ends, numbers = [*itertools.accumulate(self.axes, initial=0)], [int(n) for n in sizes]
        shapes = [tuple(numbers[begin:end]) for begin, end in itertools.pairwise(ends)]
        memory = numbers[ends[-1] : ends[-1] + len(self.inner)]
        found = Ready([array.strides for array in inputs], shapes, memory)
        self.ready = {**self.ready, key: found} if len(self.ready) < MOST_READY else {key: found}
        return found

    def _memory(self, elements: Sequence[int]) -> Sequence[Array]:
        held, tensors = getattr(self.local, "memory", (None, ()))
        if held is None or any(own < needed for own, needed in zip(held, elements, strict=True)):
            tensor = sys.modules["tvm_ffi"].from_dlpack
            pairs = zip(elements, self.inner, strict=True)
            tensors = [tensor(runtime._aligned(max(1, n), np.dtype(dtype))) for n, dtype in pairs]
            self.local.memory = (elements, tensors)
        return tensors


def _on_lines(array: np.ndarray) -> np.ndarray:
    """The array, or a copy, in C order and from where a line of the cache begins: as vectors are read quickest."""
    if array.ctypes.data % runtime.ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    found = runtime._aligned(array.size, array.dtype).reshape(array.shape)
    found[...] = array
    return found


def _writable(array: np.ndarray) -> np.ndarray:
    """The array as DLPack hands it on, which read-only ones are not."""
    return array if array.flags.writeable else array.copy()


def _dense(array: np.ndarray) -> np.ndarray:
    """An array in C order whose strides say so: NumPy has others along axes of one element, and where there are none,
    which compiled code refuses."""
    strides = tuple(array.itemsize * math.prod(array.shape[i + 1 :]) for i in range(array.ndim))
    if array.strides == strides:
        return array
    return np.lib.stride_tricks.as_strided(array if array.size else np.zeros(1, array.dtype), array.shape, strides)


def _joined(module: Network, names: Sequence[str], given: Sequence[Array], batch: int) -> dict[str, Array]:
    """A state as the module takes it, of its parts by layer."""
    layers = int(module.manifest["num_layers"])
    if len(given) == len(names) and layers == 1 and all(part is not None for part in given):
        return dict(zip(names, given, strict=True))
    known, first, at_first = vars(module).get("_at_first", (None, {}, {}))
    if known != batch or any(part is None for part in given):  # else shapes are all that is needed of them
        first = module.init_state(batch)
        at_first = {n: own if isinstance(own, list) else np.split(own, layers) for n, own in first.items()}
        vars(module)["_at_first"] = batch, first, at_first
    state = {}
    for i, name in enumerate(names):
        parts = given[i * layers : (i + 1) * layers]
        chosen = [own if part is None else part for own, part in zip(at_first[name], parts, strict=True)]
        for own, part in zip(at_first[name], chosen, strict=True):
            if np.shape(part) != own.shape or part.dtype != own.dtype:
                got, expected = (f"{a.dtype} of shape {list(a.shape)}" for a in (part, own))
                raise runtime._error(InputError, f"an initial {name} does not fit x", got, f"{expected} = [D, B, ...]")
        state[name] = chosen if isinstance(first[name], list) else np.concatenate(chosen)
    return state


def _parts(module: Network, names: Sequence[str], result: tuple[Array, Facts]) -> list[Array]:
    """y and each state of each layer; as numpy arrays."""
    y, state = result
    layers, found = int(module.manifest["num_layers"]), [y]
    for name in names:
        whole = state[name]
        rows = 0 if isinstance(whole, list) else len(whole) // layers
        found += whole if isinstance(whole, list) else [whole[i * rows : (i + 1) * rows] for i in range(layers)]
    return found


# --- small models: what a call takes is made once ---------------------------------------------------------------------


class SmallCalls(threading.local):
    """A thread's, by threads and shapes of inputs; or SEEN, after one call, or UNFIT, of what is no small call."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, tuple[Shape, ...]], SmallCall | str] = {}


class SmallCall:
    """All that a call with inputs of certain shapes takes, made once: memory, and calls of compiled code on it, one
    after the other. Inputs are copied to it and outputs from it, so that nothing is looked at again. It is of one
    thread, whose working memory it has.

    Raises ValueError where that is not possible: for more than SMALL bytes, sizes that depend on elements or are 0,
    lengths, weights that are values, networks of other kinds; and what networks and functions raise."""

    def __init__(self, module: Module, plan: Plan, shapes: Sequence[Shape]) -> None:
        self.bytes, self.tensor = 0, sys.modules["tvm_ffi"].from_dlpack
        self.calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.held: list[tuple[Module, Array, int, Array]] = []
        self.inputs = [self._array(shape, dtype) for shape, (_, dtype) in zip(shapes, plan.dtypes, strict=True)]
        names, networks = [name for name, _ in plan.dtypes], getattr(module, "networks", [module])
        values: dict[str, Array] = {**plan.constants, **dict(zip(names, self.inputs, strict=True)), "": None}
        for step in plan.steps:
            attributes, given = step["attributes"], [values[name] for name in step["inputs"]]
            if step["op"] == "Network":
                made = self._network(networks[int(attributes["network"])], given, attributes)
            else:
                made = self._function(module, given, attributes)
            values.update(zip(step["outputs"], made, strict=False))
        self.outputs = [values[name] for name in plan.outputs]

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        for own, array in zip(self.inputs, arrays, strict=True):
            own[...] = array
        for function, arguments in self.calls:
            function(*arguments)
        return [own.copy() for own in self.outputs]

    def fits(self) -> bool:
        """Whether networks have the weights, threads and working memory that they had."""
        return all(
            net._packed is packed and net._threads == threads and net._local.workspace is workspace
            for net, packed, threads, workspace in self.held
        )

    def _array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        elements = math.prod(shape)
        self.bytes += elements * dtype.itemsize
        if not 0 < self.bytes <= SMALL or not elements:
            raise ValueError("not small")
        return runtime._aligned(elements, dtype).reshape(shape)

    def _argument(self, array: Array) -> Array:
        """As compiled code takes it."""
        return self.tensor(_writable(_dense(np.asarray(array, order="C"))))

    def _function(self, module: Module, given: Sequence[Array], attributes: Facts) -> list[np.ndarray]:
        function: Function = vars(module)["_around"][attributes["function"]]
        arrays = [np.asarray(value) for value in given[: len(given) - function.constants]]
        if function.numbers or function.arrays is None:
            raise ValueError("sizes depend on elements")
        key = tuple(array.shape for array in arrays)
        ready = function.ready.get(key) or function._prepared(key, arrays)
        made = [self._array(shape, dtype) for shape, dtype in zip(ready.shapes, function.dtypes, strict=True)]
        memory = function._memory(ready.memory)
        arguments = (*map(self._argument, arrays), *function.arrays, *map(self._argument, made), *memory)
        self.calls.append((function.run, (module.threads, *arguments)))
        return made

    def _network(self, module: Module, given: Sequence[Array], attributes: Facts) -> list[np.ndarray]:
        x, lengths, *parts = given
        plain = type(module) is runtime.Module and not (module._held or module.batch_first or attributes.get("weights"))
        if not plain or lengths is not None or [x.shape[2:]] != [shape for _, shape in module._inputs]:
            raise ValueError("not a plain call of a network")
        if x.dtype != module._dtype or module._packed is None:
            raise ValueError("the wrong dtype, or no weights")
        (T, B), layers = x.shape[:2], int(module.manifest["num_layers"])
        y = self._array((T, B, *module._output), module._dtype)
        before, after, made = [], [], [y]
        for i, flat in enumerate(module._plan(B)):
            first, last = (self._array((flat.size,), module._dtype) for _ in range(2))
            first[:] = flat.initial
            views = (_by_layer(array, flat, layers) for array in (first, last))
            for own, new, part in zip(*views, parts[i * layers : (i + 1) * layers], strict=True):
                if part is not None and (part.shape, part.dtype) != (own.shape, own.dtype):
                    raise ValueError("a state that does not fit")
                if part is not None:
                    self.calls.append((np.copyto, (own, part)))
                made.append(new)
            self.calls.append((np.copyto, (last, first)))
            before, after = [*before, first], [*after, last]
        tile, work = module._tiling(T, B)
        arrays, rest = (x.reshape(-1), y.reshape(-1), *before, *after), (*module._no_rows, module._packed, work)
        sizes = (T, B, tile, module._threads_for(B), False, False)
        self.calls.append((module._sequence, (*sizes, *map(self._argument, arrays), *rest)))
        self.held.append((module, module._packed, module._threads, module._local.workspace))
        return made


def _by_layer(flat: np.ndarray, facts: runtime.Flat, layers: int) -> list[np.ndarray]:
    """A state that is one flat array, as views by layer."""
    if len(facts.parts) > 1:
        return [flat[place].reshape(shape) for place, shape in facts.parts]
    rows, *rest = facts.parts[0][1]
    return [*flat.reshape(layers, rows // layers, *rest)]


def _small_call(module: Module, plan: Plan, inputs: object) -> dict[str, np.ndarray] | None:
    """The outputs, where inputs of these shapes were there before and all of a call is small; None: it goes step by
    step, as it does where something is wrong, and says what."""
    if type(inputs) is not dict or len(inputs) != len(plan.dtypes):
        return None
    arrays = []
    for name, dtype in plan.dtypes:
        value = inputs.get(name)
        if value.__class__ is not np.ndarray:
            if not hasattr(value, "__dlpack__"):
                return None
            value = runtime._numpy(name, value)
        if value.dtype is not dtype:
            return None
        arrays.append(value)
    key, known = (module.threads, tuple([array.shape for array in arrays])), plan.small.known
    own = known.pop(key, None)  # nobody else has it now, not even who interrupts this call
    if own is None or own is UNFIT:
        if len(known) >= MOST_READY:
            known.clear()
        known[key] = own or SEEN
        return None
    try:
        own = own if isinstance(own, SmallCall) and own.fits() else SmallCall(module, plan, key[1])
    except (*FAILURES, RuntimeError, TvmRnnError):
        known[key] = UNFIT
        return None
    try:
        made = own(arrays)
    except (*FAILURES, RuntimeError, TvmRnnError):
        return None
    known[key] = own
    return dict(zip(plan.outputs, made, strict=True))


class ModelModule(runtime.Module):
    """A model of several networks, or of none, in one file: `run` is how it is called; `networks` are its parts, each a
    Module.

    `weights` and `load_weights` have the names of all of them, after the number of the network: "0.W_l0"."""

    def __init__(self, path: str | os.PathLike[str], opened: Opened | None = None, anywhere: bool = False) -> None:
        """anywhere: as of Module."""
        self.path, self._file, self.manifest, arrays, self._elf_size = opened or runtime._open_container(path)
        self._constants = {name: arrays[name] for name in arrays if name.startswith(runtime.CONSTANT)}
        self.networks: list[Module] = []
        reason = runtime._other_machine(self.path, self.manifest.target, self._file[:4])
        if reason is not None and not anywhere:
            raise reason
        if reason is None:
            self._library = runtime._open_library(self.path, self._file, self._elf_size)
        else:
            self._library = runtime.Absent(reason)
        self._threads = 0
        for i, own in enumerate(self.manifest.networks):
            mine = {name.partition(".")[2]: value for name, value in arrays.items() if name.startswith(f"{i}.")}
            manifest = runtime.Manifest({**self.manifest, **own})
            network = runtime.Module(path, Opened(self.path, self._file, manifest, mine, self._elf_size), anywhere)
            network._sequence = network._library.get_function(own.sequence)
            self.networks.append(network)
            self._constants |= {f"{i}.{name}": value for name, value in network._constants.items()}  # export's too
        self._gather()

    def __repr__(self) -> str:
        model = self.manifest["model"]
        names = [", ".join(item["name"] for item in model[kind]) for kind in ("inputs", "outputs")]
        parts = "; ".join(repr(network).strip("<>") for network in self.networks) or "no networks"
        return f"<{type(self).__name__} {names[0]} -> {names[1]}, on {self.manifest.target.name}: {parts}>"

    def _gather(self) -> None:
        own = enumerate(net.weights for net in self.networks)
        self.weights = {f"{i}.{name}": value for i, weights in own for name, value in weights.items()}

    def load_weights(self, weights: Mapping[str, object] | str | os.PathLike[str]) -> None:
        """Replace all weights of all networks: a dict of arrays, or the path of a .safetensors file. All or none."""
        if not isinstance(weights, Mapping):
            weights = runtime._weights_in(os.fspath(weights))
        wanted = [f"{i}.{name}" for i, net in enumerate(self.networks) for name in net._weight_shapes]
        missing, unknown = sorted({*wanted} - {*weights}), sorted({*weights} - {*wanted})
        if missing or unknown:
            got = f"missing {missing}, unknown {unknown}"
            raise runtime._error(WeightError, "wrong names of weights", got, wanted)
        before = [net.weights for net in self.networks]
        try:
            for i, net in enumerate(self.networks):
                net.load_weights({name: weights[f"{i}.{name}"] for name in net._weight_shapes})
        except BaseException:  # Ctrl-C too
            for net, old in zip(self.networks, before, strict=True):
                if old:
                    net.load_weights(old)
            raise
        self._gather()

    def __call__(self, *given: object, **named: object) -> NoReturn:
        """Several networks have no one x: this says what to call."""
        do = "mod.run({name: array, ...}), or one of mod.networks"
        expected = [item["name"] for item in self.manifest["model"]["inputs"]]
        raise runtime._error(InputError, f"a model of {len(self.networks)} networks is not one", "mod(x)", expected, do)

    step = init_state = __call__


__all__ = ["ModelModule", "Plan", "call", "check_inputs", "run"]
