"""Load a compiled module and call it, with numpy and tvm_ffi only.

In: a .so file (ELF, weights, manifest, footer) and arrays: numpy, torch or anything else with DLPack on the CPU. Out:
new arrays of the same kind. This file also works alone, copied beside a .so: nothing else of tvm_rnn is needed.
"""

from __future__ import annotations

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
from typing import Any

import numpy as np

try:
    from .errors import InputError, LoadError, TvmRnnError, WeightError
except ImportError:  # this file alone, beside a .so: the same names, made here
    globals()["TvmRnnError"] = type("TvmRnnError", (Exception,), {})
    globals().update({name: type(name, (TvmRnnError,), {}) for name in ("InputError", "LoadError", "WeightError")})

MAGIC, CONTAINER_VERSION, MANIFEST_FORMAT = b"TVMRNN\0\1", 1, 1
# magic, container version, crc32 of all before, ELF size, weights offset, weights size, manifest size
FOOTER = struct.Struct("<8sIIQQQQ")
# Below this, waking and joining a second thread (1 us) costs more than it saves: one core takes 4 to 8 us for it all.
PARALLEL_FLOPS_PER_STEP = 400_000
ALIGNMENT = 64  # generated code moves whole cache lines to and from its own buffers
SAFETENSORS = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1"}
# Where LLVM's name of a CPU feature is not the kernel's.
KERNEL_NAMES = {"sse3": "pni", "lzcnt": "abm", "pclmul": "pclmulqdq", "rdrnd": "rdrand", "bmi": "bmi1", "sha": "shani"}
_opened: dict[str, tuple[int, ...]] = {}


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
    data = _map_file(path := os.fspath(path), LoadError)
    end = len(data) - FOOTER.size
    magic, version, crc, elf_size, start, size, text = FOOTER.unpack(data[-FOOTER.size :].ljust(FOOTER.size))
    if data[:4] != b"\x7fELF" or magic != MAGIC:
        got = f"{len(data)} bytes that begin {data[:4]!r} and do not end with its footer"
        do = "give a .so that tvm_rnn exported; if this is one, it was cut short: copy it again"
        raise _error(LoadError, f"{path!r} is not a complete tvm_rnn module", got, "an ELF file with a footer", do)
    newer, do = f"{path!r} was made by a newer tvm_rnn", "upgrade tvm_rnn (or the copied runtime.py) here"
    if version > CONTAINER_VERSION:
        raise _error(LoadError, newer, f"container version {version}", f"at most {CONTAINER_VERSION}", do)
    found = zlib.crc32(memoryview(data)[:end])
    if found != crc or elf_size > start or start + size + text != end:
        raise _error(LoadError, f"{path!r} is damaged", f"checksum {found:08x}", f"{crc:08x}", "copy it again")
    try:
        manifest = json.loads(data[end - text : end], object_hook=Manifest)
        if manifest["format"] > MANIFEST_FORMAT:
            raise _error(LoadError, newer, f"manifest format {manifest.format}", f"at most {MANIFEST_FORMAT}", do)
    except (ValueError, KeyError, TypeError) as error:
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
        got = f"{type(error).__name__}: {error}"
        raise _error(kind, f"the weights in {path!r} cannot be read", got, "the safetensors format") from None


def cpu_features() -> set[str] | None:
    """What this CPU can do, in the kernel's names without underscores; None where the system does not say."""
    try:
        with open("/proc/cpuinfo") as file:
            return next((set(s.replace("_", "").split()) for s in file if s.startswith(("flags", "Features"))), None)
    except OSError:
        return None


def _check_machine(path: str, target: Manifest) -> None:
    do = f"compile for this machine; it was compiled for {target.name!r}"
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if target.machine != machine:
        raise _error(LoadError, f"{path!r} is for another machine", target.machine, machine, do)
    known = cpu_features()
    names = {feature: feature.replace("_", "").replace(".", "").replace("-", "") for feature in target.features}
    missing = [f for f, name in names.items() if known is not None and not {name, KERNEL_NAMES.get(name)} & known]
    if missing:
        got, expected = f"a CPU without {', '.join(missing)}", ", ".join(target.features)
        raise _error(LoadError, f"{path!r} needs a CPU with more features", got, expected, do)


