"""cuDNN's recurrent layers with each of its algorithms, forward only, as a user of its C API would call them.

In: a `GpuProblem`. Out: `models`: for each algorithm (and way to multiply, and layout) a function of no arguments that
gives (y [T, B, D*H], state). torch chooses one algorithm by rules of its own; here each is a configuration that is
checked and timed, and the best counts. What an algorithm lacks it says in its first call.

The functions are called through ctypes in the very library that torch has loaded (`Cudnn`: a handle, descriptors that
are destroyed with their owner, and `call`, which turns a status into an exception). Names and numbers are those of
cuDNN 9's headers cudnn_adv.h and cudnn_graph.h, whose descriptor API is that of cuDNN 8.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from ctypes import POINTER, c_int, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.runtime.runtime import Manifest

from .models import Problem, Unsupported

if TYPE_CHECKING:
    import torch

    from .models import GpuProblem

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


MODES = {
    "lstm": LSTM,
    "lstm_projection": LSTM,
    "gru": GRU,
    "elman": TANH,
    "elman_relu": RELU,
}
# Precision -> how to multiply. Sums are float32 everywhere.
MATHS = {"bfloat16": TENSOR_OP_MATH, "float16": TENSOR_OP_MATH, "tf32": DEFAULT_MATH, "float32": FMA_MATH}
# Where it may convert, cuDNN multiplies float32 as float16: of inputs up to 1e5 all results are NaN (H200, 9.19).
CONVERTED = {"tf32": TENSOR_OP_MATH_ALLOW_CONVERSION}
# Packed rows are what cuDNN works on; some versions have algorithms for the other layout alone.
LAYOUTS = (("", PACKED), (", unpacked", UNPACKED))
PROJECTION = 8  # the product of an LSTM that comes after those of its gates


def models(problem: GpuProblem, maths: Mapping[str, int] = MATHS) -> dict[str, CudnnModel]:
    """All configurations by name; with lengths, those whose rows are padded. maths: how to multiply, by precision.
    Raises Unsupported for a cell or precision that cuDNN has not, or without cuDNN."""
    point = problem.point
    if point.cell not in MODES:
        raise Unsupported(f"it has no cell {point.cell}")
    if point.precision not in maths:
        raise Unsupported(f"it has no recurrent layers in {point.precision} that it multiplies so")
    cudnn, room = load(), Room(problem)
    return {
        f"{algorithm}{unpacked}": CudnnModel(cudnn, problem, room, algorithm, maths[point.precision], layout)
        for algorithm in ALGORITHMS
        for unpacked, layout in LAYOUTS
        if problem.lengths is None or layout == UNPACKED
    }


class Room:
    """The memory that configurations work in: one after the other, they have it in common."""

    def __init__(self, problem: GpuProblem) -> None:
        self.problem = problem
        self.bytes: torch.Tensor | None = None

    def of(self, count: int) -> torch.Tensor:
        """At least so many bytes. Whoever has less keeps that."""
        import torch

        if self.bytes is None or self.bytes.numel() < count:
            self.bytes = torch.zeros(count, dtype=torch.uint8, device=self.problem.device)
        return self.bytes


class CudnnModel:
    """One configuration. The first call prepares it: descriptors, weights, and code that cuDNN compiles."""

    def __init__(
        self, cudnn: Cudnn, problem: GpuProblem, room: Room, algorithm: str, math_type: int, layout: int
    ) -> None:
        self.cudnn, self.problem, self.point, self.room = cudnn, problem, problem.point, room
        self.algorithm, self.math_type, self.layout = algorithm, math_type, layout
        self.width = dict(self.point.sizes)["P"] if self.point.cell == "lstm_projection" else self.point.hidden
        self.arguments: list[Argument] = []

    @property
    def compiles(self) -> bool:
        return self.algorithm == "PERSIST_DYNAMIC"

    def __call__(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if not self.arguments:
            self.arguments = self._prepare()
        import torch

        device = self.problem.device
        stream = int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None
        self.cudnn.call("cudnnSetStream", self.cudnn.handle, stream)
        self.cudnn.call("cudnnRNNForward", *self.arguments)
        return self.y, self.states

    def _prepare(self) -> list[Argument]:
        import torch

        point, cudnn, handle = self.point, self.cudnn, self.cudnn.handle
        x, rows = self.problem.inputs[0].contiguous(), point.layers * point.directions
        rnn = self._descriptor()
        if self.compiles:
            cudnn.call("cudnnBuildRNNDynamic", handle, rnn, point.batch)
        weights = self._weights(rnn)
        x_data, y_data = self._data(point.input), self._data(point.directions * self.width)
        work, reserve = c_size_t(), c_size_t()
        sizes = (ctypes.byref(work), ctypes.byref(reserve))
        cudnn.call("cudnnGetRNNTempSpaceSizes", handle, rnn, INFERENCE, x_data, *sizes)
        workspace = self.room.of(work.value)
        options = {"dtype": self.problem.dtype, "device": self.problem.device}
        self.y = torch.empty(point.steps, point.batch, point.directions * self.width, **options)
        h = torch.empty(rows, point.batch, self.width, **options)
        c = torch.empty(rows, point.batch, point.hidden, **options)
        self.states = {"h": h, "c": c} if "lstm" in point.cell else {"h": h}
        whole = torch.full((point.batch,), point.steps, dtype=torch.int32, device=self.problem.device)
        lengths = whole if self.problem.lengths is None else self.problem.lengths
        self.kept = (x, weights, workspace, lengths)  # cuDNN knows their addresses alone
        last_c = c.data_ptr() if "c" in self.states else None
        return [
            *(handle, rnn, INFERENCE, lengths.data_ptr()),
            *(x_data, x.data_ptr(), y_data, self.y.data_ptr()),
            *(self._state(self.width), None, h.data_ptr()),  # no states before: zeros
            *(self._state(point.hidden) if last_c else None, None, last_c),
            *(weights.numel(), weights.data_ptr(), workspace.numel(), workspace.data_ptr(), 0, None),
        ]

    def _descriptor(self) -> c_void_p:
        point = self.point
        rnn = self.cudnn.descriptor("RNN", self)
        kinds = (ALGORITHMS[self.algorithm], MODES[point.cell], DOUBLE_BIAS, point.directions - 1)
        types = (LINEAR_INPUT, DATA[point.dtype], DATA["float32"], self.math_type)
        sizes = (point.input, point.hidden, self.width, point.layers)
        padded = int(self.layout == UNPACKED)
        self.cudnn.call("cudnnSetRNNDescriptor_v8", rnn, *kinds, *types, *sizes, None, padded)
        return rnn

    def _data(self, features: int) -> c_void_p:
        """What an array [T, B, features] is to cuDNN."""
        point = self.point
        made = self.cudnn.descriptor("RNNData", self)
        given = self.problem.lengths
        lengths = integers([point.steps] * point.batch if given is None else given.tolist())
        sizes = (point.steps, point.batch, features)
        padding = None if given is None else ctypes.byref(ctypes.c_double(0.0))  # which is 0 in any dtype
        self.cudnn.call("cudnnSetRNNDataDescriptor", made, DATA[point.dtype], self.layout, *sizes, lengths, padding)
        return made

    def _state(self, width: int) -> c_void_p:
        """What an array [L*D, B, width] is to cuDNN."""
        point = self.point
        made = self.cudnn.descriptor("Tensor", self)
        dims = (point.layers * point.directions, point.batch, width)
        strides = (point.batch * width, width, 1)
        arrays = (integers(dims), integers(strides))
        self.cudnn.call("cudnnSetTensorNdDescriptor", made, DATA[point.dtype], 3, *arrays)
        return made

    def _bytes(self, count: int) -> torch.Tensor:
        import torch

        return torch.zeros(count, dtype=torch.uint8, device=self.problem.device)

    # --- weights -----------------------------------------------------------------------------------------------------

    def _weights(self, rnn: c_void_p) -> torch.Tensor:
        point, net = self.point, self.problem.net
        size = c_size_t()
        self.cudnn.call("cudnnGetRNNWeightSpaceSize", self.cudnn.handle, rnn, ctypes.byref(size))
        space = self._bytes(size.value)
        self.shapes = [self.cudnn.descriptor("Tensor", self) for _ in range(2)]
        manifest = Manifest(cell=point.cell, num_layers=point.layers, num_directions=point.directions)
        ours = Problem("", manifest, net.weights, {}, 1)
        for layer in range(point.layers):
            for direction in range(point.directions):
                at = layer * point.directions + direction
                W, R, b, second = ours.gates(layer, direction)
                # Products of the input come first, then those of the state, each in our order of the gates.
                for number, (matrix, bias) in enumerate(zip([*W, *R], [*b, *second], strict=True)):
                    self._put(rnn, space, (at, number), matrix, bias)
                if point.cell == "lstm_projection":
                    self._put(rnn, space, (at, PROJECTION), ours.weight("W_P", layer, direction), None)
        return space

    def _put(
        self,
        rnn: c_void_p,
        space: torch.Tensor,
        which: tuple[int, int],
        matrix: np.ndarray,
        bias: np.ndarray | None,
    ) -> None:
        """One matrix, with its bias, to where cuDNN wants it. which: layer and direction, number of the product."""
        places = (c_void_p(), c_void_p())
        of_matrix, of_bias = zip(self.shapes, map(ctypes.byref, places), strict=True)
        given = (which[0], space.numel(), space.data_ptr(), which[1])
        self.cudnn.call("cudnnGetRNNWeightParams", self.cudnn.handle, rnn, *given, *of_matrix, *of_bias)
        for shape, place, value in zip(self.shapes, places, (matrix, bias), strict=True):
            if value is not None:
                self._copy(shape, place.value, space, self.problem.put(value))

    def _copy(self, descriptor: c_void_p, address: int | None, space: torch.Tensor, value: torch.Tensor) -> None:
        kind, count = c_int(), c_int()
        dims, strides = integers([0] * 3), integers([0] * 3)
        found = (ctypes.byref(kind), ctypes.byref(count), dims, strides)
        self.cudnn.call("cudnnGetTensorNdDescriptor", descriptor, 3, *found)
        offset = (address or 0) - space.data_ptr()
        if not 0 <= offset < space.numel() or offset % value.element_size() or math.prod(dims) != value.numel():
            shape, wanted = [*dims], list(value.shape)
            raise CudnnError(f"cudnnGetRNNWeightParams: a weight of {wanted} is {shape} at byte {offset}")
        view = space.view(value.dtype).as_strided([*dims], [*strides], offset // value.element_size())
        view.copy_(value.reshape([*dims]))
