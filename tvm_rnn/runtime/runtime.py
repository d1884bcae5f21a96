"""Load a compiled module and call it, with numpy and tvm_ffi only.

In: a .so file (ELF, weights, manifest, footer); arrays of the CPU: numpy, torch, anything with DLPack. Out: new ones of
that kind. Also works alone, copied beside a .so (runtime_cuda, _model and _training say what else theirs need).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import math
import mmap
import os
import platform
import struct
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

try:
    from ..errors import InputError, LoadError, TvmRnnError, WeightError
except ImportError:  # this file alone, beside a .so: the same names, made here
    for name in ("TvmRnnError", "InputError", "LoadError", "WeightError"):
        globals()[name] = type(name, (globals().get("TvmRnnError", Exception),), {})

MAGIC, CONTAINER_VERSION, MANIFEST_FORMAT = b"TVMRNN\0\1", 1, 1
FOOTER = struct.Struct("<8sIIQQQQ")  # magic, version, crc32 of all before; ELF size; weights at, size; manifest size
PARALLEL_FLOPS_PER_STEP = 100_000  # two threads, Zen 4: 71 kFLOP take 0.9 us in place of 1.2, 273 take 2.5, not 3.9
CONSTANT = "constant."  # begins the names of arrays that belong to the equations, not to the user
ALIGNMENT = 64  # generated code moves whole cache lines to and from its own buffers
SAFETENSORS = {f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "FIU" for size in (1, 2, 4, 8)} | {"BOOL": "?"}
# Where LLVM's name of a CPU feature is not the kernel's.
KERNEL_NAMES = {"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "sha": "shani", "pclmul": "pclmulqdq", "neon": "asimd"}
OTHERS = {"networks": "Model", "tape": "Cuda_Training", "variants": "Cuda", "training": "Training"}
_opened: dict[str, tuple[int, ...]] = {}
_beside = functools.cache(lambda name: importlib.import_module(f"{__package__}.{name}" if __package__ else name))


class Manifest(dict[str, Any]):
    """The facts about a module, as in its file; keys are attributes too: `mod.manifest.target.mcpu`."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the manifest has no {name!r}; it has: {', '.join(self)}")


def _error(kind: type[Exception], what: str, got: object, expected: object = None, do: object = None) -> Exception:
    slots = (("got:", got), ("expected:", expected), ("do:", do))
    return kind("\n".join([what, *(f"  {name:<9} {text}" for name, text in slots if text is not None)]))


def _map_file(path: str, kind: type[Exception]) -> mmap.mmap:
    """The file's bytes as private pages: writable (DLPack refuses read-only arrays), never written back."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise _error(kind, f"cannot read {path!r}", error, "a file with something in it") from None


def _open_container(path: str | os.PathLike[str]) -> tuple[str, mmap.mmap, Manifest, dict[str, np.ndarray], int]:
    data = _map_file(path := os.fsdecode(path), LoadError)
    end = len(data) - FOOTER.size
    magic, version, crc, elf_size, start, size, text = FOOTER.unpack(data[-FOOTER.size :].ljust(FOOTER.size))
    if data[:4] != b"\x7fELF" or magic != MAGIC:
        got = f"{len(data)} bytes that begin {data[:4]!r} and do not end with its footer"
        raise _error(LoadError, f"{path!r} is not a complete tvm_rnn module", got, "a .so as exported", "copy it again")
    newer, do = f"{path!r} was made by a newer tvm_rnn", "upgrade tvm_rnn (or the copied runtime.py) here"
    if version > CONTAINER_VERSION:
        raise _error(LoadError, newer, f"container version {version}", f"at most {CONTAINER_VERSION}", do)
    found, padding = zlib.crc32(memoryview(data)[:end]), data[elf_size:start]
    fits = start % ALIGNMENT == 0 <= start - elf_size < ALIGNMENT and start + size + text == end
    if found != crc or version < 1 or not fits or padding.strip(b"\0"):
        raise _error(LoadError, f"{path!r} is damaged", f"checksum {found:08x}", f"{crc:08x}", "copy it again")
    try:
        manifest = json.loads(data[end - text : end], object_hook=Manifest)
        if manifest["format"] > MANIFEST_FORMAT:
            raise _error(LoadError, newer, f"manifest format {manifest.format}", f"at most {MANIFEST_FORMAT}", do)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _error(LoadError, f"{path!r} has no readable manifest", error, do="export it again") from None
    return path, data, manifest, _parse_weights(data, start, size, path, LoadError) if size else {}, elf_size


def read_container(path: str | os.PathLike[str]) -> tuple[Manifest, dict[str, np.ndarray]]:
    """The manifest and the weights ({name: array}) of a module's file. Raises LoadError. Loads no code."""
    return _open_container(path)[2:4]


