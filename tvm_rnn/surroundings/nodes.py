"""Steps of a program as ONNX nodes of one operator set: what TVM's Relax and ONNX's shape inference read.

In: steps, whose attributes are those of any version. Out: nodes of operator set OPSET, in which lists and bounds are
inputs, on the program's own names; or None where a step has no such form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tvm_rnn.errors import ConfigError, not_installed
from tvm_rnn.network.program import NETWORK, Program, Step

if TYPE_CHECKING:
    from onnx import NodeProto

OPSET = 21
NEWER = {"RMSNormalization": 23, "BitCast": 26}  # operators of a later set
REDUCTIONS = [f"Reduce{n}" for n in ("Sum", "Mean", "Max", "Min", "Prod", "LogSumExp", "SumSquare", "L1", "L2")]
# What was an attribute once and is an input now, in the order of inputs behind the first.
INPUTS = {
    **dict.fromkeys(("Squeeze", "Unsqueeze", *REDUCTIONS), ("axes",)),
    "Slice": ("starts", "ends", "axes", "steps"),
    "Split": ("split",),
    "Pad": ("pads", "value", "axes"),
    "Clip": ("min", "max"),
}
VALUES = {"value", "min", "max"}  # of the first input's dtype; the others are whole numbers
# ONNX's number of an element type.
CODES = {
    **{"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10},
    **{"float64": 11, "uint32": 12, "uint64": 13},
}
DTYPES = {code: dtype for dtype, code in CODES.items()}


def import_onnx() -> ModuleType:
    """The onnx package, or ConfigError where it is missing."""
    try:
        import onnx
    except ImportError:
        raise ConfigError(not_installed("onnx")) from None
    return onnx


class Keeper(Protocol):
    """What more constants can be added to."""

    def keep(self, value: np.ndarray) -> str: ...


class Values:
    """The constants of a program, to which more can be added."""

    def __init__(self, program: Program) -> None:
        self.program, self.constants = program, dict(program.constants)

    def constant(self, name: str) -> np.ndarray | None:
        """A value's elements, where they are known."""
        return self.constants.get(name)

    def keep(self, value: np.ndarray) -> str:
        """A new constant."""
        name = f"constant##{len(self.constants)}"
        self.constants[name] = value
        return name


def opset_of(operators: Sequence[str]) -> int:
    """The operator set in which nodes of these operators are read."""
    return max([OPSET, *(NEWER.get(name, OPSET) for name in operators)])


def node_of(values: Keeper, step: Step, dtype: str) -> NodeProto | None:
    """The step as a node. dtype: of its first input."""
    onnx = import_onnx()
    if step.op == NETWORK:
        return None
    if step.op == "Dropout":
        return onnx.helper.make_node(step.op, [step.inputs[0]], [*step.outputs])
    attributes = dict(step.attributes)
    inputs = _inputs(values, step, attributes, dtype)
    if step.op == "Cast":
        attributes = {"to": CODES[str(attributes["dtype"])]}
    elif step.op == "ConstantOfShape":
        value = np.array([float(str(attributes.get("value", 0)))], str(attributes.get("dtype", "float32")))
        attributes = {"value": onnx.numpy_helper.from_array(value)}
    return onnx.helper.make_node(step.op, inputs, [*step.outputs], **attributes)


def _inputs(values: Keeper, step: Step, attributes: dict[str, object], dtype: str) -> list[str]:
    """The step's inputs, with constants for what its attributes say, which are taken out."""
    inputs = [*step.inputs]
    for place, name in enumerate(INPUTS.get(step.op, ()), 1):
        given = attributes.pop(name, None)
        if given is None or (place < len(inputs) and inputs[place]):
            continue
        inputs += [""] * (place + 1 - len(inputs))
        number = float(given) if isinstance(given, str) else given
        inputs[place] = values.keep(np.array(number, dtype if name in VALUES else "int64"))
    return inputs


def as_inferred(node: NodeProto) -> list[NodeProto]:
    """Nodes of the standard that make what has the same type: for those that are not of it."""
    make = import_onnx().helper.make_node
    if node.op_type == "HoldLast":
        return [make("Identity", [*node.input][:1], [*node.output])]
    if node.op_type == "LengthsOfMask":
        (mask,), (name,) = node.input, node.output
        axis, cast = f"{name}.axis", f"{name}.cast"
        one = make("Constant", [], [axis], value_ints=[1])
        return [
            one,
            make("Cast", [mask], [cast], to=CODES["int32"]),
            make("ReduceSum", [cast, axis], [name], keepdims=0),
        ]
    return [node]


def renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of the node on other names."""
    own = type(node)()
    own.CopyFrom(node)
    own.input[:] = [names.get(name, "") for name in node.input]
    own.output[:] = [names.get(name, "") for name in node.output]
    return own
