"""Load a compiled module and call it, with numpy and tvm_ffi only.

In: a .so file (ELF, weights, manifest, footer); arrays of the CPU: numpy, torch, anything with DLPack. Out: new ones of
that kind. Also works alone, copied beside a .so (runtime_cuda, _model and _training say what else theirs need).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dis
import functools
import hashlib
import importlib
import itertools
import json
import math
import mmap
import operator
import os
import platform
import stat
import struct
import sys
import tempfile
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np

try:
    from ..errors import DeviceError, InputError, LoadError, TvmRnnError, WeightError
except ImportError:  # this file beside a .so: the same names, made here
    for name in ("TvmRnnError", "DeviceError", "InputError", "LoadError", "WeightError"):
        globals()[name] = type(name, (globals().get("TvmRnnError", Exception),), {})
if not __package__ and __spec__ is not None:
    # Files of the runtime that are copied beside a .so too become submodules of this one: "from . import" finds them.
    __package__, __path__ = __name__, [os.path.dirname(os.path.abspath(__file__))]
    __spec__.submodule_search_locations, sys.modules[f"{__name__}.runtime"] = __path__, sys.modules[__name__]

if TYPE_CHECKING:
    import tvm_ffi

MAGIC, CONTAINER_VERSION = b"TVMRNN\0\1", 1
# Manifests that are read, and what is written: it grows where a fact means something else than before, or where what
# follows from the same facts does. Format 1, of checkouts before 1.0.0, was several things.
OLDEST_FORMAT = MANIFEST_FORMAT = 2
FOOTER = struct.Struct("<8sIIQQQQ")  # magic, version, crc32 of all before; ELF size; weights at, size; manifest size
PARALLEL_FLOPS_PER_STEP = 100_000  # two threads, Zen 4: 71 kFLOP take 0.9 us in place of 1.2, 273 take 2.5, not 3.9
CONSTANT = "constant."  # begins the names of arrays that belong to the equations, not to the user
INFINITE = {"float16": 65520.0, "bfloat16": float.fromhex("0x1.ffp127")}  # the least magnitudes that are rounded so
HEADER_BYTES = 1 << 22  # of safetensors, at most: 20,000 arrays or more
MOST_AXES = 32  # of an array in a file
ALIGNMENT = 64  # generated code moves whole cache lines to and from its own buffers
CARRIED = struct.Struct("<QQ8s")  # the end of code: bytes of what it says of its manifest, of its arrays, and this mark
CARRIED_MARK = b"TVMFACTS"
# How code begins: what systems load, and what is linked to a program.
CODE_BEGINS = {b"\x7fELF": "linux", b"\xcf\xfa\xed\xfe": "darwin", b"\0asm": "wasm"}
# Of a manifest what no code depends on: what is for people, and how arrays of calls lie, which are turned before it.
FOR_PEOPLE = frozenset(("batch_first", "created", "decisions", "templates", "weight_error"))
SAFETENSORS = {f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "FIU" for size in (1, 2, 4, 8)} | {"BOOL": "?"}
# Where LLVM's name of a CPU feature is not the kernel's.
KERNEL_NAMES = {
    "sse3": "pni",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "sha": "shani",
    "pclmul": "pclmulqdq",
    "neon": "asimd",
    "dotprod": "asimddp",
}
# Where the kinds of modules are, by what their manifests have, the first that is there: those files import this one.
KINDS = {
    "archs": ("runtime_cuda_model", "CudaModelModule"),
    "networks": ("runtime_model", "ModelModule"),
    "tape": ("runtime_cuda_training", "CudaTrainingModule"),
    "variants": ("runtime_cuda", "CudaModule"),
    "training": ("runtime_training", "TrainingModule"),
}
EXIT_SECONDS, EXIT_LOOKS = 10.0, 5  # how long the end of the process waits for calls; looks that must find none
BOUND = 16  # kept by thread and module of what writes to given arrays: a stream has one, or two that take turns
EXPORTERS: list[Callable[..., None]] = []  # what `Module.export` calls: the package says it when it is imported
_opened: dict[str, tuple[int, ...]] = {}
AGAIN = "copy it again, or make it again: tvm-rnn compile -o FILE, or mod.export(FILE)"
ALL = "give all of them, as backward returns them, or None"
# What settings a copy of a module takes along.
SETTINGS = ("_threads", "_max_bytes", "device", "watchdog_seconds", "drawing")
PACKED = "x, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed), then (x, lengths=lengths)"
WEIGHTS = "load_weights first; or, before compiling, net.init(seed=0) or net.load(...)"
ONCE = "make them once: y = numpy.empty(...), state = mod.init_state(batch) with constants; then out=(y, state)"
# Of dicts of states, by kind: what one is called, and one of its items, and what to do where it is not right.
STATES = {
    "given": ("state", "state {}", "give a dict of all states, such as {{{}}}; see mod.init_state(batch)"),
    "gradient": ("gradient of the state", "the gradient of state {}", ALL),
    "out": ("state of out", "state {} of out", ONCE),
}

Array = Any  # of any library: results are of the kind of x
Facts = Mapping[str, Any]  # a manifest, or a part of one, read by its keys
Shape = tuple[int, ...]
Function = Callable[..., Any]  # of a compiled library; most return nothing


class State(dict[str, Array]):
    """States by name, in the order of the cell; of layers that differ in shape a list of arrays each.

    A dict that unpacks as torch's tuples do, `h, c = state`, and has attributes and places: `state.c`, `state[0]`.
    Pickles and copies of it are dicts."""

    def __iter__(self) -> Iterator[Array]:
        frame = sys._getframe(1)
        unpacked = dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("UNPACK")
        return iter(self.values() if unpacked else self.keys())

    def __missing__(self, place: object) -> Array:
        if isinstance(place, int):
            return [*self.values()][place]
        raise KeyError(place)

    def __getattr__(self, name: str) -> Array:
        if name in self:
            return self[name]
        raise AttributeError(f"no state {name!r}: there are {', '.join(self.keys())}")

    def __reduce__(self) -> tuple[type[dict[str, Array]], tuple[dict[str, Array]]]:
        return dict, ({**self},)


class Library(Protocol):
    """A compiled module's functions, as tvm_ffi opens them."""

    sequence: Function
    forward_train: Function
    pool_size: Function
    pool_resize: Function

    def get_function(self, name: str) -> Function:
        """The function of that name."""


class Named(Protocol):
    """An input, the output or a weight, in a manifest."""

    name: str
    shape: Sequence[int]


class StateFacts(Protocol):
    """A state. shapes: by layer."""

    name: str
    shapes: Sequence[Sequence[int]]
    initial: float


class Machine(Protocol):
    """What code runs on."""

    name: str
    mcpu: str
    machine: str
    features: Sequence[str]


class Pack(Protocol):
    """One call of a function that lays out weights; gradients: where it makes these of sums."""

    function: str
    weights: Sequence[str]
    offset: int
    gradients: Sequence[str]


class Elements(Protocol):
    """Of a workspace or a tape: fixed + B (per_row + tile * per_tile_row + T * per_sequence_row)."""

    fixed: int
    per_row: int
    per_tile_row: int
    per_sequence_row: int


class FunctionFacts(Protocol):
    """What a call of a function on a CPU needs."""

    packs: Sequence[Pack]
    packed_elements: int
    workspace: Elements
    rows_per_tile: int


class Manifest(dict[str, Any]):
    """The facts about a module, as in its file; keys are attributes too: `mod.manifest.target.mcpu`."""

    format: int
    cell: str
    dtype: str
    num_layers: int
    num_directions: int
    inputs: Sequence[Named]
    output: Named
    states: Sequence[StateFacts]
    weights: Sequence[Named]
    target: Machine
    entry_points: Sequence[str]
    packs: Sequence[Pack]
    packed_elements: int
    workspace: Elements
    rows_per_tile: int
    flops_per_row: float

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the manifest has no {name!r}; it has: {', '.join(self)}")


class Opened(NamedTuple):
    """A module's file, read: its path, bytes, manifest, arrays by name, and how many bytes are code."""

    path: str
    data: Mapped
    manifest: Manifest
    arrays: dict[str, np.ndarray]
    elf_size: int


