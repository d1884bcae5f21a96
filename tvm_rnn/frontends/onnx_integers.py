"""Operators on quantised numbers that come to others: what they multiply is shifted, or scaled, before and after.

In: ConvInteger, QLinearConv and QLinearMatMul nodes. Out: nodes that mean the same, on new names.

Rewrite: ConvInteger(x, w, a, b)  -->  Conv(int32(x) - a, int32(w) - b)
         QLinearMatMul(x, w)      -->  QuantizeLinear(MatMul(DequantizeLinear(x), DequantizeLinear(w)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable
from .folding import Steps

if TYPE_CHECKING:
    from onnx import NodeProto

INT32, FLOAT = 6, 1


class _Nodes:
    """The nodes so far; each call adds one and returns the name of what it makes."""

    def __init__(self, steps: Steps, origin: NodeProto) -> None:
        self.steps, self.origin = steps, origin
        self.inputs = [*origin.input, *[""] * 9]
        self.made: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, into: str = "", **attributes: object) -> str:
        into = into or self.steps.fresh(self.origin.output[0])
        made = import_onnx().helper.make_node(op, inputs, [into], name=self.origin.name, **attributes)
        self.made.append(made)
        return into

    def last(self, op: str, inputs: Sequence[str], into: str) -> None:
        """A node with the attributes of the one that is replaced."""
        self(op, *inputs, into=into)
        self.made[-1].attribute.extend(self.origin.attribute)

    def whole(self, value: str, zero: str, behind: int = 0) -> str:
        """The value without its zero point, in int32. behind: how many axes are behind that of the zero points."""
        value = self("Cast", value, to=INT32)
        return self("Sub", value, self("Cast", self.beside(zero, behind), to=INT32)) if zero else value

    def beside(self, numbers: str, behind: int) -> str:
        """Numbers along an axis, or one number, for arithmetic with an array that has more axes behind that."""
        if (known := self.steps.constant(numbers)) is None or known.size == 1:
            return numbers
        return self("Reshape", numbers, self.steps.keep([-1] + [1] * behind))

    def behind(self, weights: str) -> int:
        """How many axes a filter has."""
        shape = self.steps.shape(weights)
        if shape is None:
            raise Unreadable(f"the shape of {weights!r} is not known")
        return len(shape) - 1


def _conv_integer(nodes: _Nodes) -> None:
    x, w, x_zero, w_zero = nodes.inputs[:4]
    shifted = [nodes.whole(x, x_zero), nodes.whole(w, w_zero, nodes.behind(w))]
    nodes.last("Conv", shifted, nodes.origin.output[0])


def _linear_conv(nodes: _Nodes) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = nodes.inputs[:9]
    behind = nodes.behind(w)
    filters = nodes("Mul", nodes("Cast", nodes.whole(w, w_zero, behind), to=FLOAT), nodes.beside(w_scale, behind))
    own = [nodes("DequantizeLinear", x, x_scale, x_zero), filters]
    if bias:
        own.append(nodes("Mul", nodes("Cast", bias, to=FLOAT), nodes("Mul", x_scale, w_scale)))
    made = nodes.steps.fresh(nodes.origin.output[0])
    nodes.last("Conv", own, made)
    nodes("QuantizeLinear", made, y_scale, y_zero, into=nodes.origin.output[0])


def _linear_matmul(nodes: _Nodes) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = nodes.inputs[:8]
    one, two = nodes("DequantizeLinear", a, a_scale, a_zero), nodes("DequantizeLinear", b, b_scale, b_zero)
    nodes("QuantizeLinear", nodes("MatMul", one, two), y_scale, y_zero, into=nodes.origin.output[0])


FORMS: dict[str, Callable[[_Nodes], None]] = {
    "ConvInteger": _conv_integer,
    "QLinearConv": _linear_conv,
    "QLinearMatMul": _linear_matmul,
}


def as_others(steps: Steps, node: NodeProto) -> list[NodeProto]:
    """Nodes in the place of one whose operator is in FORMS. Raises Unreadable."""
    nodes = _Nodes(steps, node)
    FORMS[node.op_type](nodes)
    return nodes.made
