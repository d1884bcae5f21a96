"""Steps of a program as ONNX nodes of one operator set: what TVM's Relax and ONNX's shape inference read.

In: steps of the runtime's table, whose attributes are those of any version; nodes that became steps as they are
(COMPILED). Out: nodes of operator set OPSET, in which lists and bounds are inputs, on the program's own names; or None
where a step has no such form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.network.program import COMPILED, Step
from tvm_rnn.runtime.runtime_ops import OPERATIONS

from .onnx_file import TYPES, import_onnx

if TYPE_CHECKING:
    from onnx import NodeProto

    from .onnx_nodes import GraphSteps

OPSET = 21
# What was an attribute once and is an input now, in the order of inputs behind the first.
INPUTS = {
    **dict.fromkeys(("Squeeze", "Unsqueeze"), ("axes",)),
    **{name: ("axes",) for name in OPERATIONS if name.startswith("Reduce")},
    "Slice": ("starts", "ends", "axes", "steps"),
    "Split": ("split",),
    "Pad": ("pads", "value", "axes"),
    "Clip": ("min", "max"),
}
VALUES = {"value", "min", "max"}  # of the first input's dtype; the others are whole numbers
# No operators of the standard, or such as keep nothing of a training form.
STRANGE = {"LengthsOfMask", "HoldLast", "Dropout"}


def code_of(dtype: str) -> int:
    """ONNX's number of a dtype."""
    return next(code for code, (own, _) in TYPES.items() if own == dtype)


def node_of(values: GraphSteps, step: Step, dtype: str) -> NodeProto | None:
    """The step as a node. dtype: of its first input."""
    onnx = import_onnx()
    if step.op == COMPILED:
        own = type(node := values.nodes[next(filter(None, step.outputs))])()
        own.CopyFrom(node)
        del own.input[:], own.output[:]
        own.input.extend(step.inputs)
        own.output.extend(step.outputs)
        return own
    if step.op == "Dropout" and not any(step.outputs[1:]):
        return onnx.helper.make_node("Identity", [step.inputs[0]], [step.outputs[0]])
    if step.op not in OPERATIONS or step.op in STRANGE:
        return None
    attributes = dict(step.attributes)
    if attributes.pop("flatten", 0) and attributes.get("axis", 1) != -1:
        return None
    inputs = _inputs(values, step, attributes, dtype)
    if step.op == "Cast":
        attributes = {"to": code_of(str(attributes["dtype"]))}
    elif step.op == "ConstantOfShape":
        value = np.array([float(str(attributes.get("value", 0)))], str(attributes.get("dtype", "float32")))
        attributes = {"value": onnx.numpy_helper.from_array(value)}
    return onnx.helper.make_node(step.op, inputs, [*step.outputs], **attributes)


def _inputs(values: GraphSteps, step: Step, attributes: dict[str, object], dtype: str) -> list[str]:
    """The step's inputs, with constants for what its attributes say, which are taken out."""
    inputs = [*step.inputs]
    for place, name in enumerate(INPUTS.get(step.op, ()), 1):
        given = attributes.pop(name, None)
        if given is None or (place < len(inputs) and inputs[place]):
            continue
        inputs += [""] * (place + 1 - len(inputs))
        number = float(given) if isinstance(given, str) else given
        inputs[place] = values.keep(np.asarray(number), dtype if name in VALUES else "int64")
    return inputs


def renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of the node on other names."""
    own = type(node)()
    own.CopyFrom(node)
    own.input[:] = [names.get(name, "") for name in node.input]
    own.output[:] = [names.get(name, "") for name in node.output]
    return own
