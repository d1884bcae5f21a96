"""Operators on quantised numbers that come to others: what they multiply is shifted, or scaled, before and after.

In: ConvInteger, MatMulInteger, QLinearConv and QLinearMatMul nodes. Out: nodes that mean the same, on new names.

Sums of products of bytes are taken in float32 where the weights are constants that keep all of them below 2^24: as
exact there as in int32, and CPUs multiply floats in a third of the time.

QLinearConv and QLinearMatMul round once, where ONNX Runtime does (`onnxruntime/core/mlas/lib/quantize.cpp`): the sum is
a whole number, it becomes a float32, and one multiplier scales it, f = a_scale * b_scale / y_scale:
all results are the same, ties too.

Rewrite: ConvInteger(x, w, a, b)  -->  int32(Conv(float(x) - a, float(w) - b)), or Conv(int32(x) - a, int32(w) - b)
         QLinearConv(x, w, bias)  -->  QuantizeLinear(float(ConvInteger(x, w) + bias) * f, 1)
         QLinearMatMul(a, b)      -->  QuantizeLinear(float(MatMulInteger(a, b)) * f, 1)
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

    def summed(self, op: str, inputs: Sequence[str], kind: int, into: str) -> None:
        """A node with the attributes of the one that is replaced, whose sums become int32."""
        made = into if kind == INT32 else self.steps.fresh(into)
        self.last(op, inputs, made)
        if made != into:
            self("Cast", made, into=into, to=INT32)

    def convolved(self, x: tuple[str, str], w: tuple[str, str], into: str) -> None:
        """ConvInteger of values and their zero points."""
        behind = self.behind(w[0])
        kind = self.sums(*w, tuple(range(1, 1 + behind)))
        self.summed("Conv", [self.whole(*x, 0, kind), self.whole(*w, behind, kind)], kind, into)

    def multiplied(self, a: tuple[str, str], b: tuple[str, str], into: str) -> None:
        """MatMulInteger of values and their zero points, of the first's rows and the second's columns."""
        kind = self.sums(*b, (0,))
        self.summed("MatMul", [self.whole(*a, 1, kind), self.whole(*b, 0, kind)], kind, into)

    def rounded(self, total: str, scales: Sequence[str], zero: str) -> None:
        """The replaced node's result: the sum times the first two scales, divided by the third, in 8 bits."""
        if not self.is_one(zero) or not self.is_one(scales[2]):
            raise Unreadable("rows of the result with scales and zero points of their own are not supported")
        one, two, three = (self("Cast", own, to=FLOAT) for own in scales)
        scaled = self("Mul", self("Cast", total, to=FLOAT), self("Div", self("Mul", one, two), three))
        self("QuantizeLinear", scaled, self.steps.keep(1, "float32"), zero, into=self.origin.output[0])

    def is_one(self, numbers: str) -> bool:
        """Whether it is known to be a single number, or missing."""
        shape = self.steps.shape(numbers) if numbers else ()
        maker = self.steps.makers.get(numbers)
        return (shape is not None and all(size == 1 for size in shape)) or (
            maker is not None and maker.op == "DynamicQuantizeLinear"
        )

    def beside(self, numbers: str, behind: int) -> str:
        """Numbers along an axis, or one number, for arithmetic with an array that has more axes behind that."""
        shape = self.steps.shape(numbers)
        if self.is_one(numbers) or not behind or (shape is not None and len(shape) > 1):
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
    nodes.convolved((x, x_zero), (w, w_zero), nodes.origin.output[0])


def _matmul_integer(nodes: _Nodes) -> None:
    """Left as it is where its sums are in int32, or rows may have zero points of their own."""
    a, b, a_zero, b_zero = nodes.inputs[:4]
    if nodes.sums(b, b_zero, (0,)) == FLOAT and nodes.is_one(a_zero):
        nodes.multiplied((a, a_zero), (b, b_zero), nodes.origin.output[0])


def _linear_conv(nodes: _Nodes) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = nodes.inputs[:9]
    behind, total = nodes.behind(w), nodes.steps.fresh(nodes.origin.output[0])
    nodes.convolved((x, x_zero), (w, w_zero), total)
    if bias:
        total = nodes("Add", total, nodes("Reshape", bias, nodes.steps.keep([-1] + [1] * (behind - 1))))
    nodes.rounded(total, (x_scale, nodes.beside(w_scale, behind - 1), y_scale), y_zero)


def _linear_matmul(nodes: _Nodes) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = nodes.inputs[:8]
    total = nodes.steps.fresh(nodes.origin.output[0])
    nodes.multiplied((a, a_zero), (b, b_zero), total)
    nodes.rounded(total, (a_scale, b_scale, y_scale), y_zero)


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
