"""cuDNN's functions for recurrent layers, called through ctypes in the very library that torch has loaded.

In: nothing, or the path of a library. Out: `Cudnn`: its version, a handle, descriptors that are destroyed with their
owner, and `call`, which turns a status into an exception. Names and numbers are those of cuDNN 9's headers cudnn_adv.h
and cudnn_graph.h, whose descriptor API is that of cuDNN 8.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterable, Iterator
from ctypes import POINTER, c_int, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path

from .models import Unsupported

LIBRARY = "libcudnn.so.9"

ALGORITHMS = {"STANDARD": 0, "PERSIST_STATIC": 1, "PERSIST_DYNAMIC": 2, "PERSIST_STATIC_SMALL_H": 3}
RELU, TANH, LSTM, GRU = range(4)  # GRU resets after the product
DATA = {"float32": 0, "float16": 2, "bfloat16": 9}
DEFAULT_MATH, TENSOR_OP_MATH, TENSOR_OP_MATH_ALLOW_CONVERSION, FMA_MATH = range(4)
DOUBLE_BIAS, LINEAR_INPUT, INFERENCE = 2, 0, 0
UNPACKED, PACKED = 0, 1  # rows of [T, B]; with sequences of one length they lie in the same places
STATUS_NOT_SUPPORTED = 3000  # and the 999 after it, which say why
MOST_LETTERS = 240  # of a reason, for tables' sake

ENUM, OUT = c_int, c_void_p  # OUT: where a function writes a pointer
INTS, SIZE = POINTER(c_int), POINTER(c_size_t)
SIGNATURES: dict[str, list[type]] = {
    "cudnnCreate": [OUT],
    "cudnnSetStream": [c_void_p, c_void_p],
    "cudnnCreateTensorDescriptor": [OUT],
    "cudnnDestroyTensorDescriptor": [c_void_p],
    # descriptor, type, number of dims, dims, strides
    "cudnnSetTensorNdDescriptor": [c_void_p, ENUM, c_int, INTS, INTS],
    # descriptor, dims asked for, type, number of dims, dims, strides
    "cudnnGetTensorNdDescriptor": [c_void_p, c_int, INTS, INTS, INTS, INTS],
    "cudnnCreateRNNDescriptor": [OUT],
    "cudnnDestroyRNNDescriptor": [c_void_p],
    # descriptor; algorithm, cell, biases, directions, input, type, type of sums, math; input, hidden, projected size,
    # layers; dropout, flags
    "cudnnSetRNNDescriptor_v8": [c_void_p, *[ENUM] * 8, *[c_int32] * 4, c_void_p, c_uint32],
    "cudnnBuildRNNDynamic": [c_void_p, c_void_p, c_int],
    "cudnnCreateRNNDataDescriptor": [OUT],
    "cudnnDestroyRNNDataDescriptor": [c_void_p],
    # descriptor, type, layout, T, B, features, length of each row, what to pad with
    "cudnnSetRNNDataDescriptor": [c_void_p, ENUM, ENUM, c_int, c_int, c_int, INTS, c_void_p],
    "cudnnGetRNNWeightSpaceSize": [c_void_p, c_void_p, SIZE],
    # handle, descriptor, layer and direction, size, space, product; descriptor and place of its matrix and of its bias
    "cudnnGetRNNWeightParams": [c_void_p, c_void_p, c_int32, c_size_t, c_void_p, c_int32, c_void_p, OUT, c_void_p, OUT],
    # handle, descriptor, mode, x; bytes of workspace and of what training keeps
    "cudnnGetRNNTempSpaceSizes": [c_void_p, c_void_p, ENUM, c_void_p, SIZE, SIZE],
    # handle, descriptor, mode, lengths on the GPU; x, y; h before and after; c before and after; weights, workspace,
    # what training keeps
    "cudnnRNNForward": [
        *(c_void_p, c_void_p, ENUM, c_void_p),
        *(c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_void_p, c_void_p, c_void_p),
        *(c_void_p, c_void_p, c_void_p),
        *(c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    ],
}


Argument = object  # whatever ctypes takes: numbers, addresses, None


class CudnnError(Exception):
    """A function of cuDNN failed; the text has its name, status and reason. Never leaves the benchmark."""


def integers(values: Iterable[int]) -> ctypes.Array[c_int]:
    """A C array of ints."""
    values = tuple(values)
    return (c_int * len(values))(*values)


class Cudnn:
    """The library, with one handle for this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        library.cudnnGetVersion.restype = c_size_t
        library.cudnnGetErrorString.argtypes, library.cudnnGetErrorString.restype = [c_int], ctypes.c_char_p
        library.cudnnGetLastErrorString.argtypes = [ctypes.c_char_p, c_size_t]
        library.cudnnGetLastErrorString.restype = None

    @property
    def version(self) -> str:
        """Such as 9.19.1: since cuDNN 9 the number is major * 10000 + minor * 100 + patch."""
        number = int(self.library.cudnnGetVersion())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    @functools.cached_property
    def handle(self) -> c_void_p:
        """Made when it is first asked for; needs a GPU."""
        return self._made("cudnnCreate")

    def call(self, name: str, *arguments: Argument) -> None:
        """Raises Unsupported where cuDNN says that it does not support this, CudnnError for any other failure."""
        status = getattr(self.library, name)(*arguments)
        if not status:
            return
        text = ctypes.create_string_buffer(1024)
        self.library.cudnnGetLastErrorString(text, len(text))
        words = [self.library.cudnnGetErrorString(status), *text.value.split()]
        reason = f"{name}: {b' '.join(words).decode(errors='replace')}"[:MOST_LETTERS]
        raise Unsupported(reason) if status // 1000 * 1000 == STATUS_NOT_SUPPORTED else CudnnError(reason)

    def descriptor(self, kind: str, owner: object) -> c_void_p:
        """A new descriptor (kind: "Tensor", "RNN" or "RNNData"), destroyed with its owner."""
        made = self._made(f"cudnnCreate{kind}Descriptor")
        destroy = getattr(self.library, f"cudnnDestroy{kind}Descriptor")
        # Not when Python ends: the GPU's context may be gone by then.
        weakref.finalize(owner, destroy, made).atexit = False
        return made

    def _made(self, name: str) -> c_void_p:
        place = c_void_p()
        self.call(name, ctypes.byref(place))
        return place


def candidates() -> Iterator[tuple[str, int]]:
    """Where the library may be, and how to open it: torch's own is in this process already, or in a wheel beside it."""
    yield LIBRARY, os.RTLD_NOW | os.RTLD_NOLOAD
    import torch

    packages = Path(torch.__file__).resolve().parent.parent
    for folder in (packages / "nvidia" / "cudnn" / "lib", packages / "torch" / "lib"):
        if (folder / LIBRARY).exists():
            yield str(folder / LIBRARY), os.RTLD_NOW
    yield LIBRARY, os.RTLD_NOW


@functools.cache
def load() -> Cudnn:
    """torch's cuDNN. Raises Unsupported where there is none, or none of version 9."""
    for path, mode in candidates():
        try:
            return Cudnn(ctypes.CDLL(path, mode=mode))
        except OSError:
            continue
        except AttributeError as reason:
            raise Unsupported(f"{path} is no cuDNN 9: {reason}") from None
    raise Unsupported(f"{LIBRARY} was found neither in this process nor beside torch")