def _open_library(path: str, data: mmap.mmap, elf_size: int) -> Any:
    """The tvm_ffi module. dlopen finds an open library by its path and would return the old code for a file that has
    since been replaced; such a file, and one not named .so, is opened through a copy under a new name."""
    real = os.path.realpath(path)
    try:
        import tvm_ffi  # no sooner: it imports torch where that is installed

        signature = (os.stat(real).st_ino, os.stat(real).st_mtime_ns, os.stat(real).st_size)
        copied = not real.endswith(".so") or _opened.setdefault(real, signature) != signature
        with tempfile.NamedTemporaryFile(suffix=".so", buffering=0) if copied else open(real, "rb") as file:
            if copied:
                file.write(data[:elf_size])
            library = tvm_ffi.load_module(file.name, keep_module_alive=False)
        library.pool_install()  # once more: libtvm_runtime, where present, overwrites what the constructor has set
        return library
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        got, do = f"{type(error).__name__}: {error}", "compile it again here; tvm_ffi is in pip install apache-tvm-ffi"
        raise _error(LoadError, f"{path!r} cannot be loaded", got, do=do) from error


def _aligned(elements: int, dtype: Any) -> np.ndarray:
    raw = np.empty(elements * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + elements * dtype.itemsize].view(dtype)


