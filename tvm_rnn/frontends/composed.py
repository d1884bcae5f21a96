"""Operations that come to others of the runtime's table, so that the table has one way to compute each thing.

In: a step, and what makes more of them. Out: steps whose operations are rows of the table, the last one of which makes
what the step does.

Rewrite: Gemm(a, b, c, transB=1)  -->  Add(MatMul(a, Transpose(b)), c)
         Sum(a, b, c)             -->  Add(Add(a, b), c)
         ReduceL2(x)              -->  Sqrt(ReduceSum(Mul(x, x)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import ArrayLike

from tvm_rnn.network.program import Step

from .fields import Fields, Unreadable, integer, number


class Maker(Protocol):
    """What more steps are made by: `folding.Steps`."""

    def emit(self, op: str, inputs: Sequence[str], node: str, **attributes: object) -> str: ...

    def keep(self, value: ArrayLike, dtype: str = "int64") -> str: ...

    def dtype(self, name: str) -> str: ...


@dataclass
class _Form:
    """A step in the making. Calls add steps on values, and on numbers of the first input's dtype."""

    steps: Maker
    step: Step

    def __call__(self, op: str, *inputs: str | float, **attributes: object) -> str:
        return self.steps.emit(op, self.named(inputs), self.step.node, **attributes)

    def last(self, op: str, *inputs: str | float, **attributes: object) -> Step:
        return Step(op, tuple(self.named(inputs)), self.step.outputs, attributes, self.step.node)

    def named(self, inputs: Sequence[str | float]) -> list[str]:
        return [own if isinstance(own, str) else self.steps.keep(own, self.dtype) for own in inputs]

    @property
    def dtype(self) -> str:
        found = self.steps.dtype(self.step.inputs[0])
        if not found:
            raise Unreadable(f"the dtype of {self.step.inputs[0]!r} is not known")
        return "float32" if found == "bfloat16" else found

    @property
    def attributes(self) -> Fields:
        return self.step.attributes


def as_others(steps: Maker, step: Step) -> Step | None:
    """The last of the steps that a step comes to, after those before it; None: it stays. Raises Unreadable."""
    if not is_composed(step.op, len(step.inputs)):
        return None
    return COMPOSED[step.op](_Form(steps, step), *step.inputs)


def is_composed(op: str, operands: int) -> bool:
    """Whether an operation with so many operands comes to others."""
    return op in COMPOSED and not (op in IN_PAIRS and operands == 2)


def _gemm(form: _Form, a: str, b: str, c: str = "") -> Step:
    first, second = (
        form("Transpose", name, perm=[1, 0]) if integer(form.attributes, key, 0) else name
        for name, key in ((a, "transA"), (b, "transB"))
    )
    alpha, beta = (number(form.attributes, name, 1.0) for name in ("alpha", "beta"))
    if alpha == 1 and not c:
        return form.last("MatMul", first, second)
    made = form("MatMul", first, second)
    if not c:
        return form.last("Mul", made, alpha)
    made = made if alpha == 1 else form("Mul", made, alpha)
    return form.last("Add", made, c if beta == 1 else form("Mul", c, beta))


def _pairs(op: str) -> Callable[..., Step]:
    def chained(form: _Form, first: str, *others: str) -> Step:
        if not others:
            return form.last("Identity", first)
        for name in others[:-1]:
            first = form(op, first, name)
        return form.last(op, first, others[-1])

    return chained


def _mean(form: _Form, first: str, *others: str) -> Step:
    for name in others:
        first = form("Add", first, name)
    return form.last("Div", first, float(1 + len(others)))


def _sum_of(op: str, operands: int) -> Callable[..., Step]:
    """A sum of what an operation makes of an element, or of it and itself."""

    def reduced(form: _Form, x: str, *axes: str) -> Step:
        own = form(op, *[x] * operands)
        return form.last("ReduceSum", own, *axes, **form.attributes)

    return reduced


def _root_of_squares(form: _Form, x: str, *axes: str) -> Step:
    kind = form.dtype
    wide = x if kind.startswith("float") else form("Cast", x, dtype="float64")
    total = form("ReduceSum", form("Mul", wide, wide), *axes, **form.attributes)
    return form.last("Sqrt", total) if wide == x else form.last("Cast", form("Sqrt", total), dtype=kind)


def _gelu(form: _Form, x: str) -> Step:
    if form.attributes.get("approximate", "none") == "tanh":
        cube = form("Mul", form("Mul", form("Mul", x, x), x), 0.044715)
        inner = form("Tanh", form("Mul", form("Add", x, cube), math.sqrt(2 / math.pi)))
    else:
        inner = form("Erf", form("Mul", x, math.sqrt(0.5)))
    return form.last("Mul", form("Mul", x, 0.5), form("Add", inner, 1.0))


def _selu(form: _Form, x: str) -> Step:
    alpha = number(form.attributes, "alpha", 1.6732632423543772)
    gamma = number(form.attributes, "gamma", 1.0507009873554805)
    return form.last("Mul", form("Elu", x, alpha=alpha), gamma)


def _hard_sigmoid(form: _Form, x: str) -> Step:
    alpha, beta = number(form.attributes, "alpha", 0.2), number(form.attributes, "beta", 0.5)
    return form.last("Clip", form("Add", form("Mul", x, alpha), beta), min=0.0, max=1.0)


def _hard_swish(form: _Form, x: str) -> Step:
    return form.last("Mul", x, form("Clip", form("Add", form("Div", x, 6.0), 0.5), min=0.0, max=1.0))


def _softsign(form: _Form, x: str) -> Step:
    return form.last("Div", x, form("Add", form("Abs", x), 1.0))


def _prelu(form: _Form, x: str, slope: str) -> Step:
    return form.last("Where", form("GreaterOrEqual", x, 0.0), x, form("Mul", slope, x))


def _thresholded(form: _Form, x: str) -> Step:
    below = form("LessOrEqual", x, number(form.attributes, "alpha", 1.0))
    return form.last("Where", below, 0.0, x)  # NaN stays


IN_PAIRS = {"Max", "Min"}  # rows of the table, of two operands
COMPOSED: dict[str, Callable[..., Step]] = {
    "Gemm": _gemm,
    "Sum": _pairs("Add"),
    "Max": _pairs("Max"),
    "Min": _pairs("Min"),
    "Mean": _mean,
    "ReduceSumSquare": _sum_of("Mul", 2),
    "ReduceL1": _sum_of("Abs", 1),
    "ReduceL2": _root_of_squares,
    "Gelu": _gelu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Softsign": _softsign,
    "PRelu": _prelu,
    "ThresholdedRelu": _thresholded,
}
