"""Arrays that a GPU module is called with: torch's, cupy's, and those of the CPU, behind one small interface.

In: the user's arrays. Out: addresses on the GPU, memory for results from the allocator of the caller's library, and
results of the kind that x was. Used by runtime_cuda.py; needs numpy, and torch or cupy only where the caller does.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Protocol

import numpy as np

from .runtime import Array, Function, Manifest, Shape, _detached

CPU, CUDA = 1, 2  # DLPack's device types
COPIED = 16  # bytes that kernels copy at a time, of arrays whose addresses are multiples of it
PER_THREAD_STREAM = 2  # CUDA's handle: calls with arrays of the CPU from several threads do not wait for each other
KEPT_WORK_BYTES = 32 << 20  # of each thread on each GPU, at most
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
# The functions of a module's library, each with the arch as suffix.
FUNCTIONS = ("allocate", "release", "transfer", "finish", "settle", "capturing")
Library = Mapping[str, Function]


class Owner(Protocol):
    """The module that arrays are for. device: the GPU for those of the CPU; _kinds: what handles arrays, by GPU and
    type."""

    manifest: Manifest
    device: int
    _local: threading.local
    _kinds: dict[tuple[int, type], Arrays]


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """Contiguous values in that dtype; bfloat16 as its bits (uint16), to nearest, ties to even."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # beyond float16 is infinite, as IEEE says
            return np.ascontiguousarray(values, dtype)
    floats = np.ascontiguousarray(values, np.float32)
    bits = floats.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    # Adding to a NaN's bits could make it infinite; its top half with the quiet bit is a NaN still.
    kept: np.ndarray = np.where(np.isnan(floats), (bits >> 16) | np.uint32(0x40), nearest)
    return kept.astype(np.uint16)


def widen(bits: np.ndarray) -> np.ndarray:
    """float32 from the bits of bfloat16."""
    floats: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return floats


def to_numpy(value: Array, widens: bool = False) -> Array:
    """An array of any place as one of numpy's, other things as they are. widens: 16-bit floats become float32."""
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
        halves = widens and value.is_floating_point() and value.dtype.itemsize == 2
        value = (value.float() if halves else value).numpy()
    elif gpu_of(value) is not None and hasattr(value, "get"):  # cupy
        value = value.get()
    if widens and isinstance(value, np.ndarray) and value.dtype.name in ("float16", "bfloat16"):
        value = value.astype(np.float32)
    return value


def sender(like: Array) -> Callable[[np.ndarray], Array]:
    """What makes of an array of numpy's one of the kind and at the place of `like`."""
    if hasattr(like, "detach"):  # torch
        torch = importlib.import_module("torch")
        return lambda array: torch.from_numpy(array).to(like.device)
    if gpu_of(like) is not None and hasattr(like, "get"):
        return lambda array: importlib.import_module("cupy").asarray(array)
    return lambda array: array