class Flat(NamedTuple):
    """A state of B rows as one flat array: its name, first value, elements, (place, shape) of each of its arrays: one,
    or where layers differ in shape one by layer; and what it is called in messages, by the kind of dict it is in."""

    name: str
    initial: float
    size: int
    parts: list[tuple[slice, Shape]]
    called: dict[str, str]


def _error(kind: type[Exception], what: str, got: object, expected: object = None, do: object = None) -> Exception:
    slots = (("got:", got), ("expected:", expected), ("do:", do))
    return kind("\n".join([what, *(f"  {name:<9} {text}" for name, text in slots if text is not None)]))


class Mapped(mmap.mmap):
    """A file's bytes. signature: which file it was, and when it was changed; (): a copy, which no file is.
    crc: of all but the footer, as it was checked."""

    signature: tuple[int, ...] = ()
    crc = 0

    def is_as_checked(self) -> bool:
        """Whether nobody wrote to the file or cut it since: ask after what was read. Pages of a file change with it."""
        whole = not self.signature or self.size() == len(self)  # to read what was cut off would be a signal
        return whole and zlib.crc32(memoryview(self)[: -FOOTER.size]) == self.crc


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _map_file(path: str, kind: type[Exception], copied: bool = False) -> Mapped:
    """The file's bytes as private pages: writable (DLPack refuses read-only arrays), never written back. copied: into
    memory of our own, which nobody else can change."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):  # to read a pipe would wait for a writer
                raise OSError("it is no regular file")
            data = Mapped(-1 if copied else file.fileno(), found.st_size if copied else 0, access=mmap.ACCESS_COPY)
            while copied and (count := file.readinto(memoryview(data)[data.tell() :])):
                data.seek(count, os.SEEK_CUR)
            data.signature = () if copied else _signature(found)
            return data
    except FileNotFoundError:
        raise _error(kind, f"cannot read {path!r}", "no such file", do="check the path") from None
    except (OSError, TypeError, ValueError) as error:
        raise _error(kind, f"cannot read {path!r}", error, "a file with something in it") from None


def _open_container(path: str | os.PathLike[str], copied: bool = False) -> Opened:
    if not isinstance(path, str | bytes | os.PathLike):
        raise _error(LoadError, "this is no path", repr(path), "the path of a .so as exported")
    data = _map_file(path := os.fsdecode(path), LoadError, copied)
    end = len(data) - FOOTER.size
    magic, version, crc, elf_size, start, size, text = FOOTER.unpack(data[-FOOTER.size :].ljust(FOOTER.size))
    if data[:4] not in CODE_BEGINS or magic != MAGIC:
        got = f"{len(data)} bytes that begin {data[:4]!r} and do not end with its footer"
        raise _error(LoadError, f"{path!r} is not a complete tvm_rnn module", got, "a .so as exported", AGAIN)
    newer, do = f"{path!r} was made by a newer tvm_rnn", "upgrade tvm_rnn (or the copied runtime.py) here"
    if version > CONTAINER_VERSION:
        raise _error(LoadError, newer, f"container version {version}", f"at most {CONTAINER_VERSION}", do)
    fits = start % ALIGNMENT == 0 <= start - elf_size < ALIGNMENT and start + size + text == end
    if not fits or version < 1 or data[elf_size:start].strip(b"\0"):
        got = f"parts of {elf_size}, {start - elf_size}, {size} and {text} bytes in {len(data)}"
        raise _error(LoadError, f"{path!r} is damaged", got, "parts that fill the file", "copy it again")
    data.crc = crc
    if (found := zlib.crc32(memoryview(data)[:end])) != crc:
        raise _error(LoadError, f"{path!r} is damaged", f"checksum {found:08x}", f"{crc:08x}", "copy it again")
    try:
        manifest = json.loads(data[end - text : end], object_hook=Manifest)
        if manifest["format"] > MANIFEST_FORMAT:
            raise _error(LoadError, newer, f"manifest format {manifest.format}", f"at most {MANIFEST_FORMAT}", do)
        if manifest["format"] < OLDEST_FORMAT:
            what, got = f"{path!r} was made by an earlier tvm_rnn", f"manifest format {manifest.format}"
            raise _error(LoadError, what, got, f"{OLDEST_FORMAT} or later, as since 1.0.0", "compile it again")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _error(LoadError, f"{path!r} has no readable manifest", error, do="export it again") from None
    arrays = _parse_weights(data, start, size, path, LoadError) if size else {}
    _check_facts(path, data, elf_size, manifest, arrays)
    return Opened(path, data, manifest, arrays, elf_size)


def read_container(path: str | os.PathLike[str]) -> tuple[Manifest, dict[str, np.ndarray]]:
    """The manifest and the weights ({name: array}) of a module's file. Raises LoadError. Loads no code."""
    opened = _open_container(path)
    return opened.manifest, opened.arrays


def _parse_weights(data: mmap.mmap, start: int, size: int, path: str, kind: type[Exception]) -> dict[str, np.ndarray]:
    """safetensors as views, not copies. Every size is compared with the file's before it is used."""
    try:
        header, arrays = int.from_bytes(data[start : start + 8], "little"), {}
        first, room = start + 8 + header, size - 8 - header
        if room < 0 or header > HEADER_BYTES:
            raise ValueError(f"a header of {header} bytes in {size}, of at most {HEADER_BYTES}")
        entries = json.loads(data[start + 8 : first], object_pairs_hook=_each_once)
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            dtype, shape, (begin, end) = np.dtype(SAFETENSORS[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            if len(shape) > MOST_AXES:
                raise ValueError(f"{name!r} with {len(shape)} axes")
            count = math.prod(map(operator.index, shape))  # of numbers: text times a number is more text
            if not 0 <= begin <= end <= room or count * dtype.itemsize != end - begin or min(shape, default=0) < 0:
                raise ValueError(f"{name!r} with shape {shape} at bytes {begin} to {end} of {room}")
            arrays[name] = np.frombuffer(data, dtype, count, first + begin).reshape(shape)
        ends = sorted(tuple(entry["data_offsets"]) for entry in entries.values())
        if [begin for begin, _ in ends] + [room] != [0, *(end for _, end in ends)]:
            raise ValueError(f"arrays at bytes {ends} do not fill {room}")
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what, got = f"the weights in {path!r} cannot be read", f"{error!r:.300}"
        raise _error(kind, what, got, "the safetensors format") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in found if names.count(name) > 1)!r} twice")
    return found


def facts_text(manifest: object) -> str:
    """What code depends on in a manifest, or in a part of one, as text: 1, 1.0 and true differ."""

    def needed(value: object) -> object:
        if isinstance(value, dict):
            return {name: needed(own) for name, own in value.items() if name not in FOR_PEOPLE}
        return [*map(needed, value)] if isinstance(value, list) else value

    return json.dumps(needed(manifest), sort_keys=True, separators=(",", ":"))


def described(array: np.ndarray) -> str:
    """An array's dtype and shape."""
    return f"{array.dtype.name} {[*array.shape]}"


def carried(data: bytes | mmap.mmap, elf_size: int) -> tuple[str, dict[str, str]] | None:
    """What code says of itself, at its end: the text of the manifest that it was made with, and the arrays that it
    reads, described, by name; None: it says nothing. Raises ValueError where that is damaged."""
    at = elf_size - CARRIED.size
    if at < 0 or data[elf_size - len(CARRIED_MARK) : elf_size] != CARRIED_MARK:
        return None
    facts, arrays, _ = CARRIED.unpack(data[at:elf_size])
    if facts + arrays > at:
        raise ValueError(f"{facts} and {arrays} bytes of facts in {at} bytes of code")
    found: dict[str, str] = json.loads(data[at - arrays : at])
    return data[at - arrays - facts : at - arrays].decode(), found


def _check_facts(path: str, data: mmap.mmap, elf_size: int, manifest: Facts, arrays: dict[str, np.ndarray]) -> None:
    """Compare a file's manifest and arrays with what its code was made for: sizes of memory cannot be checked against
    anything else. Raises LoadError, naming the field or the array that differs."""
    try:
        if (known := carried(data, elf_size)) is None:
            raise ValueError("code that does not say which manifest it was made for")
        text, expected = known
        where, got, wanted = "", None, None
        if facts_text(manifest) != text:
            where, got, wanted = first_difference("", manifest, json.loads(text))
        found = {name: described(array) for name, array in arrays.items()}
        weightless = not any(not _is_constant(name) for name in found)
        needed = {name: own for name, own in expected.items() if not weightless or _is_constant(name)}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _error(LoadError, f"{path!r} has no readable facts", error, do="export it again") from None
    if not where and found != needed:
        where, got, wanted = first_difference("arrays", found, needed)
    if where:
        what = f"{path!r} has another {where} than its code was made for"
        raise _error(LoadError, what, f"{got!r:.200}", f"{wanted!r:.200}", "export it again")


