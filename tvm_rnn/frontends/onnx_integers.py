"""Operators on quantised numbers that come to others: what they multiply is shifted, or scaled, before and after.

In: ConvInteger, MatMulInteger, QLinearConv and QLinearMatMul nodes. Out: nodes that mean the same, on new names.

Sums of products of bytes are taken in float32 where the weights are constants that keep all of them below 2^24: as
exact there as in int32, and CPUs multiply floats in a third of the time.

Rewrite: ConvInteger(x, w, a, b)  -->  int32(Conv(float(x) - a, float(w) - b)), or Conv(int32(x) - a, int32(w) - b)
         QLinearMatMul(x, w)      -->  QuantizeLinear(MatMul(DequantizeLinear(x), DequantizeLinear(w)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable
from .folding import Steps

if TYPE_CHECKING:
    from onnx import NodeProto

FLOAT, INT32 = 1, 6
LARGEST = 255  # of a byte less its zero point
EXACT = 1 << 24  # float32 has all whole numbers up to this


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

    def whole(self, value: str, zero: str, behind: int = 0, to: int = INT32) -> str:
        """The value without its zero point. behind: how many axes are behind that of the zero points."""
        value = self("Cast", value, to=to)
        return self("Sub", value, self("Cast", self.beside(zero, behind), to=to)) if zero else value

    def sums(self, weights: str, zero: str, axes: tuple[int, ...]) -> int:
        """The element type that has all sums over these axes of the weights' products with bytes."""
        known, start = self.steps.constant(weights), self.steps.constant(zero) if zero else None
        if known is None or known.ndim <= max(axes) or (zero and (start is None or start.size != 1)):
            return INT32
        whole = known.astype(np.int64) - (0 if start is None else int(start.reshape(())))
        return FLOAT if LARGEST * int(np.abs(whole).sum(axes).max(initial=0)) < EXACT else INT32

    def summed(self, op: str, inputs: Sequence[str], kind: int) -> None:
        """A node with the attributes of the one that is replaced, whose sums become int32."""
        result = self.origin.output[0]
        made = result if kind == INT32 else self.steps.fresh(result)
        self.last(op, inputs, made)
        if made != result:
            self("Cast", made, into=result, to=INT32)

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
    behind = nodes.behind(w)
    kind = nodes.sums(w, w_zero, tuple(range(1, 1 + behind)))
    nodes.summed("Conv", [nodes.whole(x, x_zero, 0, kind), nodes.whole(w, w_zero, behind, kind)], kind)


def _matmul_integer(nodes: _Nodes) -> None:
    """Left as it is where its sums are in int32, or rows may have zero points of their own."""
    a, b, a_zero, b_zero = nodes.inputs[:4]
    kind, known = nodes.sums(b, b_zero, (0,)), nodes.steps.constant(a_zero) if a_zero else None
    maker = nodes.steps.makers.get(a_zero)
    one = not a_zero or (known is not None and known.size == 1) or (maker and maker.op == "DynamicQuantizeLinear")
    if kind == FLOAT and one:
        nodes.summed("MatMul", [nodes.whole(a, a_zero, 0, kind), nodes.whole(b, b_zero, 0, kind)], kind)


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
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _linear_conv,
    "QLinearMatMul": _linear_matmul,
}


def as_others(steps: Steps, node: NodeProto) -> list[NodeProto]:
    """Nodes in the place of one whose operator is in FORMS; none: it stays. Raises Unreadable."""
    nodes = _Nodes(steps, node)
    FORMS[node.op_type](nodes)
    return nodes.made
