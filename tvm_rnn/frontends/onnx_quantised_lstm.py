"""ONNX Runtime's DynamicQuantizeLSTM, which its quantiser makes of LSTM nodes: weights in 8 bits, x and h rounded to
8 bits as the model runs.

In: a node; its weights are constants. Out: steps that round x, and an LSTM node on weights in float32 whose cell rounds
h (`onnx_cells.in_8_bits`). Sums of such products are whole numbers below 2^24 times a scale: float32 has them as exact
as int32.

ONNX Runtime takes the scale of h of all rows together. Here each row has its own: a row's result does not depend on the
others. At B = 1 they are the same.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable
from .folding import Recurrent
from .onnx_file import Array
from .onnx_nodes import GraphSteps, add_node
from .onnx_recurrent import read_recurrent

if TYPE_CHECKING:
    from onnx import NodeProto

INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
NUMBERS = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")


def is_quantised_lstm(node: NodeProto) -> bool:
    return (node.domain, node.op_type) == ("com.microsoft", "DynamicQuantizeLSTM")


def read_quantised_lstm(steps: GraphSteps, node: NodeProto, found: list[Recurrent]) -> None:
    """Add the node as `read_recurrent` adds an LSTM. Raises Unreadable."""
    if len(node.input) != len(INPUTS) + len(NUMBERS):
        raise Unreadable(f"it has {len(node.input)} inputs, DynamicQuantizeLSTM has {len(INPUTS) + len(NUMBERS)}")
    given = dict(zip((*INPUTS, *NUMBERS), node.input, strict=True))
    given |= {name: steps.keep(_weights(steps, given, name), "float32") for name in "WR"}
    given["X"] = _in_8_bits(steps, node, given["X"])
    plain = import_onnx().helper.make_node("LSTM", [given[name] for name in INPUTS], node.output, name=node.name)
    plain.attribute.extend(node.attribute)
    read_recurrent(steps, plain, found, quantised=True)


def _weights(steps: GraphSteps, given: dict[str, str], name: str) -> Array:
    """[directions, 4 H, in] in float32, of whole numbers [directions, in, 4 H]."""
    whole, scale, zero = (_constant(steps, given[key], key) for key in (name, f"{name}_scale", f"{name}_zero_point"))
    if whole.dtype not in ("int8", "uint8") or whole.ndim != 3:
        raise Unreadable(f"{name} is {whole.dtype} {list(whole.shape)}, expected int8 or uint8 with three axes")
    count, _, width = whole.shape
    for key, value in ((f"{name}_scale", scale), (f"{name}_zero_point", zero)):
        if value.shape not in ((count,), (count, width)):
            raise Unreadable(f"{key} has shape {list(value.shape)}, expected [{count}] or [{count}, {width}]")
    if zero.dtype != whole.dtype:
        raise Unreadable(f"{name}_zero_point is {zero.dtype}, {name} is {whole.dtype}")
    beside = scale.reshape(count, 1, -1).astype(np.float32)
    numbers = whole.astype(np.float32) - zero.reshape(count, 1, -1).astype(np.float32)
    return np.ascontiguousarray(np.swapaxes(numbers * beside, 1, 2))


def _constant(steps: GraphSteps, value: str, name: str) -> Array:
    found = steps.constant(value) if value else None
    if found is None:
        raise Unreadable(f"{name} ({value!r}) is no constant")
    return found


def _in_8_bits(steps: GraphSteps, node: NodeProto, x: str) -> str:
    make = import_onnx().helper.make_node
    whole, scale, zero, result = (steps.fresh(node.output[0] or node.name) for _ in range(4))
    add_node(steps, make("DynamicQuantizeLinear", [x], [whole, scale, zero], name=node.name))
    add_node(steps, make("DequantizeLinear", [whole, scale, zero], [result], name=node.name))
    return result