def _is_constant(name: str) -> bool:
    """Whether an array is the equations' or a model's, not the user's. Those of networks begin with a number."""
    number, _, own = name.partition(".")
    return name.startswith(CONSTANT) or (number.isdigit() and own.startswith(CONSTANT))


def first_difference(where: str, got: object, expected: object) -> tuple[str, object, object]:
    """Where two values first differ, and what is there in each."""
    pairs: list[tuple[str, object, object]] = []
    if isinstance(got, dict) and isinstance(expected, dict):
        names = [name for name in {**expected, **got} if name not in FOR_PEOPLE]
        pairs = [(f"{where}.{name}".lstrip("."), got.get(name), expected.get(name)) for name in names]
    elif isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        pairs = [(f"{where}[{i}]", *both) for i, both in enumerate(zip(got, expected, strict=True))]
    for pair in pairs:
        if facts_text(pair[1]) != facts_text(pair[2]):
            return first_difference(*pair)
    return where or "manifest", got, expected


def cpu_features() -> set[str] | None:
    """What this CPU can do, in the kernel's names without underscores; None where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        return next((set(s.replace("_", "").split()) for s in file if s.startswith(("flags", "Features"))), None)
    return None


def _other_machine(path: str, target: Machine, code: bytes = b"") -> Exception | None:
    """Why a module of that target cannot run here; None: it can. code: how its code begins."""
    do = f"compile for this machine; it was compiled for {target.name!r}"
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if target.machine != machine:
        return _error(LoadError, f"{path!r} is for another machine", target.machine, machine, do)
    if CODE_BEGINS.get(code, sys.platform) != sys.platform:
        return _error(LoadError, f"{path!r} is for another system", CODE_BEGINS[code], sys.platform, do)
    known = cpu_features()
    names = {feature: feature.replace("_", "").replace(".", "").replace("-", "") for feature in target.features}
    missing = [f for f, name in names.items() if known is not None and not {name, KERNEL_NAMES.get(name)} & known]
    needs = f"{path!r} needs a CPU with more features"
    return _error(LoadError, needs, f"without {missing}", target.features, do) if missing else None


def _check_machine(path: str, target: Machine) -> None:
    """Raises LoadError where a module of that target cannot run here."""
    if (reason := _other_machine(path, target)) is not None:
        raise reason


class Absent:
    """Stands for the code of a module for another machine, which can be exported: a call of a function says why."""

    def __init__(self, reason: Exception) -> None:
        self.sequence = self.forward_train = self.pool_size = self.pool_resize = self._refuse
        self._reason = reason

    def get_function(self, name: str) -> Function:
        """The function of that name."""
        return self._refuse

    def _refuse(self, *_arguments: object) -> NoReturn:
        raise self._reason


def _is_now(path: str, signature: tuple[int, ...]) -> bool:
    """Whether that file is still the one at the path."""
    try:
        return _signature(os.stat(path)) == signature
    except OSError:
        return False


def _open_library(path: str, data: Mapped, elf_size: int, first: str = "pool_install") -> Library:
    """The tvm_ffi module, with its function `first` called: the code that was read and checked. dlopen goes by a path,
    where another file may be by now, and finds an open library by it, whose file may be gone; there, and where the name
    does not end in .so, a copy with a new name is opened."""
    real = os.path.realpath(path)
    try:
        import tvm_ffi  # no sooner: it imports torch where that is installed

        library = None
        first_time = _opened.setdefault(real, data.signature) == data.signature
        named = real.endswith(".so") and real.encode(errors="replace").decode() == real
        if named and first_time and _is_now(real, data.signature):
            library = tvm_ffi.load_module(real, keep_module_alive=False)
        if library is None or not _is_now(real, data.signature):
            with tempfile.NamedTemporaryFile(suffix=".so", buffering=0) as file:
                file.write(memoryview(data)[:elf_size])
                if not data.is_as_checked():
                    raise OSError("the file was changed in place since it was checked")
                library = tvm_ffi.load_module(file.name, keep_module_alive=False)
        getattr(library, first)()  # pool_install once more: libtvm_runtime, where present, undoes the constructor's
        return library
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        got, do = f"{type(error).__name__}: {error}", "compile it again here; tvm_ffi is in pip install apache-tvm-ffi"
        raise _error(LoadError, f"{path!r} cannot be loaded", got, do=do) from error


def _aligned(elements: int, dtype: np.dtype) -> np.ndarray:
    raw = np.empty(elements * dtype.itemsize + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][: elements * dtype.itemsize].view(dtype)


def _numpy(what: str, value: Array, kind: type[Exception] = InputError) -> np.ndarray:
    """The same memory as numpy array. A torch tensor is detached: nothing here computes gradients."""
    if isinstance(value, np.ma.MaskedArray):
        do = f"fill it: {what}.filled(0); rows that end early have lengths"
        raise _error(kind, f"{what} is a masked array", f"{np.ma.getmaskarray(value).sum()} masked", "an array", do)
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        do = f"copy it to the CPU: {what}.cpu()"
        on_cpu = getattr(value, "is_cpu", False)  # torch says so, in a tenth of the time that DLPack takes
        if on_cpu or value.__dlpack_device__()[0] == 1:
            value = _detached(value, kind) if getattr(value, "requires_grad", False) else value
            return value.resolve_neg().numpy() if on_cpu else np.from_dlpack(value)
    except (AttributeError, RuntimeError, BufferError, TypeError, ValueError) as error:
        reason = f" ({type(error).__name__}: {error})" if hasattr(value, "__dlpack__") else ""
        do = f"{_converted(what, value)}{reason}"
    got = f"a {type(value).__name__} of {getattr(value, 'dtype', 'unknown dtype')} on {getattr(value, 'device', 'cpu')}"
    raise _error(kind, f"{what} is not an array for this module", got, "a dense CPU array: numpy, torch, DLPack", do)


def turned(value: Array) -> Array:
    """[T, B, ...] of [B, T, ...], and the other way about: a view."""
    return value.swapaxes(0, 1)


def _converted(what: str, value: Array) -> str:
    """How to make an array of what is none."""
    if type(value).__name__ == "PackedSequence":
        return PACKED
    if isinstance(value, str):
        return "take arrays out of the state by name, state['h'], or by h, c = state; to loop over it gives names"
    if hasattr(value, "detach"):  # torch's, of a dtype that NumPy lacks, or without memory
        return f"cast it: {what}.float(); torch.func, torch.export and torch.jit cannot look into compiled code"
    return f"convert it: numpy.asarray({what}, dtype=...)"


def _detached(value: Array, kind: type[Exception] = InputError) -> Array:
    """A tensor that asks for gradients, without its history. kind: InputError: results of it could ask for some too."""
    if kind is InputError and sys.modules["torch"].is_grad_enabled():
        _say_no_gradient()
    return value.detach()


def _repeated(value: Array, rows: int) -> Array:
    """An array [B, ...] as [rows, B, ...], the same in every row: a view."""
    if hasattr(value, "expand"):  # a tensor of torch: gradients are summed over the rows
        return value[None].expand(rows, *value.shape)
    if hasattr(value, "aval"):  # an array of JAX, the same
        return value[None].repeat(rows, 0)
    return np.broadcast_to(value, (rows, *np.shape(value)))


def _beside(like: Array, value: np.ndarray | list[np.ndarray]) -> Array:
    """A state as tensors of torch where `like` is one, at its place; else as it is."""
    if not hasattr(like, "new_tensor"):
        return value
    as_tensor = functools.partial(sys.modules["torch"].as_tensor, dtype=like.dtype, device=like.device)
    return [as_tensor(part) for part in value] if isinstance(value, list) else as_tensor(value)


@functools.cache
def _say_no_gradient() -> None:
    """Once in a process: for many calls it is as wanted."""
    what, got = "results of a compiled module carry no gradient", "a tensor that requires one"
    do = "rnn.to_torch(net) has gradients; where none are wanted, with torch.no_grad(): mod(x)"
    warnings.warn(str(_error(InputError, what, got, do=do)), stacklevel=6)


@functools.cache
def _like(kind: type) -> Callable[[np.ndarray], Array] | None:
    """What turns a numpy array into that kind of array; None: it stays one (also where the package is not known)."""
    makers = [getattr(sys.modules.get(base.__module__.partition(".")[0]), "from_dlpack", None) for base in kind.__mro__]
    return None if np.from_dlpack in makers else next(filter(None, makers), None)


def _per_row(what: str, value: object, dtype: type, shape: Shape, steps: int) -> np.ndarray:
    """A copy of lengths (int64) or reset (bool) as array of that dtype and shape, from any dtype of its kind."""
    if isinstance(value, list | tuple):
        with contextlib.suppress(ValueError, TypeError):  # a ragged list stays a list, which is refused below
            value = np.array(value) if np.size(value) else np.empty(np.shape(value), dtype)
    array = _numpy(what, value)
    kinds, expected = ("?B", "bool or uint8") if dtype is bool else ("bBhHiIlLqQ", "integers")
    if array.dtype.char not in kinds or array.shape != shape:
        got, do = f"{array.dtype} of shape {array.shape}", "cast or reshape it"
        if what == "lengths" and array.shape == (steps,) != shape:
            do = f"x has {shape[0]} rows of {steps} steps here: swap its first two axes, or see batch_first of rnn.RNN"
        raise _error(InputError, f"{what} does not fit x", got, f"{expected} of shape {shape}", do)
    array = np.array(array, dtype, order="C")
    if dtype is not bool and array.size and not 0 <= array.min() <= array.max() <= steps:
        row = np.argmax((array < 0) | (array > steps))
        raise _error(InputError, f"{what} out of range", f"{array[row]} for row {row}", f"0 to {steps}, the steps of x")
    return array


class Module:
    """A compiled RNN: call it for all steps, or `step` for one.

    Arrays are time-major: x [T, B, *input], y [T, B, D*H], a state [L*D, B, *shape] in torch's order (a list of
    [D, B, *shape] by layer where these differ), where D is 1 or 2 directions. Of a network with batch_first=True every
    array that begins [T, B] begins [B, T] instead, in all calls; states are as they were, as in torch, and compiled
    code stays time-major: x is copied once, and y is a view. Results are new arrays of the kind of x and carry no
    gradient. dtypes are never cast. Thread-safe, but for changes of weights.

    Ctrl-C, or another signal whose handler raises, ends a call of the main thread on a CPU within 0.2 s. It returns
    nothing; the module, its weights and the caller's arrays are as before, but those given as `out` may hold anything.

    path: of the file that it came from.
    manifest: what the file says of the module; keys are attributes too: `mod.manifest.target.mcpu`.
    weights: {name: read-only array}; empty until there are any.
    """

    drawing: Callable[[], str] | None = None  # of its network, as HTML
    _source: Module  # of a copy: what it is one of
    _packs: Sequence[Pack] = ()
    _packed_elements = 0
    _generation = ".runtime_generate"  # the file that generates

    def __init__(self, path: str | os.PathLike[str], opened: Opened | None = None, anywhere: bool = False) -> None:
        """anywhere: also where its code cannot run: the module can then be exported, not called."""
        self.path, self._file, self.manifest, arrays, self._elf_size = opened or _open_container(path)
        try:
            self._read_manifest(self.manifest)
            reason = _other_machine(self.path, self.manifest.target, self._file[:4])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _error(LoadError, f"{self.path!r} has an unusable manifest", error, do="export it again") from None
        if reason is not None and not anywhere:
            raise reason
        self._library: Library
        if reason is None:
            self._library = _open_library(self.path, self._file, self._elf_size)
        else:  # weights are laid out where the code runs
            self._library, self._packs = Absent(reason), ()
        self._tensor: Callable[[np.ndarray], tvm_ffi.Tensor] = sys.modules["tvm_ffi"].from_dlpack
        self._sequence: Function = _no_seed if self.manifest.get("draws") else self._library.sequence
        self._no_rows: list[Array] = [self._tensor(np.zeros(1, dtype)) for dtype in (np.int64, np.uint8)]
        self._begin(arrays)
        if arrays or not self._weight_shapes:
            self._use_weights(arrays)

    def _begin(self, arrays: dict[str, np.ndarray]) -> None:
        """What every kind of module begins with. arrays: of the file, which the constants are taken from."""
        self._local = threading.local()  # a workspace per thread: no lock is held while compiled code runs
        self._threads, self._packed, self._plans = 0, None, dict[int, list[Flat]]()
        self.weights: dict[str, np.ndarray] = {}
        self._constants = {name: arrays.pop(name) for name in [*arrays] if name.startswith(CONSTANT)}

    def __repr__(self) -> str:
        m = self.manifest
        both = " in both directions" if m.num_directions == 2 else " backwards" if m.get("reverse") else ""
        shapes = [f"{item.name} {[*item.shape]}" for item in (*m.inputs, m.output)]
        layers = f"{m.num_layers} layer{'s' * (m.num_layers > 1)}{both}{', batch first' * self.batch_first}"
        return (
            f"<{type(self).__name__} {m.cell}: {', '.join(shapes[:-1])} -> {shapes[-1]}, {layers}, {self._runs_on()}>"
        )

    def _untrained(self, *value: object) -> NoReturn:
        what, do = f"{type(self).__name__} cannot train", "rnn.compile(net, ..., training=True)"
        raise _error(AttributeError, what, "a module for inference", "one for training", do)

    def _of_a_network(self, function: str) -> NoReturn:
        what, do = f"{type(self).__name__} has no {function}", f"tvm_rnn.{function}(net)"
        raise _error(AttributeError, what, "a module", "the network that it is made from", do)

    if not TYPE_CHECKING:  # what Trainable has
        forward_train = backward = plan_memory = memory_sizes = max_bytes = property(_untrained, _untrained)
        to_torch = property(lambda self: self._of_a_network("to_torch"))
        to_jax = property(lambda self: self._of_a_network("to_jax"))

    def __deepcopy__(self, memo: object) -> Module:
        """A module with weights and settings of its own, and the same code, which this one's file has."""
        arrays, manifest = {**self.weights, **self._constants}, Manifest(self.manifest)
        copied = type(self)(self.path, Opened(self.path, self._file, manifest, arrays, self._elf_size), True)
        copied._source = self  # whoever made the file removes it after the module that it was made for
        pairs = zip(getattr(self, "networks", [self]), getattr(copied, "networks", [copied]), strict=True)
        for own, other in pairs:
            vars(other).update({name: value for name, value in vars(own).items() if name in SETTINGS})
        return copied

    def __copy__(self) -> Module:
        return self.__deepcopy__({})

    def __reduce__(self) -> NoReturn:
        do = "mod.export(path), and rnn.load(path) there; of a layer of to_torch, save layer.state_dict()"
        raise _error(TvmRnnError, "compiled code cannot be pickled", repr(self), "a file", do)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its code is for another machine: it can be exported, not called."""
        return isinstance(self._library, Absent)

    @property
    def batch_first(self) -> bool:
        """Whether arrays of calls are [B, T, ...], as of the network that was compiled. It can be set, and is exported
        as it is then."""
        return bool(self.manifest.get("batch_first", False))

    @batch_first.setter
    def batch_first(self, value: bool) -> None:
        self.manifest["batch_first"] = bool(value)

    def _runs_on(self) -> str:
        """The dtype and the target, for people."""
        return f"{self.manifest.dtype} on {self.manifest.target.name}"

    def _repr_html_(self) -> str | None:
        """For notebooks: the equations, which a file does not have; None for a module that was loaded from one."""
        return None if self.drawing is None else self.drawing()

    def _read_manifest(self, m: Manifest) -> None:
        D, self._dtype = int(m.num_directions), np.dtype(m.dtype)
        self._inputs = [(item.name, tuple(item.shape)) for item in m.inputs]
        self._output = (D * m.output.shape[0], *m.output.shape[1:]) if m.output.shape else (D,) * (D > 1)
        self._states = {state.name: (D, float(state.initial), [*map(tuple, state.shapes)]) for state in m.states}
        self._held = {s.name: (*map(int, s.shapes[0]),) for s in m.states if getattr(s, "constant", False)}
        self._weight_shapes = {item.name: tuple(item.shape) for item in m.weights}
        self._steps = D == 1 and "step" in m.entry_points
        if "variants" in m:  # for GPUs
            return
        w = m.workspace
        self._sizes = (int(w.fixed), int(w.per_row), int(w.per_tile_row), int(w.per_sequence_row), int(m.rows_per_tile))
        self._packs, self._packed_elements, self._flops = m.packs, int(m.packed_elements), float(m.flops_per_row)

    def __call__(
        self,
        x: object,
        state: Mapping[str, object] | None = None,
        *,
        lengths: object = None,
        reset: object = None,
        **inputs: object,
    ) -> tuple[Array, State]:
        """All steps.

        x: [T, B, *input], in the module's dtype; of a cell with several inputs a tuple in the manifest's order, a dict,
            or the first one, with the others as keywords.
        state: all first states by name, [L*D, B, *shape] each; None: the initial ones.
        lengths: [B] integers in 0..T: row b stops after so many steps, and its y is 0 from there. None: all are T.
        reset: [T, B] bool or uint8: row b begins again, at the initial state, at step t. None: never.

        Constants of the cell are keywords too, or in the dict, each [B, *shape]; the returned state has them as well.

        Returns y [T, B, D*H] and {name: state after the last step}, of the kind of x. Raises InputError for arrays that
        do not fit, WeightError where there are no weights."""
        if self._held:
            x, state, inputs = self.hold(x, state, inputs, reset)
        if not self.batch_first:
            return self._all_steps(x, state, inputs, lengths, reset)
        x, reset = self._time_first(x, inputs, reset)
        y, last = self._all_steps(x, state, {}, lengths, reset)
        return turned(y), last

    def _all_steps(
        self, x: object, state: Mapping[str, object] | None, inputs: dict[str, Array], lengths: object, reset: object
    ) -> tuple[Array, State]:
        """What a call returns, of arrays [T, B, ...]."""
        arrays, lead, like = self._read_inputs(x, inputs, ("T", "B"))
        has, rows = self._read_rows(lengths, reset, lead)
        return self._run(arrays, state, lead, like, has, rows)

    def _time_first(self, x: object, inputs: Mapping[str, Array], reset: object) -> tuple[dict[str, Array], object]:
        """All inputs by name, and the resets, [T, B, ...], of those of a call with [B, T, ...]. Raises InputError where
        they are not so."""
        values, found = self._name_inputs(x, inputs), dict[str, Array]()
        lead: Shape | None = None
        for (name, shape), value in zip(self._inputs, values, strict=True):
            array: Array = value if hasattr(value, "swapaxes") else _numpy(name, value)
            self._check_lead(name, shape, tuple(array.shape), ("B", "T"))
            if lead not in (None, tuple(array.shape[:2])):
                do = f"give every input [B, T, ...], as {self._inputs[0][0]}"
                raise _error(InputError, f"{name} has the wrong shape", tuple(array.shape), f"{lead} = [B, T, ...]", do)
            lead, found[name] = tuple(array.shape[:2]), turned(array)
        if reset is None:
            return found, None
        mask: Array = reset if hasattr(reset, "swapaxes") else np.asarray(reset)
        if tuple(mask.shape) != lead:
            do = "give a flag for each row and step"
            raise _error(InputError, "reset does not fit x", tuple(mask.shape), f"{lead} = [B, T]", do)
        return found, turned(mask)

    def hold(
        self, x: object, state: Mapping[str, object] | None, inputs: dict[str, Array], reset: object = None
    ) -> tuple[object, Mapping[str, object], dict[str, Array]]:
        """The state with the cell's constants in it, and the inputs without them: what calls begin with.

        x: of a call; of a dict the constants are taken too.
        state: of a call; its constants stay where `inputs` has none. None: the initial one.
        inputs: by name; of constants [B, *shape], for all layers and directions.
        reset: of a call.

        Raises InputError where a constant is missing or has another shape, or where there is a reset."""
        if state is not None and not isinstance(state, Mapping):
            return x, state, inputs  # who reads it says so
        given = {name: inputs[name] for name in self._held if name in inputs}
        if isinstance(x, Mapping):
            given = {name: x[name] for name in self._held if name in x} | given
            x = {name: value for name, value in x.items() if name not in given}
        for name, value in given.items():
            found, shape = tuple(np.shape(value)), self._held[name]
            if found[1:] != shape or not found:
                expected = f"[{', '.join(['B', *map(str, shape)])}]"
                raise _error(InputError, f"the constant {name} has the wrong shape", found, expected, "reshape it")
        missing = [name for name in self._held if name not in given and (state is None or name not in state)]
        if missing:
            do = "give it once per call: mod(x, " + ", ".join(f"{name}={name}" for name in missing) + ")"
            raise _error(InputError, f"the constant {missing[0]} is not given", [*inputs], [*self._held], do)
        if reset is not None:
            do = "a new sequence has constants of its own: call the module once for each"
            raise _error(InputError, "reset= does not go with constants", [*self._held], None, do)
        if state is not None and not given:
            return x, state, inputs
        rows = self.manifest.num_layers * self.manifest.num_directions
        held = {name: _repeated(value, rows) for name, value in given.items()}
        if state is None:
            first = next(iter(given.values()))
            state = {n: _beside(first, v) for n, v in self.init_state(np.shape(first)[0]).items()}
        return x, {**state, **held}, {name: value for name, value in inputs.items() if name not in held}

    def _read_rows(self, lengths: object, reset: object, lead: Shape) -> tuple[tuple[bool, bool], list[Array]]:
        """Whether there are lengths and resets, and what compiled code takes for them."""
        if lengths is None and reset is None:
            return (False, False), self._no_rows
        counts, mask = self._no_rows
        if lengths is not None:
            counts = _per_row("lengths", lengths, np.int64, lead[1:], lead[0])
        if reset is not None:
            mask = _per_row("reset", reset, bool, lead, lead[0]).ravel().view(np.uint8)
        return (lengths is not None, reset is not None), [counts, mask]

    def step(
        self,
        x: object,
        state: Mapping[str, object] | None = None,
        *,
        out: tuple[Array, State] | None = None,
        **inputs: object,
    ) -> tuple[Array, State]:
        """One step.

        x: [B, *input], as for a call of all steps.
        state: all states by name, [L, B, *shape] each; None: the initial ones.
        out: (y, state) to write to, and to return, in place of new arrays; its state may be the one given:
            mod.step(x, state, out=(y, state)). Then nothing is allocated.

        Returns y [B, H] and {name: state}. Raises InputError, also for a module that cannot step because it has two
        directions or goes backwards, and WeightError where there are no weights."""
        if not self._steps:
            raise _error(InputError, "this module cannot step", "two directions or reverse", "forward", "call mod(x)")
        if self._held:
            x, state, inputs = self.hold(x, state, inputs)
        if out is not None:
            return step_into(self, x, state, out, inputs)
        arrays, lead, like = self._read_inputs(x, inputs, ("B",))
        return self._run(arrays, state, lead, like, (False, False), self._no_rows)

    def init_state(self, batch: int) -> State:
        """The initial state, without the cell's constants, which every call is given.

        batch: B, how many rows, at least 0.

        Returns {name: [L*D, B, *shape]} as numpy arrays. Raises InputError for another batch."""
        if not isinstance(batch, int | np.integer) or not 0 <= batch < 1 << 40:
            raise _error(InputError, "the batch size is wrong", repr(batch), "an integer, 0 or more, below 2 ** 40")
        first = self._shape_states(self._read_states(None, int(batch)), int(batch), None)
        return State((name, value) for name, value in first.items() if name not in self._held)

    def run(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """All of the ONNX or Keras model that this module was made from.

        inputs: {name: array}, all of the model's, with its dtypes and shapes.

        Returns {name: output}, of the kind of the first input. Raises InputError, also for a module that was not made
        from a model."""
        found: dict[str, Array] = importlib.import_module(".runtime_model", __package__).run(self, inputs)
        return found

    def generate(
        self,
        steps: int,
        state: Mapping[str, object] | None = None,
        *,
        prompt: object = None,
        seed: int | None = None,
        first_step: int = 0,
        stop: float | None = None,
        **inputs: object,
    ) -> tuple[Array, State, Array]:
        """Steps in which the output of each is the first input of the next, in one call of compiled code.

        steps: how many outputs.
        state: all first states by name; None: the initial ones.
        prompt: [P, B, *shape] the first inputs, of tokens [P, B] integers; None: one step of zeros.
        seed: of the random numbers, where the cell draws any; the oracle draws the same.
        first_step: the number of the prompt's first step in its whole sequence, where earlier calls had others.
        stop: the output that ends a row: its state stays as it is, and the call ends when all rows have.
        inputs: the cell's other inputs by name, [P - 1 + steps, B, ...] each.

        Returns the outputs after the prompt, [steps, B, *shape], of tokens [steps, B] int32, with `stop` behind a row's
        end; {name: last state}; and how many outputs each row made. Raises InputError for what does not fit, and for a
        module that was not compiled with generate=True."""
        if self._held:
            _, state, inputs = self.hold(None, state, inputs)
        found: tuple[Array, State, Array] = importlib.import_module(self._generation, __package__).run(
            self,
            steps,
            state,
            prompt,
            {"seed": seed, "first_step": first_step, "stop": stop, "inputs": inputs},
        )
        return found

    def _run(
        self,
        arrays: list[np.ndarray],
        state: Mapping[str, object] | None,
        lead: Shape,
        like: Callable[[np.ndarray], Array] | None,
        has: tuple[bool, bool],
        rows: Sequence[Array],
    ) -> tuple[Array, State]:
        if self._packed is None:
            raise self._weightless()
        T, B = lead if len(lead) > 1 else (1, *lead)
        before = self._read_states(state, B)
        after, y = [array.copy() for array in before], np.empty((*lead, *self._output), self._dtype)
        if T and B:
            tile, work = self._tiling(T, B)
            threads = self._threads_for(B)
            self._sequence(T, B, tile, threads, *has, *arrays, y.ravel(), *before, *after, *rows, self._packed, work)
        return y if like is None else like(y), self._shape_states(after, B, like)

    def _tiling(self, T: int, B: int) -> tuple[int, Array]:
        """Steps of a tile, and this thread's working memory."""
        fixed, per_row, per_tile_row, per_sequence_row, rows_per_tile = self._sizes
        tile = max(1, min(T, rows_per_tile // B))
        elements = fixed + B * (per_row + tile * per_tile_row + T * per_sequence_row)
        held, work = getattr(self._local, "workspace", (-1, None))
        if held < elements:
            work = self._tensor(_aligned(max(1, elements), self._dtype))
            self._local.workspace = (elements, work)
        return tile, work

    def _threads_for(self, B: int) -> int:
        return self._threads or (1 if self._flops * B < PARALLEL_FLOPS_PER_STEP else self.threads)

    def _weightless(self) -> Exception:
        return _error(WeightError, "the module has no weights", "none", [*self._weight_shapes], WEIGHTS)

    def _flat(self, what: str, value: object, shape: Shape, axes: str) -> np.ndarray:
        """Flat, contiguous, aligned, writable (DLPack wants that), native: the user's memory where it is so already."""
        array = value if type(value) is np.ndarray else _numpy(what, value)
        if array.shape != shape:
            raise _error(InputError, f"{what} has the wrong shape", array.shape, f"{shape} = {axes}", "reshape it")
        if array.dtype != self._dtype or not array.flags.carray:
            if array.dtype.newbyteorder("=") != self._dtype:
                do = f"cast it: .astype({str(self._dtype)!r}), or of a tensor .to(torch.{self._dtype})"
                raise _error(InputError, f"{what} has the wrong dtype", array.dtype, self._dtype, do)
            array = np.array(array, self._dtype, order="C")
        return array.ravel()

    def _name_inputs(self, x: object, named: Mapping[str, object]) -> list[object]:
        """All inputs, in the manifest's order."""
        if not named and len(self._inputs) == 1 and hasattr(x, "shape"):
            return [x]
        names = [name for name, _ in self._inputs]
        values = x if isinstance(x, list | tuple) and len(names) > 1 else [x]
        numbered = zip(itertools.chain(names, itertools.count()), values, strict=False)  # a surplus one is a number
        given: dict[object, object] = dict(x) if isinstance(x, Mapping) else dict(numbered)
        if sorted([*map(str, given), *named]) != sorted(names):
            got, do = [*given, *named], "give each input once: mod((a, b)), mod({'a': a, 'b': b}) or mod(a, b=b)"
            raise _error(InputError, "the inputs are not the module's", got, names, do)
        return [(given | {**named})[name] for name in names]

    def _read_inputs(
        self, x: object, named: Mapping[str, object], axes: tuple[str, ...]
    ) -> tuple[list[np.ndarray], Shape, Callable[[np.ndarray], Array] | None]:
        """Flat arrays in the manifest's order, the leading dimensions, and what makes results of the kind of x."""
        (name, shape), *others = self._inputs
        try:
            values = self._name_inputs(x, named) if named or others or not hasattr(x, "shape") else [x]
        except RuntimeError as reason:  # of torch's nested tensors
            do = f"give {name} [{', '.join([*axes, *map(str, shape)])}], and lengths of rows that end early"
            raise _error(InputError, f"{name} has no shape", reason, "a dense array", do) from None
        array = values[0] if type(values[0]) is np.ndarray else _numpy(name, values[0])
        self._check_lead(name, shape, array.shape, axes)
        lead, flat = array.shape[: len(axes)], [self._flat(name, array, array.shape, "")]
        for (other, shape), value in zip(others, values[1:], strict=True) if others else ():
            flat.append(self._flat(other, value, (*lead, *shape), f"[{', '.join(axes)}, ...], as in {name}"))
        kind: type = values[0].__class__
        return flat, lead, None if array is values[0] else _like(kind)

    @staticmethod
    def _check_lead(name: str, shape: Shape, found: Shape, axes: tuple[str, ...]) -> None:
        """Whether an input has these axes and its own ones, `shape`, behind them."""
        if len(found) != len(axes) + len(shape) or found[len(axes) :] != shape:
            expected, do = f"[{', '.join([*axes, *map(str, shape)])}]", "T is time, B the batch"
            if len(axes) == 2 and found[1:] == shape:
                do += f"; one sequence is a batch of one: {name}[{'None' if axes[0] == 'B' else ':, None'}]"
            raise _error(InputError, f"{name} has the wrong shape", found, expected, do)

    def _plan(self, B: int) -> list[Flat]:
        """Each state of B rows."""
        if B in self._plans:
            return self._plans[B]
        plan = []
        for name, (D, initial, layers) in self._states.items():
            rows, shapes = (D, layers) if len({*layers}) > 1 else (D * len(layers), layers[:1])
            arrays = [(rows, B, *shape) for shape in shapes]
            ends = [*itertools.accumulate(map(math.prod, arrays), initial=0)]
            called = {kind: item.format(name) for kind, (_, item, _) in STATES.items()}
            plan.append(Flat(name, initial, ends[-1], [*zip(map(slice, ends, ends[1:]), arrays, strict=True)], called))
        self._plans = {**self._plans, B: plan} if len(self._plans) < 64 else {B: plan}
        return plan

    def _read_states(self, state: Mapping[str, object] | None, B: int) -> list[np.ndarray]:
        if state is None:
            return [np.full(flat.size, flat.initial, self._dtype) for flat in self._plan(B)]
        return self._each_state(state, B, self._flat, np.concatenate)

    def _each_state(
        self,
        state: Mapping[str, object],
        B: int,
        take: Callable[[str, object, Shape, str], Array],
        join: Callable[[list[Array]], Array],
        kind: str = "given",
    ) -> list[Array]:
        """Each state of a dict as one array. take: what makes one of the user's, given what that is called, and its
        shape and axes; join: what makes one of those by layer; kind: of STATES. Raises InputError where names or
        numbers of arrays are not the module's."""
        if (type(state) is not dict and not isinstance(state, Mapping)) or state.keys() != self._states.keys():
            got = [*state] if isinstance(state, Mapping) else type(state).__name__
            whole, _, do = STATES[kind]
            do = do.format(", ".join(f"{name!r}: {name}" for name in self._states))
            raise _error(InputError, f"the {whole} is not the module's", got, [*self._states], do)
        found = []
        for name, _, _, parts, called in self._plan(B):
            if len(parts) == 1:
                found.append(take(called[kind], state[name], parts[0][1], "[L*D, B, ...]"))
                continue
            what, values = called[kind], state[name]
            if not isinstance(values, list | tuple) or len(values) != len(parts):
                raise _error(InputError, f"{what} is not a list", type(values), f"{len(parts)} arrays by layer")
            pairs = zip(values, parts, strict=True)
            found.append(join([take(what, value, shape, "[D, B, ...]") for value, (_, shape) in pairs]))
        return found

    def _shape_states(self, flat: list[np.ndarray], B: int, like: Callable[[np.ndarray], Array] | None) -> State:
        result = State()
        for array, (name, _, _, parts, _) in zip(flat, self._plan(B), strict=True):
            if len(parts) == 1:
                own = array.reshape(parts[0][1])
                result[name] = own if like is None else like(own)
            else:
                result[name] = [(like or np.asarray)(array[place].reshape(shape)) for place, shape in parts]
        return result

    def load_weights(self, weights: Mapping[str, object] | str | os.PathLike[str]) -> None:
        """Replace all weights, or none where one is not right.

        weights: {name: array}, with the shapes and the dtype that the manifest says, or the path of a .safetensors
            file.

        Raises WeightError for wrong names, shapes or dtypes, for finite numbers that would be infinite where they are
        stored, and for a file that cannot be read."""
        if not isinstance(weights, Mapping | str | os.PathLike):
            raise _error(WeightError, "these are not weights", type(weights), "a dict of arrays, or a safetensors file")
        if not isinstance(weights, Mapping):
            weights = _weights_in(os.fspath(weights))
        self._check_names(weights)
        arrays = {name: _numpy(name, value, WeightError) for name, value in weights.items()}
        self._check_shapes(arrays)  # before anything is copied: a file may say that it is larger than memory
        arrays = {name: np.array(array) for name, array in arrays.items()}
        for dtype in {self.manifest["dtype"], self.manifest.get("weight_dtype")} & INFINITE.keys():
            _check_fit(arrays, str(dtype))
        self._use_weights(arrays)
        self.manifest.pop("weight_error", None)  # it was that of others

    def _check_names(self, weights: Mapping[str, object]) -> None:
        names = self._weight_shapes.keys()
        missing, unknown = sorted(names - weights.keys()), sorted(weights.keys() - names)
        if missing or unknown:
            theirs = any(str(name).startswith(("weight_ih", "weight_hh")) for name in unknown)
            do = "of a layer of torch: load_weights(rnn.from_torch(layer).weights)" if theirs else None
            raise _error(WeightError, "wrong names of weights", f"missing {missing}, unknown {unknown}", [*names], do)

    def _check_shapes(self, weights: Mapping[str, np.ndarray]) -> None:
        for name, shape in self._weight_shapes.items():
            array = weights[name]
            if array.shape != shape or array.dtype.newbyteorder("=") != self._dtype:
                got, expected = f"{array.dtype} of shape {array.shape}", f"{self._dtype} of shape {shape}"
                raise _error(WeightError, f"weight {name} does not fit", got, expected, "cast or reshape it")

    def _use_weights(self, weights: dict[str, np.ndarray]) -> None:
        self._check_names(weights)
        self._check_shapes(weights)
        ready = {name: np.require(weights[name], self._dtype, ["C", "A", "W"]) for name in self._weight_shapes}
        packed = _aligned(max(1, self._packed_elements), self._dtype)
        packed[:], sources = 0, {**ready, **self._constants}
        for pack in self._packs:
            raw = (sources[name].ravel() for name in pack.weights)
            self._library.get_function(pack.function)(*raw, packed, int(pack.offset))
        for array in ready.values():
            array.flags.writeable = False
        self._packed, self.weights = self._tensor(packed), ready

    @property
    def threads(self) -> int:
        """The most threads that one call uses, 1 to 256. At first, and after None was set: small steps one, others the
        process's whole pool. Raises InputError for another number."""
        return self._threads or int(self._library.pool_size())

    @threads.setter
    def threads(self, count: int | None) -> None:
        if count is not None and (not isinstance(count, int | np.integer) or not 1 <= count <= 256):
            raise _error(InputError, "the number of threads is wrong", repr(count), "an integer from 1 to 256, or None")
        self._threads = int(count or 0)
        self._library.pool_resize(max(self._threads, self._library.pool_size()))  # it grows, for all modules
        for network in getattr(self, "networks", ()):
            network._threads = self._threads

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        bundle: str | os.PathLike[str] | None = None,
        web: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        """Write this module with its present weights, whole or not at all.

        path: of a .so file, for `load`.
        bundle: of a folder for programs without Python: a library with a C API, header, examples.
        web: of a folder for browsers and node: WebAssembly, an ES module, an AudioWorklet, a page. For target "wasm32".
        name: what names in these folders begin with; None: the folder's name.

        Raises ConfigError where it is not told what to write, and BuildError where it cannot be written."""
        if not EXPORTERS:
            what, do = "runtime.py alone cannot export", "use it with tvm_rnn installed"
            raise _error(TvmRnnError, what, "runtime.py beside a module", "tvm_rnn installed", do)
        EXPORTERS[-1](self, path, bundle, web, name)


def _no_seed(*_arguments: object) -> NoReturn:
    """In place of a function that draws random numbers."""
    do = "mod.generate(steps, prompt=x, seed=1), or forward_train(x, seed=1) of a module for training"
    raise _error(InputError, "this network draws random numbers", "a call without a seed", "one with a seed", do)


# --- steps into arrays that exist: the smallest cost of a call ------------------------------------------------------


class Bound:
    """A step that writes to one set of arrays, which it keeps alive: their identity is what finds it again.

    Inputs and states are copied to memory of its own: compiled code may not read where it writes, and a copy takes less
    time than to find out about a new array.
    """

    def __init__(self, module: Module, y: Array, new: Array, B: int) -> None:
        dtype, plan = module._dtype, module._plan(B)
        target = _writable("y of out", y, (B, *module._output), dtype)[1]
        taken = module._each_state(new, B, lambda what, v, shape, _: _writable(what, v, shape, dtype), list, "out")
        after: list[list[tuple[Array, np.ndarray]]] = [own if isinstance(own, list) else [own] for own in taken]
        written = [target, *(array for parts in after for _, array in parts)]
        if any(np.shares_memory(a, b) for a, b in itertools.combinations(written, 2)):
            raise _error(InputError, "arrays of out overlap", "shared memory", "one memory for each", ONCE)
        inputs = [_aligned(B * math.prod(shape), dtype) for _, shape in module._inputs]
        states = [_aligned(size, dtype) for _, _, size, _, _ in plan]
        self.results: list[tuple[np.ndarray, np.ndarray]] = []  # (the user's, what compiled code wrote)
        # (name, the user's, what says whether it may be written to, own memory, the user's)
        self.update: list[tuple[str, Array, np.ndarray, memoryview | np.ndarray, memoryview | np.ndarray]] = []
        outs = [self._out(target)]
        for before, held, (name, _, size, parts, _) in zip(states, after, plan, strict=True):
            outs.append(self._out(held[0][1]) if len(held) == 1 else _aligned(size, dtype))
            for (value, array), (place, shape) in zip(held, parts, strict=True):
                own: np.ndarray = before[place].reshape(shape)
                copied: tuple[memoryview | np.ndarray, memoryview | np.ndarray] = (own, array)
                if array.flags.carray and array.size:  # bytes are copied faster
                    copied = own.reshape(-1).view(np.uint8).data, array.reshape(-1).view(np.uint8).data
                self.update.append((name, value, _flagged(value, array), *copied))
                if len(held) > 1:
                    self.results.append((array, outs[-1][place].reshape(shape)))
        fixed, *per_row, _ = module._sizes
        numbers = (1, B, 1, module._threads_for(B), 0, 0)
        work = _aligned(max(1, fixed + B * sum(per_row)), dtype)
        rest = (*module._no_rows, module._packed, module._tensor(work))
        self.args = (*numbers, *map(module._tensor, (*inputs, outs[0], *states, *outs[1:])), *rest)
        self.inputs = [a.reshape(B, *shape) for a, (_, shape) in zip(inputs, module._inputs, strict=True)]
        self.x, self.shape, self.dtype, self.states = self.inputs[0], self.inputs[0].shape, dtype, states
        self.y, self.new, self.packed, self.threads = y, new, module._packed, module._threads
        self.flagged = _flagged(y, target)
        self.held = [*map(weakref.ref, {id(a): a for array in written for a in _bases(array)}.values())]
        lists = [(values, [*values]) for values in new.values() if isinstance(values, list | tuple)]
        tensors = [
            (a, a.data_ptr(), a.shape) for a in (y, *(value for _, value, *_ in self.update)) if hasattr(a, "data_ptr")
        ]
        self.rare = (lists, tensors) if lists or tensors or len(inputs) > 1 else None

    def _out(self, array: np.ndarray) -> np.ndarray:
        """Where compiled code writes a result: the user's memory, or, where that has gaps, some that is copied."""
        if array.flags.carray:
            return array.reshape(-1)
        flat = _aligned(array.size, array.dtype)
        self.results.append((array, flat.reshape(array.shape)))
        return flat

    def fits(self, module: Module, B: int) -> bool:
        """Whether batch size, weights, threads, the state's arrays and torch's memory are still those of then."""
        if self.packed is not module._packed or self.threads != module._threads or self.shape[0] != B:
            return False
        lists, tensors = self.rare or ([], [])
        plain = (update for update in self.update if not isinstance(self.new.get(update[0]), list | tuple))
        same = all(self.new.get(name) is value for name, value, *_ in plain)
        same = same and all(a.flags.writeable for a in (self.flagged, *(a for _, _, a, *_ in self.update)))
        same = same and all(len(now) == len(then) and all(map(operator.is_, now, then)) for now, then in lists)
        return same and all(tensor.data_ptr() == at and tensor.shape == shape for tensor, at, shape in tensors)


def step_into(
    module: Module,
    x: Array,
    state: Mapping[str, object] | None,
    out: tuple[Array, State],
    inputs: Mapping[str, object],
) -> tuple[Array, State]:
    """What `Module.step` with out=(y, state) does: see there. Returns `out`."""
    try:
        y, new = out
        bound = module._local.bound
        known = bound.y is y and bound.new is new and bound.packed is module._packed and bound.rare is None
        known = known and bound.threads == module._threads and x.dtype is bound.dtype and x.shape == bound.shape
        known = known and bound.flagged.flags.writeable  # of y; those of states are looked at below
    except (TypeError, ValueError, AttributeError):
        known = False
    if known and x.__class__ is np.ndarray and not inputs:
        bound.x[...] = x
    elif (bound := _take(module, x, out, inputs)) is None:
        return out
    for name, value, flagged, own, array in bound.update:
        # The dict has another array now, or this one is read-only now.
        if (new.get(name) is not value and bound.rare is None) or not flagged.flags.writeable:
            module._local.bound = None
            return step_into(module, x, state, out, inputs)
        own[:] = array
    if state is not new:
        for own, array in zip(bound.states, module._read_states(state, bound.shape[0]), strict=True):
            own[...] = array
    module._sequence(*bound.args)
    for array, own in bound.results:
        array[...] = own
    return out


def _take(module: Module, x: Array, out: tuple[Array, State], inputs: Mapping[str, object]) -> Bound | None:
    """The binding of these arrays, kept or new, with the inputs read. None: there are no rows."""
    arrays, (B,), _ = module._read_inputs(x, inputs, ("B",))
    if module._packed is None:
        raise module._weightless()
    if not isinstance(out, list | tuple) or len(out) != 2 or not isinstance(out[1], Mapping):
        raise _error(InputError, "out is not what a step writes", type(out).__name__, "a pair (y, state)", ONCE)
    y, new = out
    known = module._local.__dict__.setdefault("bounds", {})
    bound: Bound | None = known.get((id(y), id(new)))
    if bound is None or not bound.fits(module, B):
        bound = Bound(module, y, new, B)
        if len(known) >= BOUND:
            known.clear()
        known[id(y), id(new)] = bound  # it holds both: their ids are not used again
    module._local.bound = bound
    for own, array in zip(bound.inputs, arrays, strict=True):
        own[...] = array.reshape(own.shape)
    return bound if B else None


def _flagged(value: Array, array: np.ndarray) -> np.ndarray:
    """What says whether the user's array may be written to: its own flags, or those of the view of other libraries'."""
    return value if isinstance(value, np.ndarray) else array


def _bases(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array and those that it is a view of. NumPy gives other memory to none that has a weak reference."""
    base: object = array
    while isinstance(base, np.ndarray):
        yield base
        base = base.base


def _writable(what: str, value: Array, shape: Shape, dtype: np.dtype) -> tuple[Array, np.ndarray]:
    """The user's object, and the same memory as numpy array."""
    array = _numpy(what, value)
    if array.shape != shape or array.dtype != dtype or not array.flags.writeable:
        got = f"{array.dtype} of shape {array.shape}" + ", read-only" * (not array.flags.writeable)
        raise _error(InputError, f"{what} does not fit", got, f"{dtype} of shape {shape}, writable", ONCE)
    return value, array


# --- files -----------------------------------------------------------------------------------------------------------


def _weights_in(path: str) -> dict[str, np.ndarray]:
    """The arrays of a .safetensors file. Raises WeightError."""
    data = _map_file(path, WeightError)
    return _parse_weights(data, 0, len(data), path, WeightError)


def _check_fit(weights: Mapping[str, np.ndarray], dtype: str) -> None:
    """Raise WeightError where a finite number of a weight would be infinite in this dtype, as dtypes.check_fit does."""
    for name, array in weights.items():
        found = np.abs(array[np.isfinite(array)]) if array.dtype.kind == "f" else np.zeros(0)
        if np.any(found >= np.float64(INFINITE[dtype])):
            got, expected = f"{found.max():g}", f"magnitudes below {INFINITE[dtype]:g}"
            raise _error(WeightError, f"weight {name} would be infinite in {dtype}", got, expected, "scale it")


def load(path: str | os.PathLike[str], *, sha256: str | None = None, anywhere: bool = False) -> Module:
    """The module in a file that `Module.export` wrote. Such a file is code, which runs here: load only what you made or
    trust, or say its digest. The checksum inside a file finds damage, not intent.

    path: of the file.
    sha256: 64 hexadecimal digits, as `tvm-rnn compile` prints them: any other file is refused. None: it is trusted.
    anywhere: also where its code cannot run: such a module can be given weights and exported, not called.

    Returns a Module, or its subclass for training, GPUs, or models of several networks. Raises LoadError, before any of
    its code runs, where the file is not that one, damaged, newer, or for another machine."""
    opened, kind = _open_container(path, copied=sha256 is not None), Module
    if sha256 is not None and (found := hashlib.sha256(opened.data).hexdigest()) != str(sha256).lower():
        what = f"{opened.path!r} is another file than the one that was asked for"
        raise _error(LoadError, what, f"SHA-256 {found}", sha256, "find out who changed it")
    for fact, (file, name) in KINDS.items():
        if fact in opened.manifest:  # only its own files are imported
            kind = getattr(importlib.import_module(f".{file}", __package__), name)
            break
    try:
        return kind(path, opened, anywhere)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        what = f"{opened.path!r} has an unusable manifest"
        raise _error(
            LoadError, what, f"{type(error).__name__}: {error}", "what its code takes", "export it again"
        ) from error


# --- the end of the process -------------------------------------------------------------------------------------------


def _is_ours(frame: FrameType | None) -> bool:
    """Whether a call of the runtime is under way there."""
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(__name__):
        frame = frame.f_back
    return frame is not None


@atexit.register
def _end_calls() -> None:
    """Wait for other threads' calls, and end these threads by SystemExit. Python before 3.14 ends a daemon thread where
    it waits for Python's lock; inside of tvm_ffi that is a destructor in C++, and the whole process would abort."""
    own, told, quiet, end = threading.get_ident(), set[int](), 0, time.monotonic() + EXIT_SECONDS
    while len(frames := sys._current_frames()) > 1 and quiet < EXIT_LOOKS and time.monotonic() < end:
        inside = {ident for ident, frame in frames.items() if ident != own and _is_ours(frame)}
        for ident in inside - told:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
        told, quiet = told | inside, 0 if inside else quiet + 1
        del frames  # and what these hold
        time.sleep(0.002)  # others have Python's lock meanwhile


__all__ = [
    "DeviceError",
    "InputError",
    "LoadError",
    "Manifest",
    "Module",
    "TvmRnnError",
    "WeightError",
    "cpu_features",
    "load",
    "read_container",
]
