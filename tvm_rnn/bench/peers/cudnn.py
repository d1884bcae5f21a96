"""cuDNN's recurrent layers with each of its algorithms, forward only, as a user of its C API would call them.

In: a `GpuProblem`. Out: `models`: for each algorithm (and way to multiply, and layout) a function of no arguments that
gives (y [T, B, D*H], state). torch chooses one algorithm by rules of its own; here each is a configuration that is
checked and timed, and the best counts. What an algorithm lacks it says in its first call.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.runtime.runtime import Manifest

from . import cudnn_api as api
from .models import Problem, Unsupported

if TYPE_CHECKING:
    import torch

    from .models import GpuProblem

MODES = {
    "lstm": api.LSTM,
    "lstm_projection": api.LSTM,
    "gru": api.GRU,
    "elman": api.TANH,
    "elman_relu": api.RELU,
}
# Precision -> how to multiply, and what a configuration is called that is not the first. Sums are float32 everywhere.
MATHS: Mapping[str, Sequence[tuple[str, int]]] = {
    "bfloat16": (("", api.TENSOR_OP_MATH),),
    "float16": (("", api.TENSOR_OP_MATH),),
    # Converted: to a shorter type than TF32, if cuDNN likes; whether that is still right is for the check to say.
    "tf32": (("", api.DEFAULT_MATH), (", converted", api.TENSOR_OP_MATH_ALLOW_CONVERSION)),
    "float32": (("", api.FMA_MATH),),
}
# Packed rows are what cuDNN works on; some versions have algorithms for the other layout alone.
LAYOUTS = (("", api.PACKED), (", unpacked", api.UNPACKED))
PROJECTION = 8  # the product of an LSTM that comes after those of its gates


def models(problem: GpuProblem) -> dict[str, CudnnModel]:
    """All configurations by name. Raises Unsupported for a cell or precision that cuDNN has not, or without cuDNN."""
    point = problem.point
    if point.cell not in MODES:
        raise Unsupported(f"it has no cell {point.cell}")
    if point.precision not in MATHS:
        raise Unsupported(f"it has no recurrent layers in {point.precision}")
    cudnn = api.load()
    return {
        f"{algorithm}{converted}{unpacked}": CudnnModel(cudnn, problem, algorithm, math_type, layout)
        for algorithm in api.ALGORITHMS
        for converted, math_type in MATHS[point.precision]
        for unpacked, layout in LAYOUTS
    }


def version() -> str:
    """cuDNN's own."""
    return api.load().version


