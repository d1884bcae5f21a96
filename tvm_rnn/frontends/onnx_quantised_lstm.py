"""ONNX Runtime's DynamicQuantizeLSTM, which its quantiser makes of LSTM nodes: weights in 8 bits, x and h rounded to
8 bits as the model runs.

In: a node; its weights are constants. Out: steps that round x, and an LSTM node whose products are of bytes
(`onnx_cells.products_of_bytes`): CPUs with instructions for bytes compute them as such.

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
from .onnx_nodes import GraphSteps, add_node, label
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
    own = {name: _weights(steps, given, name) for name in "WR"}
    shifted = any(zero.any() for _, zero, _ in own.values())
    more = dict[str, str]()
    for name, (whole, zero, scale) in own.items():
        none = np.zeros((*whole.shape[:2], 2 if name == "W" else 0), whole.dtype)  # x has its zero point and scale last
        given[name] = steps.keep(np.concatenate([whole, none], 2), "float32")
        more[f"{name}_scale"] = steps.keep(scale, "float32")
        if shifted:
            more[f"{name}_zero"] = steps.keep(zero, "float32")
    given["X"] = _in_8_bits(steps, node, given["X"])
    plain = import_onnx().helper.make_node("LSTM", [given[name] for name in INPUTS], node.output, name=node.name)
    plain.attribute.extend(node.attribute)
    read_recurrent(steps, plain, found, more)


def _weights(steps: GraphSteps, given: dict[str, str], name: str) -> tuple[Array, Array, Array]:
    """Whole numbers [directions, 4 H, in] from -128 to 127, and [directions, 4 H, 1]: their zero points and scales; of
    whole numbers [directions, in, 4 H]."""
    whole, scale, zero = (_constant(steps, given[key], key) for key in (name, f"{name}_scale", f"{name}_zero_point"))
    if whole.dtype not in ("int8", "uint8") or whole.ndim != 3:
        raise Unreadable(f"{name} is {whole.dtype} {list(whole.shape)}, expected int8 or uint8 with three axes")
    count, _, width = whole.shape
    for key, value in ((f"{name}_scale", scale), (f"{name}_zero_point", zero)):
        if value.shape not in ((count,), (count, width)):
            raise Unreadable(f"{key} has shape {list(value.shape)}, expected [{count}] or [{count}, {width}]")
    if zero.dtype != whole.dtype:
        raise Unreadable(f"{name}_zero_point is {zero.dtype}, {name} is {whole.dtype}")
    begin = 128 if whole.dtype == "uint8" else 0
    numbers = np.ascontiguousarray(np.swapaxes(whole.astype(np.float32) - begin, 1, 2))
    beside = (np.broadcast_to(own.reshape(count, -1, 1), (count, width, 1)) for own in (zero, scale))
    zeros, scales = (np.array(own, np.float32) for own in beside)
    return numbers, zeros - begin, scales


def _constant(steps: GraphSteps, value: str, name: str) -> Array:
    found = steps.constant(value) if value else None
    if found is None:
        raise Unreadable(f"{name} ({value!r}) is no constant")
    return found


def _in_8_bits(steps: GraphSteps, node: NodeProto, x: str) -> str:
    """[T, B, I + 2]: x in whole numbers from 0 to 255, its zero point and its scale; as floats."""
    where, (whole, scale, zero) = label(node), (steps.fresh(node.output[0] or node.name) for _ in range(3))
    add_node(steps, import_onnx().helper.make_node("DynamicQuantizeLinear", [x], [whole, scale, zero], name=node.name))
    rows = steps.emit("Slice", [steps.emit("Shape", [x], where), steps.keep([0]), steps.keep([2])], where)
    each = steps.emit("Concat", [rows, steps.keep([1])], where, axis=0)
    parts = [steps.emit("Cast", [value], where, dtype="float32") for value in (whole, zero)]
    ends = [steps.emit("Expand", [value, each], where) for value in (parts[1], scale)]
    return steps.emit("Concat", [parts[0], *ends], where, axis=2)