def _numpy(what: str, value: Any, kind: type[Exception] = InputError) -> np.ndarray:
    """The same memory as numpy array. A torch tensor that requires grad is refused where its gradient would be lost."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    got, do = f"a {type(value).__module__}.{type(value).__qualname__}", f"numpy.asarray({what}, dtype=...)"
    try:
        if getattr(value, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
            got, do = f"{what}.requires_grad", f"no gradients are computed: {what}.detach(), or torch.no_grad() around"
        elif value.__dlpack_device__()[0] != 1:  # 1 is the CPU
            got, do = f"{got} on device {getattr(value, 'device', 'unknown')}", f"copy it to the CPU: {what}.cpu()"
        else:
            return np.from_dlpack(value.detach() if hasattr(value, "detach") else value)
    except (AttributeError, RuntimeError, BufferError, TypeError, ValueError) as error:
        got = f"{got} of {value.dtype}: {error}" if hasattr(value, "dtype") else got
    raise _error(kind, f"{what} is not an array for this module", got, "a dense CPU array: numpy, torch, DLPack", do)


def _like(value: Any) -> Callable[[np.ndarray], Any] | None:
    """What turns a numpy array into the kind of `value`; None: it stays one (also where the package is not known)."""
    packages = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    makers = [getattr(sys.modules.get(package), "from_dlpack", None) for package in packages]
    return None if np.from_dlpack in makers else next(filter(None, makers), None)


def _per_row(what: str, value: Any, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """A copy of lengths (int) or reset (bool) as a numpy array of that dtype and shape, from any dtype of its kind."""
    array = _numpy(what, value)
    kinds, expected = ("?B", "bool or uint8") if dtype is bool else ("bBhHiIlLqQ", "integers")
    if array.dtype.char not in kinds or array.shape != shape:
        got = f"{array.dtype} of shape {array.shape}"
        raise _error(InputError, f"{what} does not fit x", got, f"{expected} of shape {shape}", "cast or reshape it")
    return np.array(array, dtype, order="C")


def _row_lengths(value: Any, T: int, B: int) -> np.ndarray:
    """lengths as int64 [B]; also from a list of ints."""
    if isinstance(value, list | tuple) and all(map(np.isscalar, value)):
        value = np.array(value, None if value else int)
    array = _per_row("lengths", value, np.int64, (B,))
    wrong = np.flatnonzero((array < 0) | (array > T))
    if wrong.size:
        got = f"{array[wrong[0]]} for row {wrong[0]}"
        raise _error(InputError, "lengths are out of range", got, f"0 to {T}, the number of steps of x")
    return array


class Module:
    """A compiled RNN. Time-major: x [T, B, *input], y [T, B, D*H], a state [L*D, B, *shape] in torch's order (where
    layers differ in shape: a list with [D, B, *shape] per layer). Thread-safe. Results are new arrays of the kind of x
    (of its first array) and carry no gradient; dtypes are never cast. Raises InputError for arrays that do not fit,
    WeightError for weights. `weights` is {name: read-only array}, empty until there are some."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._file, self.manifest, weights, self._elf_size = _open_container(path)
        self._read_manifest(self.manifest)
        _check_machine(self.path, self.manifest.target)
        self._library = _open_library(self.path, self._file, self._elf_size)
        self._tensor, self._sequence = sys.modules["tvm_ffi"].from_dlpack, self._library.sequence
        self._no_lengths, self._no_reset = (self._tensor(np.zeros(1, dtype)) for dtype in (np.int64, np.uint8))
        self._local = threading.local()  # a workspace per thread: no lock is held while compiled code runs
        self._threads, self._packed, self.weights = 0, None, dict[str, np.ndarray]()
        if weights or not self._weight_shapes:
            self._use_weights(weights)

    def _read_manifest(self, m: Manifest) -> None:
        D, self._dtype = int(m.num_directions), np.dtype(m.dtype)
        self._inputs = [(item.name, tuple(item.shape)) for item in m.inputs]
        self._output = (D * m.output.shape[0], *m.output.shape[1:]) if m.output.shape else (D,) * (D > 1)
        # name: initial value, then for each array its leading size, where it begins and ends per row, its shape per row
        self._states: dict[str, tuple[float, list[tuple[int, int, int, tuple[int, ...]]]]] = {}
        for state in m.states:
            layers = [tuple(shape) for shape in state.shapes]
            rows, shapes = (D * len(layers), layers[:1]) if len({*layers}) == 1 else (D, layers)
            ends = [*itertools.accumulate((rows * math.prod(shape) for shape in shapes), initial=0)]
            arrays = [(rows, *place) for place in zip(ends, ends[1:], shapes, strict=False)]
            self._states[state.name] = (float(state.initial), arrays)
        self._weight_shapes = {item.name: tuple(item.shape) for item in m.weights}
        w = m.workspace
        self._sizes = (int(w.fixed), int(w.per_row), int(w.per_tile_row), int(w.per_sequence_row), int(m.rows_per_tile))
        self._packs, self._packed_elements, self._flops = m.packs, int(m.packed_elements), float(m.flops_per_row)

    def __call__(self, x: Any, state: Any = None, *, lengths: Any = None, reset: Any = None, **inputs: Any) -> Any:
        """All steps: (y [T, B, D*H], {name: state after the last step}).

        x: an array [T, B, *input]; several as a tuple in the manifest's order, a dict, or keywords. state: a dict with
        all of the module's states, or None for the initial ones. lengths: [B] integers in 0..T: row b stops after so
        many steps; y is 0 from there. reset: [T, B] bool or uint8: row b starts again from its initial state at step t.
        """
        arrays, (T, B), like = self._read_inputs(x, inputs, ("T", "B"))
        counts = self._no_lengths if lengths is None else _row_lengths(lengths, T, B)
        mask = self._no_reset if reset is None else _per_row("reset", reset, bool, (T, B)).ravel().view(np.uint8)
        return self._run(arrays, state, (T, B), like, lengths is not None, reset is not None, counts, mask)

    def step(self, x: Any, state: Any = None, **inputs: Any) -> Any:
        """One step: x [B, *input] -> (y [B, H], {name: state})."""
        if self.manifest["num_directions"] != 1 or "step" not in self.manifest["entry_points"]:
            raise _error(InputError, "this module cannot step", "two directions", "one", "call mod(x) with all steps")
        arrays, lead, like = self._read_inputs(x, inputs, ("B",))
        return self._run(arrays, state, lead, like, False, False, self._no_lengths, self._no_reset)

    def init_state(self, batch: int) -> dict[str, Any]:
        """The initial state for that many rows, as numpy arrays."""
        if not isinstance(batch, int | np.integer) or batch < 0:
            raise _error(InputError, "the batch size is wrong", repr(batch), "an integer, at least 0")
        return self._shape_states(self._read_states(None, int(batch)), int(batch), None)

    def _run(self, arrays: Any, state: Any, lead: tuple[int, ...], like: Any, *rows: Any) -> tuple[Any, dict[str, Any]]:
        if self._packed is None:
            raise _error(WeightError, "the module has no weights", "none", [*self._weight_shapes], "load_weights first")
        T, B = lead if len(lead) == 2 else (1, lead[0])
        before = self._read_states(state, B)
        after = [array.copy() for array in before]
        y = np.empty((*lead, *self._output), self._dtype)
        if T and B:
            fixed, per_row, per_tile_row, per_sequence_row, rows_per_tile = self._sizes
            tile = max(1, min(T, rows_per_tile // B))
            threads = self._threads or (1 if self._flops * B < PARALLEL_FLOPS_PER_STEP else self.threads)
            elements = fixed + B * (per_row + tile * per_tile_row + T * per_sequence_row)
            held, workspace = getattr(self._local, "workspace", (-1, None))
            if held < elements:
                workspace = self._tensor(_aligned(max(1, elements), self._dtype))
                self._local.workspace = (elements, workspace)
            has, rest, data = rows[:2], (*rows[2:], self._packed, workspace), (*arrays, y.ravel(), *before, *after)
            self._sequence(T, B, tile, threads, *has, *data, *rest)
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
        numbered = {names[i] if i < len(names) else f"number {i + 1}": value for i, value in enumerate(values)}
        given = dict(x) if isinstance(x, Mapping) else numbered
        if sorted([*map(str, given), *named]) != sorted(names):
            got, do = [*given, *named], "give each input once: mod((a, b)), mod({'a': a, 'b': b}) or mod(a, b=b)"
            raise _error(InputError, "the inputs are not the module's", got, names, do)
        return [{**given, **named}[name] for name in names]

    def _read_inputs(self, x: Any, named: dict[str, Any], axes: tuple[str, ...]) -> tuple[list[np.ndarray], Any, Any]:
        """Flat arrays in the manifest's order, the leading dimensions, and what makes results of the kind of x."""
        simple = not named and len(self._inputs) == 1 and not isinstance(x, Mapping)
        values = [x] if simple else self._name_inputs(x, named)
        (name, shape), *others = self._inputs
        array = values[0] if type(values[0]) is np.ndarray else _numpy(name, values[0])
        if array.ndim != len(axes) + len(shape) or array.shape[len(axes) :] != shape:
            expected = f"[{', '.join([*axes, *map(str, shape)])}]"
            raise _error(InputError, f"{name} has the wrong shape", array.shape, expected, "T is time, B the batch")
        lead, flat = array.shape[: len(axes)], [self._flat(name, array, array.shape, "")]
        for (other, shape), value in zip(others, values[1:], strict=True):
            flat.append(self._flat(other, value, (*lead, *shape), f"[{', '.join(axes)}, ...], as in {name}"))
        return flat, lead, None if array is values[0] else _like(values[0])

    def _read_states(self, state: Any, B: int) -> list[np.ndarray]:
        if state is None:
            return [np.full(B * arrays[-1][2], initial, self._dtype) for initial, arrays in self._states.values()]
        if not isinstance(state, Mapping) or state.keys() != self._states.keys():
            got = [*state] if isinstance(state, Mapping) else type(state).__name__
            raise _error(InputError, "the state is not the module's", got, [*self._states], "see mod.init_state(batch)")
        result = []
        for name, (_, arrays) in self._states.items():
            value = state[name] if len(arrays) > 1 else (state[name],)
            if not isinstance(value, list | tuple) or len(value) != len(arrays):
                got = type(value).__name__
                raise _error(InputError, f"state {name} is not a list of arrays", got, f"{len(arrays)}, one per layer")
            pairs = zip(value, arrays, strict=True)
            parts = [self._flat(name, v, (n, B, *shape), "[layers, B, ...]") for v, (n, _, _, shape) in pairs]
            result.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return result

    def _shape_states(self, flat: list[np.ndarray], B: int, like: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for (name, (_, arrays)), data in zip(self._states.items(), flat, strict=True):
            parts = [data[start * B : end * B].reshape(n, B, *shape) for n, start, end, shape in arrays]
            kind = parts if like is None else [like(part) for part in parts]
            result[name] = kind[0] if len(kind) == 1 else kind
        return result

    def load_weights(self, weights: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Replace all weights: a dict of arrays, or the path of a .safetensors file. All or none: WeightError."""
        if isinstance(weights, str | os.PathLike):
            path = os.fspath(weights)
            data = _map_file(path, WeightError)
            weights = _parse_weights(data, 0, len(data), path, WeightError)
        self._use_weights({name: np.array(_numpy(name, value, WeightError)) for name, value in weights.items()})

    def _use_weights(self, weights: dict[str, np.ndarray]) -> None:
        names = self._weight_shapes.keys()
        missing, unknown = sorted(names - weights.keys()), sorted(weights.keys() - names)
        if missing or unknown:
            got = f"missing {missing}, unknown {unknown}"
            raise _error(WeightError, "the names of the weights are wrong", got, [*names], "give all of these")
        ready, packed = {}, _aligned(max(1, self._packed_elements), self._dtype)
        for name, shape in self._weight_shapes.items():
            array = weights[name]
            if array.shape != shape or array.dtype.newbyteorder("=") != self._dtype:
                got, expected = f"{array.dtype} of shape {array.shape}", f"{self._dtype} of shape {shape}"
                raise _error(WeightError, f"weight {name} does not fit", got, expected, "cast or reshape it")
            ready[name] = np.require(array, self._dtype, ["C", "A", "W"])
        packed[:] = 0
        for pack in self._packs:
            raw = [ready[name].ravel() for name in pack.weights]
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
        if self._threads > self._library.pool_size():  # the pool grows, for every module of the process
            self._library.pool_resize(self._threads)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write this module with its present weights to a .so file, whole or not at all."""
        try:
            from .manifest import write_container
        except ImportError:
            raise _error(TvmRnnError, "runtime.py alone cannot export", "no manifest.py", "tvm_rnn installed") from None
        write_container(self._file[: self._elf_size], self.manifest, self.weights, path)


def load(path: str | os.PathLike[str]) -> Module:
    """The module in a file that `export` wrote. LoadError, before any of its code runs, where it is not fit."""
    return Module(path)