def gpu_of(value: Array) -> int | None:
    """The number of the GPU that an array is on; None: it is not on one, or no array."""
    if getattr(value, "is_cuda", False):
        return int(value.get_device())  # torch says so, in a tenth of the time that DLPack takes
    if isinstance(value, np.ndarray | list | tuple) or getattr(value, "is_cpu", False):
        return None
    with contextlib.suppress(AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        kind, number = value.__dlpack_device__()
        return int(number) if int(kind) == CUDA else None
    return None


def kind_of(x: object, module: Owner) -> Arrays:
    """What handles arrays of the kind of x. Raises ImportError and ValueError where nothing does."""
    number = gpu_of(x)
    if number is None:
        return HostArrays(module, x)
    known = module._kinds.get((number, type(x)))
    if known is None:
        known = module._kinds[number, type(x)] = _on_a_gpu(x, module, number)
    return known


def _on_a_gpu(x: object, module: Owner, number: int) -> Arrays:
    if type(x).__module__.partition(".")[0] == "cupy":
        return CupyArrays(module, number, None)
    with contextlib.suppress(ImportError):
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            return TorchArrays(module, number, None if isinstance(x, torch.Tensor) else type(x))
    importlib.import_module("cupy")
    return CupyArrays(module, number, type(x))


def _from_dlpack(kind: type) -> Callable[[Array], Array]:
    """The function that makes that kind of array, from the package where its class is."""
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if "jaxlib" in packages:  # whose arrays are made by another package
        packages.insert(0, "jax")
    for package in packages:
        module = sys.modules.get(package)
        for home in (module, getattr(module, "dlpack", None)):
            maker: Callable[[Array], Array] | None = getattr(home, "from_dlpack", None)
            if package != "builtins" and maker is not None:
                return maker
    return lambda array: array


class GpuArrays(ABC):
    """What a module does with arrays that are on one GPU. Its own ones are flat and of the network's dtype where
    nothing else is said; memory is not initialised. Subclasses say what differs between the arrays' libraries."""

    def __init__(self, library: ModuleType, module: Owner, number: int, back: type | None) -> None:
        self.lib, self.number, self.back = library, number, back
        self.kind = getattr(library, module.manifest["dtype"])

    @abstractmethod
    def make(self, function: Callable[..., Array], *shape: object, dtype: object) -> Array:
        """What a function of the library makes, on this GPU."""

    def empty(self, shape: Shape) -> Array:
        """An array."""
        return self.make(self.lib.empty, shape, dtype=self.kind)

    def full(self, elements: int, value: float) -> Array:
        """An array of one value."""
        return self.make(self.lib.full, (elements,), value, dtype=self.kind)

    def zeros(self, shape: Shape, dtype: str) -> Array:
        """An array of zeros."""
        return self.make(self.lib.zeros, shape, dtype=getattr(self.lib, dtype))

    def typed(self, shape: Shape, dtype: str) -> Array:
        """An array in a dtype that may not be the network's."""
        return self.make(self.lib.empty, shape, dtype=getattr(self.lib, dtype))

    def workspace(self, size: int) -> Array:
        """Bytes for one call."""
        return self.make(self.lib.empty, size, dtype=self.lib.uint8)

    lasting = workspace  # bytes that other calls do not use

    def join(self, arrays: list[Array]) -> Array:
        """Arrays one after the other."""
        return self.lib.concatenate([self.flat(array) for array in arrays])

    @abstractmethod
    def address(self, array: Array) -> int:
        """Where it is on the GPU."""

    @abstractmethod
    def copy(self, array: Array) -> Array:
        """The values in memory of their own; enqueued on the caller's stream."""

    def aligned(self, array: Array, always: bool = False) -> Array:
        """The array as kernels read it quickest: one that begins between two multiples of COPIED is copied, where its
        rows are whole pieces of so many bytes, for other rows are read value by value in any case; or always."""
        between = self.address(array) % COPIED and (always or array.shape[-1] * array.itemsize % COPIED == 0)
        return self.copy(array) if between else array

    @abstractmethod
    def adopt(self, value: Array, dtype: str | None = None) -> Array:
        """The user's array, contiguous, on this GPU: the same memory where it is so already, and of that dtype."""

    def adopt_rows(self, value: Array) -> Array:
        """The same for lengths, resets and seeds."""
        return self.adopt(value)

    def flags(self, value: Array) -> Array:
        """0 where a value is 0, else 1, as bytes."""
        return (value != 0).view(self.lib.uint8)

    def flat(self, array: Array) -> Array:
        """The values in one dimension."""
        return array.reshape(-1)

    def part(self, array: Array, first: int, shape: Shape) -> Array:
        """The elements from the one of this number on, as an array of this shape: the same memory."""
        return self.flat(array)[first : first + math.prod(shape)].reshape(shape)

    @staticmethod
    def numpy(array: Array) -> np.ndarray:
        """The values on the CPU; bfloat16 as float32."""
        found: np.ndarray = to_numpy(array, "bfloat16" in str(array.dtype))
        return found

    def result(self, array: Array, shape: Shape) -> Array:
        """What the user gets: an array of the kind of x."""
        array = array if array.shape == shape else array.reshape(shape)
        return array if self.back is None else _from_dlpack(self.back)(array)

    def dtype(self, array: Array) -> str:
        """Its dtype's name."""
        return str(array.dtype).removeprefix("torch.")


class KeptWork(threading.local):
    """Working memory of calls, which stays with the thread: to ask an allocator for it takes as long as a launch. Calls
    of one thread on CUDA's first stream, which no graph captures, use it one after the other; on another stream, whose
    handle may come again while its work is unfinished, and where a call needs much, it is the call's own."""

    def __init__(self) -> None:
        self.blocks = dict[int, tuple[int, Array]]()

    def take(self, number: int, stream: int, size: int, make: Callable[[int], Array]) -> Array:
        """So many bytes on a GPU, of `make` where there is no such memory."""
        if stream or size > KEPT_WORK_BYTES:
            return make(size)
        there, block = self.blocks.get(number, (0, None))
        if there < size:
            self.blocks.pop(number, None)
            block = make(size)
            self.blocks[number] = size, block
        return block

    def forget(self) -> None:
        """Give it back: the next call asks for memory."""
        self.blocks.clear()


kept_work = KeptWork()


class TorchArrays(GpuArrays):
    """torch tensors: memory from torch's allocator, work on torch's current stream."""

    def __init__(self, module: Owner, number: int, back: type | None) -> None:
        super().__init__(sys.modules["torch"], module, number, back)
        self.place = self.lib.device("cuda", number)
        # What torch's own compilers ask, where this torch has it: a tenth of the time that a Stream object takes.
        self._current_stream: Callable[[int], int] | None = getattr(self.lib._C, "_cuda_getCurrentRawStream", None)

    def stream(self) -> int:
        """The CUDA stream for work."""
        if self._current_stream is not None:
            return int(self._current_stream(self.number))
        return int(self.lib.cuda.current_stream(self.number).cuda_stream)

    def make(self, function: Callable[..., Array], *shape: object, dtype: object) -> Array:
        return function(*shape, dtype=dtype, device=self.place)

    def within(self, memory: Array, first: int, shape: Shape) -> Array:
        """An array in lasting memory, from byte `first` on: no view of another one, for autograd."""
        empty = self.empty((0,))
        return empty.set_(memory.untyped_storage(), first // empty.element_size(), shape)

    def adopt(self, value: Array, dtype: str | None = None) -> Array:
        """float32 from NumPy is rounded to bfloat16, which NumPy lacks, if nothing else is asked for."""
        if not isinstance(value, self.lib.Tensor):
            if isinstance(value, np.ndarray):
                rounds = dtype is None and value.dtype == np.float32 and self.kind is self.lib.bfloat16
                value = self.lib.from_numpy(np.ascontiguousarray(value))
                value = value.to(self.kind) if rounds else value
            else:
                value = self.lib.from_dlpack(value)
        value = _detached(value) if value.requires_grad else value
        value = value if dtype is None else value.to(getattr(self.lib, dtype))
        return value.to(self.place).contiguous().resolve_neg()

    def cast(self, value: Array, dtype: str) -> Array:
        """The values in another dtype."""
        return value.to(getattr(self.lib, dtype))

    def copy(self, array: Array) -> Array:
        return array.clone()

    def address(self, array: Array) -> int:
        return int(array.data_ptr())


class CupyArrays(GpuArrays):
    """cupy arrays."""

    def __init__(self, module: Owner, number: int, back: type | None) -> None:
        if module.manifest["dtype"] == "bfloat16":
            raise ValueError("cupy has no bfloat16: use torch tensors")
        super().__init__(sys.modules["cupy"], module, number, back)

    def stream(self) -> int:
        return int(self.lib.cuda.get_current_stream(self.number).ptr)

    def make(self, function: Callable[..., Array], *shape: object, dtype: object) -> Array:
        with self.lib.cuda.Device(self.number):
            return function(*shape, dtype=dtype)

    def within(self, memory: Array, first: int, shape: Shape) -> Array:
        return self.lib.ndarray(shape, self.kind, memory.data + first)

    def adopt(self, value: Array, dtype: str | None = None) -> Array:
        with self.lib.cuda.Device(self.number):
            if not isinstance(value, self.lib.ndarray) and gpu_of(value) is not None:
                value = self.lib.from_dlpack(value)
            return self.lib.ascontiguousarray(value, dtype)

    def cast(self, value: Array, dtype: str) -> Array:
        return self.lib.ascontiguousarray(value, dtype)

    def copy(self, array: Array) -> Array:
        return array.copy()

    def address(self, array: Array) -> int:
        return int(array.data.ptr)


class Piece:
    """An array of the CPU and its place on the GPU: 0 until it is asked for, when the array is sent there."""

    def __init__(self, array: np.ndarray, dtype: str, address: int = 0, memory: Array = None) -> None:
        self.array, self.dtype, self.shape, self.address, self.memory = array, dtype, array.shape, address, memory


class HostArrays:
    """Arrays of the CPU: copied to memory of the module's own, which each thread keeps, and results back."""

    _local = threading.local()

    def __init__(self, module: Owner, x: Array) -> None:
        self.number, self.kind, self.x, self.slot = int(module.device), str(module.manifest["dtype"]), x, 0
        self.item = np.dtype(np.uint16 if self.kind == "bfloat16" else self.kind)
        self.module = module

    def use(self, library: Library) -> None:
        """The module's functions for memory on its GPU."""
        self.library = library
        known = getattr(self.module._local, "slots", None)
        if known is None:
            known = self.module._local.slots = {}
        self.slots = known.setdefault(self.number, [])

    def stream(self) -> int:
        return PER_THREAD_STREAM

    def workspace(self, size: int) -> int:
        """The thread's next piece of memory; grown where it is too small."""
        if self.slot == len(self.slots):
            self.slots.append(Block(self.library, self.number, 0))
        if self.slots[self.slot].size < size:
            self.slots[self.slot] = Block(self.library, self.number, size)
        self.slot += 1
        return int(self.slots[self.slot - 1].address)

    def address(self, piece: Piece) -> int:
        """The piece's place on the GPU; its values are sent there first, unless it is for results."""
        if not piece.address:
            piece.address, size = self.workspace(piece.array.nbytes), piece.array.nbytes
            self.library["transfer"](self.number, PER_THREAD_STREAM, piece.address, piece.array.ctypes.data, size)
        return piece.address

    def empty(self, shape: Shape) -> Piece:
        array = np.empty(shape, self.item)
        return Piece(array, self.kind, self.workspace(array.nbytes))

    def full(self, elements: int, value: float) -> Piece:
        return Piece(narrow(np.full(elements, value), self.kind), self.kind)

    def lasting(self, size: int) -> Block:
        """Memory that other calls do not use."""
        return Block(self.library, self.number, size)

    def within(self, memory: Block, first: int, shape: Shape) -> Piece:
        return Piece(np.empty(shape, self.item), self.kind, memory.address + first, memory)

    def typed(self, shape: Shape, dtype: str) -> Piece:
        """For results in a dtype that is not the network's."""
        array = np.empty(shape, "uint16" if dtype == "bfloat16" else dtype)
        return Piece(array, dtype, self.workspace(array.nbytes))

    def join(self, pieces: list[Piece]) -> Piece:
        return Piece(np.concatenate([self.flat(piece) for piece in pieces]), self.kind)

    def part(self, piece: Piece, first: int, shape: Shape) -> Piece:
        """The elements from the one of this number on, as an array of this shape: the same memory."""
        address = self.address(piece) + first * piece.array.itemsize
        return Piece(piece.array.reshape(-1)[first : first + math.prod(shape)].reshape(shape), piece.dtype, address)

    def numpy(self, piece: Array) -> np.ndarray:
        """The values on the CPU; bfloat16 as float32."""
        if not isinstance(piece, Piece):
            return np.asarray(piece)
        values = self.flat(piece).reshape(piece.shape)
        return widen(values) if piece.dtype == "bfloat16" else values

    def adopt(self, value: Array, dtype: str | None = None) -> Piece:
        """The array, contiguous. float32 is rounded to bfloat16, which NumPy lacks, if nothing else is asked for."""
        if isinstance(value, Piece):
            return value if dtype in (None, value.dtype) else self.adopt(self.numpy(value), dtype)
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            torch = sys.modules["torch"]
            return Piece(value.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16), "bfloat16")
        array = to_numpy(value)
        if not isinstance(array, np.ndarray):
            array = np.from_dlpack(array)
        own = array.dtype.newbyteorder("=").name
        if self.kind == "bfloat16" and own == "bfloat16":
            return Piece(np.ascontiguousarray(array).view(np.uint16), own)
        if dtype is None and self.kind == "bfloat16" and own == "float32":
            dtype = self.kind
        if dtype not in (None, own):
            return Piece(narrow(array, dtype).reshape(array.shape), dtype)
        return Piece(np.array(array, array.dtype.newbyteorder("="), order="C"), own)

    def adopt_rows(self, value: Array) -> Piece:
        return Piece(np.ascontiguousarray(value), str(value.dtype))

    def flags(self, value: Piece) -> Piece:
        return Piece((value.array != 0).view(np.uint8), "uint8")

    def cast(self, value: Piece, dtype: str) -> Piece:
        return Piece(value.array.astype(dtype), dtype)

    def aligned(self, piece: Piece, always: bool = False) -> Piece:
        """The piece: it gets memory that begins at a multiple of 256 bytes."""
        return piece

    def copy(self, piece: Piece) -> Piece:
        return Piece(piece.array.copy(), piece.dtype)

    def zeros(self, shape: Shape, dtype: str) -> Piece:
        return Piece(np.zeros(shape, dtype), dtype)

    def flat(self, piece: Piece) -> np.ndarray:
        """The values, from the GPU if they have been there."""
        array = piece.array
        if piece.address:
            self.library["transfer"](self.number, PER_THREAD_STREAM, array.ctypes.data, piece.address, array.nbytes)
        return array.reshape(-1)

    def result(self, array: Array, shape: Shape) -> Array:
        values = (self.flat(array) if isinstance(array, Piece) else array).reshape(shape)
        dtype = getattr(self.x, "dtype", None)
        torch = sys.modules.get("torch")
        as_given = self.item == values.dtype  # else: gradients of weights
        if torch is not None and isinstance(self.x, torch.Tensor):
            if as_given and self.kind == "bfloat16":
                return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(values)
        if as_given and self.kind == "bfloat16":
            return values.view(dtype) if getattr(dtype, "name", "") == "bfloat16" else widen(values)
        return values if isinstance(self.x, np.ndarray) else _from_dlpack(type(self.x))(values)

    @staticmethod
    def dtype(piece: Piece) -> str:
        return piece.dtype


class Block:
    """Memory on a GPU that is freed when nobody has it any more."""

    def __init__(self, library: Library, number: int, size: int) -> None:
        self.size = size
        self.address = int(library["allocate"](number, size)) if size else 0
        if size:
            weakref.finalize(self, library["release"], number, self.address).atexit = False


Arrays = TorchArrays | CupyArrays | HostArrays