class CudnnModel:
    """One configuration. The first call prepares it: descriptors, weights, and code that cuDNN compiles."""

    def __init__(self, cudnn: api.Cudnn, problem: GpuProblem, algorithm: str, math_type: int, layout: int) -> None:
        self.cudnn, self.problem, self.point = cudnn, problem, problem.point
        self.algorithm, self.math_type, self.layout = algorithm, math_type, layout
        self.width = dict(self.point.sizes)["P"] if self.point.cell == "lstm_projection" else self.point.hidden
        self.arguments: list[api.Argument] = []

    @property
    def compiles(self) -> bool:
        return self.algorithm == "PERSIST_DYNAMIC"

    def __call__(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if not self.arguments:
            self.arguments = self._prepare()
        self.cudnn.call("cudnnSetStream", self.cudnn.handle, self._stream())
        self.cudnn.call("cudnnRNNForward", *self.arguments)
        return self.y, self.states

    def _stream(self) -> int | None:
        import torch

        device = self.problem.device
        return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None

    def _prepare(self) -> list[api.Argument]:
        """The arguments of cudnnRNNForward."""
        import torch

        point, cudnn, handle = self.point, self.cudnn, self.cudnn.handle
        x, rows = self.problem.inputs[0].contiguous(), point.layers * point.directions
        rnn = self._descriptor()
        if self.compiles:
            cudnn.call("cudnnBuildRNNDynamic", handle, rnn, point.batch)
        weights = self._weights(rnn)
        x_data, y_data = self._data(point.input), self._data(point.directions * self.width)
        workspace = self._bytes(self._workspace_bytes(rnn, x_data))
        options = {"dtype": self.problem.dtype, "device": self.problem.device}
        self.y = torch.empty(point.steps, point.batch, point.directions * self.width, **options)
        h = torch.empty(rows, point.batch, self.width, **options)
        c = torch.empty(rows, point.batch, point.hidden, **options)
        self.states = {"h": h, "c": c} if "lstm" in point.cell else {"h": h}
        lengths = torch.full((point.batch,), point.steps, dtype=torch.int32, device=self.problem.device)
        self.kept = (x, weights, workspace, lengths)  # cuDNN knows their addresses alone
        last_c = c.data_ptr() if "c" in self.states else None
        return [
            *(handle, rnn, api.INFERENCE, lengths.data_ptr()),
            *(x_data, x.data_ptr(), y_data, self.y.data_ptr()),
            *(self._state(self.width), None, h.data_ptr()),  # no states before: zeros
            *(self._state(point.hidden) if last_c else None, None, last_c),
            *(weights.numel(), weights.data_ptr(), workspace.numel(), workspace.data_ptr(), 0, None),
        ]

    def _descriptor(self) -> ctypes.c_void_p:
        point = self.point
        rnn = self.cudnn.descriptor("RNN", self)
        kinds = (api.ALGORITHMS[self.algorithm], MODES[point.cell], api.DOUBLE_BIAS, point.directions - 1)
        types = (api.LINEAR_INPUT, api.DATA[point.dtype], api.DATA["float32"], self.math_type)
        sizes = (point.input, point.hidden, self.width, point.layers)
        padded = int(self.layout == api.UNPACKED)
        self.cudnn.call("cudnnSetRNNDescriptor_v8", rnn, *kinds, *types, *sizes, None, padded)
        return rnn

    def _data(self, features: int) -> ctypes.c_void_p:
        """What an array [T, B, features] is to cuDNN."""
        point = self.point
        made = self.cudnn.descriptor("RNNData", self)
        lengths = api.integers([point.steps] * point.batch)
        sizes = (point.steps, point.batch, features)
        self.cudnn.call("cudnnSetRNNDataDescriptor", made, api.DATA[point.dtype], self.layout, *sizes, lengths, None)
        return made

    def _state(self, width: int) -> ctypes.c_void_p:
        """What an array [L*D, B, width] is to cuDNN."""
        point = self.point
        made = self.cudnn.descriptor("Tensor", self)
        dims = (point.layers * point.directions, point.batch, width)
        strides = (point.batch * width, width, 1)
        arrays = (api.integers(dims), api.integers(strides))
        self.cudnn.call("cudnnSetTensorNdDescriptor", made, api.DATA[point.dtype], 3, *arrays)
        return made

    def _workspace_bytes(self, rnn: ctypes.c_void_p, x_data: ctypes.c_void_p) -> int:
        work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        sizes = (ctypes.byref(work), ctypes.byref(reserve))
        self.cudnn.call("cudnnGetRNNTempSpaceSizes", self.cudnn.handle, rnn, api.INFERENCE, x_data, *sizes)
        return work.value

    def _bytes(self, count: int) -> torch.Tensor:
        import torch

        return torch.zeros(count, dtype=torch.uint8, device=self.problem.device)

    # --- weights -----------------------------------------------------------------------------------------------------

    def _weights(self, rnn: ctypes.c_void_p) -> torch.Tensor:
        """cuDNN's weight space with our weights in it, as bytes."""
        point, net = self.point, self.problem.net
        size = ctypes.c_size_t()
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
        rnn: ctypes.c_void_p,
        space: torch.Tensor,
        which: tuple[int, int],
        matrix: np.ndarray,
        bias: np.ndarray | None,
    ) -> None:
        """One matrix, with its bias, to where cuDNN wants it. which: layer and direction, number of the product."""
        places = (ctypes.c_void_p(), ctypes.c_void_p())
        of_matrix, of_bias = zip(self.shapes, map(ctypes.byref, places), strict=True)
        given = (which[0], space.numel(), space.data_ptr(), which[1])
        self.cudnn.call("cudnnGetRNNWeightParams", self.cudnn.handle, rnn, *given, *of_matrix, *of_bias)
        for shape, place, value in zip(self.shapes, places, (matrix, bias), strict=True):
            if value is not None:
                self._copy(shape, place.value, space, self.problem.put(value))

    def _copy(self, descriptor: ctypes.c_void_p, address: int | None, space: torch.Tensor, value: torch.Tensor) -> None:
        kind, count = ctypes.c_int(), ctypes.c_int()
        dims, strides = api.integers([0] * 3), api.integers([0] * 3)
        found = (ctypes.byref(kind), ctypes.byref(count), dims, strides)
        self.cudnn.call("cudnnGetTensorNdDescriptor", descriptor, 3, *found)
        offset = (address or 0) - space.data_ptr()
        if not 0 <= offset < space.numel() or offset % value.element_size() or math.prod(dims) != value.numel():
            shape, wanted = [*dims], list(value.shape)
            raise api.CudnnError(f"cudnnGetRNNWeightParams: a weight of {wanted} is {shape} at byte {offset}")
        view = space.view(value.dtype).as_strided([*dims], [*strides], offset // value.element_size())
        view.copy_(value.reshape([*dims]))