def _parse_weights(data: mmap.mmap, start: int, size: int, path: str, kind: type[Exception]) -> dict[str, np.ndarray]:
    """safetensors as views, not copies. Every size is compared with the file's before it is used."""
    try:
        header, arrays = int.from_bytes(data[start : start + 8], "little"), {}
        first, room = start + 8 + header, size - 8 - header
        entries = json.loads(data[start + 8 : min(first, start + size)])
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            dtype, shape, (begin, end) = np.dtype(SAFETENSORS[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            count = math.prod(shape)
            if not 0 <= begin <= end <= room or count * dtype.itemsize != end - begin or min(shape, default=0) < 0:
                raise ValueError(f"{name!r} with shape {shape} at bytes {begin} to {end} of {room}")
            arrays[name] = np.frombuffer(data, dtype, count, first + begin).reshape(shape)
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _error(kind, f"the weights in {path!r} cannot be read", repr(error), "the safetensors format") from None


def cpu_features() -> set[str] | None:
    """What this CPU can do, in the kernel's names without underscores; None where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        return next((set(s.replace("_", "").split()) for s in file if s.startswith(("flags", "Features"))), None)
    return None


def _check_machine(path: str, target: Manifest) -> None:
    do = f"compile for this machine; it was compiled for {target.name!r}"
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if target.machine != machine:
        raise _error(LoadError, f"{path!r} is for another machine", target.machine, machine, do)
    known = cpu_features()
    names = {feature: feature.replace("_", "").replace(".", "").replace("-", "") for feature in target.features}
    if missing := [f for f, name in names.items() if known is not None and not {name, KERNEL_NAMES.get(name)} & known]:
        raise _error(LoadError, f"{path!r} needs a CPU with more features", f"without {missing}", target.features, do)


def _open_library(path: str, data: mmap.mmap, elf_size: int, first: str = "pool_install") -> Any:
    """The tvm_ffi module, with its function `first` called. dlopen finds an open library by its path and would return
    old code for a file since replaced; such a file, and one not named .so, is opened through a copy of a new name."""
    real = os.path.realpath(path)
    try:
        import tvm_ffi  # no sooner: it imports torch where that is installed

        signature = (os.stat(real).st_ino, os.stat(real).st_mtime_ns, os.stat(real).st_size)
        copied = not real.endswith(".so") or _opened.setdefault(real, signature) != signature
        with tempfile.NamedTemporaryFile(suffix=".so", buffering=0) if copied else open(real, "rb") as file:
            if copied:
                file.write(data[:elf_size])
            library = tvm_ffi.load_module(file.name, keep_module_alive=False)
        getattr(library, first)()  # pool_install once more: libtvm_runtime, where present, undoes the constructor's
        return library
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        got, do = f"{type(error).__name__}: {error}", "compile it again here; tvm_ffi is in pip install apache-tvm-ffi"
        raise _error(LoadError, f"{path!r} cannot be loaded", got, do=do) from error


def _aligned(elements: int, dtype: Any) -> np.ndarray:
    raw = np.empty(elements * dtype.itemsize + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][: elements * dtype.itemsize].view(dtype)


def _numpy(what: str, value: Any, kind: type[Exception] = InputError) -> np.ndarray:
    """The same memory as numpy array. A torch tensor is detached: nothing here computes gradients."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        do = f"copy it to the CPU: {what}.cpu()"
        on_cpu = getattr(value, "is_cpu", False)  # torch says so, in a tenth of the time that DLPack takes
        if on_cpu or value.__dlpack_device__()[0] == 1:
            value = value.detach() if getattr(value, "requires_grad", False) else value
            return value.numpy() if on_cpu else np.from_dlpack(value)
    except (AttributeError, RuntimeError, BufferError, TypeError, ValueError) as error:
        do = f"convert it: numpy.asarray({what}, dtype=...) ({type(error).__name__}: {error})"
    got = f"a {type(value).__name__} of {getattr(value, 'dtype', 'unknown dtype')} on {getattr(value, 'device', 'cpu')}"
    raise _error(kind, f"{what} is not an array for this module", got, "a dense CPU array: numpy, torch, DLPack", do)


@functools.cache
def _like(kind: Any) -> Callable[[np.ndarray], Any] | None:
    """What turns a numpy array into that kind of array; None: it stays one (also where the package is not known)."""
    makers = [getattr(sys.modules.get(base.__module__.partition(".")[0]), "from_dlpack", None) for base in kind.__mro__]
    return None if np.from_dlpack in makers else next(filter(None, makers), None)


def _per_row(what: str, value: Any, dtype: type, shape: tuple[int, ...], steps: int) -> np.ndarray:
    """A copy of lengths (int64) or reset (bool) as array of that dtype and shape, from any dtype of its kind."""
    if isinstance(value, list | tuple):
        with contextlib.suppress(ValueError, TypeError):  # a ragged list stays a list, which is refused below
            value = np.array(value) if np.size(value) else np.empty(np.shape(value), dtype)
    array = _numpy(what, value)
    kinds, expected = ("?B", "bool or uint8") if dtype is bool else ("bBhHiIlLqQ", "integers")
    if array.dtype.char not in kinds or array.shape != shape:
        got = f"{array.dtype} of shape {array.shape}"
        raise _error(InputError, f"{what} does not fit x", got, f"{expected} of shape {shape}", "cast or reshape it")
    array = np.array(array, dtype, order="C")
    if dtype is not bool and array.size and not 0 <= array.min() <= array.max() <= steps:
        row = np.argmax((array < 0) | (array > steps))
        raise _error(InputError, f"{what} out of range", f"{array[row]} for row {row}", f"0 to {steps}, the steps of x")
    return array


class Module:
    """A compiled RNN. Time-major: x [T, B, *input], y [T, B, D*H], a state [L*D, B, *shape] in torch's order (a list of
    [D, B, *shape] by layer where these differ). Thread-safe. Results are new arrays of the kind of x and carry no
    gradient; dtypes are never cast. `weights`: {name: read-only array}, or empty. Raises InputError and WeightError."""

    drawing: Callable[[], str] | None = None  # of its network, as HTML

    def __init__(self, path: str | os.PathLike[str], opened: tuple[Any, ...] | None = None) -> None:
        self.path, self._file, self.manifest, arrays, self._elf_size = opened or _open_container(path)
        try:
            self._read_manifest(self.manifest)
            _check_machine(self.path, self.manifest.target)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _error(LoadError, f"{self.path!r} has an unusable manifest", error, do="export it again") from None
        self._library = _open_library(self.path, self._file, self._elf_size)
        self._tensor, self._sequence = sys.modules["tvm_ffi"].from_dlpack, self._library.sequence
        self._no_lengths, self._no_reset = (self._tensor(np.zeros(1, dtype)) for dtype in (np.int64, np.uint8))
        self._local = threading.local()  # a workspace per thread: no lock is held while compiled code runs
        self._threads, self._packed, self._plans, self.weights = 0, None, dict[int, Any](), dict[str, np.ndarray]()
        self._constants = {name: arrays.pop(name) for name in [*arrays] if name.startswith(CONSTANT)}
        if arrays or not self._weight_shapes:
            self._use_weights(arrays)

    def _repr_html_(self) -> str | None:
        """For notebooks: the equations, which a file does not have; None for a module that was loaded from one."""
        return None if self.drawing is None else self.drawing()

    def _read_manifest(self, m: Manifest) -> None:
        D, self._dtype = int(m.num_directions), np.dtype(m.dtype)
        self._inputs = [(item.name, tuple(item.shape)) for item in m.inputs]
        self._output = (D * m.output.shape[0], *m.output.shape[1:]) if m.output.shape else (D,) * (D > 1)
        self._states = {state.name: (D, float(state.initial), [*map(tuple, state.shapes)]) for state in m.states}
        self._weight_shapes = {item.name: tuple(item.shape) for item in m.weights}
        self._steps, w = D == 1 and "step" in m.entry_points, m.workspace
        self._sizes = (int(w.fixed), int(w.per_row), int(w.per_tile_row), int(w.per_sequence_row), int(m.rows_per_tile))
        self._packs, self._packed_elements, self._flops = m.packs, int(m.packed_elements), float(m.flops_per_row)

    def __call__(self, x: Any, state: Any = None, *, lengths: Any = None, reset: Any = None, **inputs: Any) -> Any:
        """All steps: (y [T, B, D*H], {name: last state}). x: an array [T, B, *input]; several: a tuple in manifest's
        order, a dict, or keywords. state: a dict of all; None: the initial ones. lengths: [B] integers in 0..T: row b
        stops after so many steps, its y is 0 from there. reset: [T, B] bool or uint8: row b starts again at step t."""
        arrays, (T, B), like = self._read_inputs(x, inputs, ("T", "B"))
        counts = self._no_lengths if lengths is None else _per_row("lengths", lengths, np.int64, (B,), T)
        mask = self._no_reset if reset is None else _per_row("reset", reset, bool, (T, B), T).ravel().view(np.uint8)
        return self._run(arrays, state, T, (T, B), like, (lengths is not None, reset is not None), (counts, mask))

    def step(self, x: Any, state: Any = None, *, out: Any = None, **inputs: Any) -> Any:
        """One step: x [B, *input] -> (y [B, H], {name: state}). out: such a pair, of arrays that are written to, and
        returned, in place of new ones; its state may be the one given: mod.step(x, state, out=(y, state))."""
        if not self._steps:
            raise _error(InputError, "this module cannot step", "two directions or reverse", "forward", "call mod(x)")
        if out is not None:
            return _beside("runtime_step").step_into(self, x, state, out, inputs)
        arrays, lead, like = self._read_inputs(x, inputs, ("B",))
        return self._run(arrays, state, 1, lead, like, (0, 0), (self._no_lengths, self._no_reset))

    def init_state(self, batch: int) -> dict[str, Any]:
        """The initial state for that many rows, as numpy arrays."""
        if not isinstance(batch, int | np.integer) or batch < 0:
            raise _error(InputError, "the batch size is wrong", repr(batch), "an integer, at least 0")
        return self._shape_states(self._read_states(None, int(batch)), int(batch), None)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All of the model that this module was made from: its outputs by name, of its inputs by name."""
        return cast(dict[str, Any], _beside("runtime_model").run(self, inputs))

    def _run(self, arrays: Any, state: Any, T: int, lead: Any, like: Any, has: Any, rows: Any) -> Any:
        if self._packed is None:
            raise _error(WeightError, "the module has no weights", "none", [*self._weight_shapes], "load_weights first")
        before = self._read_states(state, B := lead[-1])
        after, y = [array.copy() for array in before], np.empty((*lead, *self._output), self._dtype)
        if T and B:
            fixed, per_row, per_tile_row, per_sequence_row, rows_per_tile = self._sizes
            tile = max(1, min(T, rows_per_tile // B))
            elements = fixed + B * (per_row + tile * per_tile_row + T * per_sequence_row)
            held, work = getattr(self._local, "workspace", (-1, None))
            if held < elements:
                work = self._tensor(_aligned(max(1, elements), self._dtype))
                self._local.workspace = (elements, work)
            threads = self._threads or (1 if self._flops * B < PARALLEL_FLOPS_PER_STEP else self.threads)
            self._sequence(T, B, tile, threads, *has, *arrays, y.ravel(), *before, *after, *rows, self._packed, work)
        return y if like is None else like(y), self._shape_states(after, B, like)

    def _flat(self, what: str, value: Any, shape: tuple[int, ...], axes: str) -> np.ndarray:
        """Flat, contiguous, aligned, writable (DLPack wants that), native: the user's memory where it is so already."""
        array = value if type(value) is np.ndarray else _numpy(what, value)
        if array.shape != shape:
            raise _error(InputError, f"{what} has the wrong shape", array.shape, f"{shape} = {axes}", "reshape it")
        if array.dtype != self._dtype or not array.flags.carray:
            if array.dtype.newbyteorder("=") != self._dtype:
                raise _error(InputError, f"{what} has the wrong dtype", array.dtype, self._dtype, "cast it: .astype")
            array = np.array(array, self._dtype, order="C")
        return array.ravel()

    def _name_inputs(self, x: Any, named: dict[str, Any]) -> list[Any]:
        names = [name for name, _ in self._inputs]
        values = x if isinstance(x, list | tuple) and len(names) > 1 else [x]
        numbered = zip(itertools.chain(names, itertools.count()), values, strict=False)  # a surplus one is a number
        given = dict(x) if isinstance(x, Mapping) else dict(numbered)
        if sorted([*map(str, given), *named]) != sorted(names):
            got, do = [*given, *named], "give each input once: mod((a, b)), mod({'a': a, 'b': b}) or mod(a, b=b)"
            raise _error(InputError, "the inputs are not the module's", got, names, do)
        return [{**given, **named}[name] for name in names]

    def _read_inputs(self, x: Any, named: dict[str, Any], axes: tuple[str, ...]) -> tuple[list[np.ndarray], Any, Any]:
        """Flat arrays in the manifest's order, the leading dimensions, and what makes results of the kind of x."""
        values = self._name_inputs(x, named) if named or len(self._inputs) > 1 or not hasattr(x, "shape") else [x]
        (name, shape), *others = self._inputs
        array = values[0] if type(values[0]) is np.ndarray else _numpy(name, values[0])
        if array.ndim != len(axes) + len(shape) or array.shape[len(axes) :] != shape:
            expected = f"[{', '.join([*axes, *map(str, shape)])}]"
            raise _error(InputError, f"{name} has the wrong shape", array.shape, expected, "T is time, B the batch")
        lead, flat = array.shape[: len(axes)], [self._flat(name, array, array.shape, "")]
        for (other, shape), value in zip(others, values[1:], strict=True) if others else ():
            flat.append(self._flat(other, value, (*lead, *shape), f"[{', '.join(axes)}, ...], as in {name}"))
        return flat, lead, None if array is values[0] else _like(values[0].__class__)

    def _plan(self, B: int) -> Any:
        """For each state: name, initial value, size; of each of its arrays the place in the flat one, and the shape."""
        if B in self._plans:
            return self._plans[B]
        plan = []
        for name, (D, initial, layers) in self._states.items():
            rows, shapes = (D, layers) if len({*layers}) > 1 else (D * len(layers), layers[:1])
            arrays = [(rows, B, *shape) for shape in shapes]
            ends = [*itertools.accumulate(map(math.prod, arrays), initial=0)]
            plan.append((name, initial, ends[-1], [*zip(map(slice, ends, ends[1:]), arrays, strict=True)]))
        self._plans = {**self._plans, B: plan} if len(self._plans) < 64 else {B: plan}
        return plan

    def _read_states(self, state: Any, B: int) -> list[np.ndarray]:
        plan, result = self._plan(B), []
        if state is None:
            return [np.full(size, initial, self._dtype) for _, initial, size, _ in plan]
        if (type(state) is not dict and not isinstance(state, Mapping)) or state.keys() != self._states.keys():
            got = [*state] if isinstance(state, Mapping) else type(state).__name__
            raise _error(InputError, "the state is not the module's", got, [*self._states], "see mod.init_state(batch)")
        for name, _, _, parts in plan:
            values = [state[name]] if len(parts) == 1 else state[name]
            if not isinstance(values, list | tuple) or len(values) != len(parts):
                raise _error(InputError, f"state {name} is not a list", type(values), f"{len(parts)} arrays by layer")
            axes = "[L*D, B, ...]" if len(parts) == 1 else "[D, B, ...]"
            flat = [self._flat(name, value, shape, axes) for value, (_, shape) in zip(values, parts, strict=True)]
            result.append(np.concatenate(flat) if len(flat) > 1 else flat[0])
        return result

    def _shape_states(self, flat: list[np.ndarray], B: int, like: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for array, (name, _, _, parts) in zip(flat, self._plan(B), strict=True):
            arrays = [(like or np.asarray)(array[place].reshape(shape)) for place, shape in parts]
            result[name] = arrays[0] if len(arrays) == 1 else arrays
        return result

    def load_weights(self, weights: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Replace all weights: a dict of arrays, or the path of a .safetensors file. All or none: WeightError."""
        if isinstance(weights, str | os.PathLike):
            weights = _parse_weights(f := _map_file(p := os.fspath(weights), WeightError), 0, len(f), p, WeightError)
        if not isinstance(weights, Mapping):
            raise _error(WeightError, "these are not weights", type(weights), "a dict of arrays, or a safetensors file")
        self._use_weights({name: np.array(_numpy(name, value, WeightError)) for name, value in weights.items()})
        self.manifest.pop("weight_error", None)  # it was that of others

    def _use_weights(self, weights: dict[str, np.ndarray]) -> None:
        names = self._weight_shapes.keys()
        missing, unknown = sorted(names - weights.keys()), sorted(weights.keys() - names)
        if missing or unknown:
            raise _error(WeightError, "wrong names of weights", f"missing {missing}, unknown {unknown}", [*names])
        ready, packed = {}, _aligned(max(1, self._packed_elements), self._dtype)
        for name, shape in self._weight_shapes.items():
            array = weights[name]
            if array.shape != shape or array.dtype.newbyteorder("=") != self._dtype:
                got, expected = f"{array.dtype} of shape {array.shape}", f"{self._dtype} of shape {shape}"
                raise _error(WeightError, f"weight {name} does not fit", got, expected, "cast or reshape it")
            ready[name] = np.require(array, self._dtype, ["C", "A", "W"])
        packed[:], sources = 0, {**ready, **self._constants}
        for pack in self._packs:
            raw = (sources[name].ravel() for name in pack.weights)
            self._library.get_function(pack.function)(*raw, packed, int(pack.offset))
        for array in ready.values():
            array.flags.writeable = False
        self._packed, self.weights = self._tensor(packed), ready

    @property
    def threads(self) -> int:
        """The most threads that one call uses; None, as at first: small steps one, others the process's whole pool."""
        return self._threads or int(self._library.pool_size())

    @threads.setter
    def threads(self, count: int | None) -> None:
        if count is not None and (not isinstance(count, int | np.integer) or not 1 <= count <= 256):
            raise _error(InputError, "the number of threads is wrong", repr(count), "an integer from 1 to 256, or None")
        self._threads = int(count or 0)
        self._library.pool_resize(max(self._threads, self._library.pool_size()))  # it grows, for all modules

    def export(self, path: Any = None, *, bundle: Any = None, name: str | None = None) -> None:
        """Write this module with its present weights, whole or not at all: to a .so file (path), to a folder for
        programs without Python (bundle; its C names begin with `name`, as the folder's does at first), or to both."""
        if not __package__:
            raise _error(TvmRnnError, "runtime.py alone cannot export", "no package", "tvm_rnn installed")
        importlib.import_module("tvm_rnn.module_file.manifest").export(self, path, bundle, name)


def load(path: str | os.PathLike[str]) -> Module:
    """The module in a file that `export` wrote.

    Args:
        path: the file.

    Returns:
        The Module, with the weights that the file has.

    Raises:
        LoadError: the file is not fit for this machine; before any of its code runs.
    """
    opened = _open_container(path)
    kind = next((kind for key, kind in OTHERS.items() if key in opened[2]), "")
    made = getattr(_beside(f"runtime_{kind.lower()}"), f"{kind.replace('_', '')}Module") if kind else Module
    return cast(Module, made(path, opened))
