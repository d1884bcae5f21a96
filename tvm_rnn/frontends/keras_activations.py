"""Keras's activation functions, each written once: for cells as equations, for other layers as steps.

In: a function's name in a layer's config. Out: a function of a `Math` and a value: `EQUATIONS` for traced values of a
cell, `StepMath` for values of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from tvm_rnn.language import functions
from tvm_rnn.language.trace import Value

from .fields import Unreadable
from .folding import Steps

Operand: TypeAlias = "Value | StepValue | float"


def _operator(op: str) -> Callable[[StepValue, Operand], StepValue]:
    return lambda self, other: self.math.make(op, self, other)


def _swapped(op: str) -> Callable[[StepValue, float], StepValue]:
    return lambda self, other: self.math.make(op, other, self)


class StepValue:
    """A value of a model, in arithmetic with others and with numbers."""

    def __init__(self, math: StepMath, name: str) -> None:
        self.math, self.name = math, name

    __add__, __radd__ = _operator("Add"), _swapped("Add")
    __sub__, __rsub__ = _operator("Sub"), _swapped("Sub")
    __mul__, __rmul__ = _operator("Mul"), _swapped("Mul")
    __truediv__, __gt__ = _operator("Div"), _operator("Greater")

    def __neg__(self) -> StepValue:
        return self.math.make("Neg", self)


class StepMath:
    """The functions that activations are made of, as steps. dtype: of their numbers."""

    def __init__(self, steps: Steps, node: str, dtype: str) -> None:
        self.steps, self.node, self.dtype = steps, node, dtype

    def number(self, value: float) -> StepValue:
        return StepValue(self, self.steps.keep(value, self.dtype))

    def make(self, op: str, *values: Operand, **attributes: object) -> StepValue:
        """A step; numbers among the values are constants."""
        names = []
        for value in values:
            assert not isinstance(value, Value)
            names.append((value if isinstance(value, StepValue) else self.number(value)).name)
        return StepValue(self, self.steps.emit(op, names, self.node, **attributes))

    def where(self, condition: Operand, a: Operand, b: Operand) -> StepValue:
        return self.make("Where", condition, a, b)

    def maximum(self, a: Operand, b: Operand) -> StepValue:
        return self.make("Max", a, b)

    def minimum(self, a: Operand, b: Operand) -> StepValue:
        return self.make("Min", a, b)

    def clip(self, x: Operand, low: float, high: float) -> StepValue:
        return self.minimum(self.maximum(x, low), high)

    def softmax(self, x: Operand) -> StepValue:
        return self.make("Softmax", x, axis=-1)

    def __getattr__(self, name: str) -> Callable[[Operand], StepValue]:
        """Functions of one value whose ONNX name is theirs: tanh, sigmoid, exp, ..."""
        op = {"absolute": "Abs"}.get(name, name.capitalize())
        return lambda x: self.make(op, x)


Term = Value | StepValue


class Math(Protocol):
    """The functions that activations are made of: those of `language/functions.py` for a cell, or a StepMath."""

    def where(self, condition: Operand, a: Operand, b: Operand, /) -> Term: ...
    def maximum(self, a: Operand, b: Operand, /) -> Term: ...
    def minimum(self, a: Operand, b: Operand, /) -> Term: ...
    def clip(self, x: Operand, low: float, high: float, /) -> Term: ...
    def softmax(self, x: Operand, /) -> Term: ...
    def absolute(self, x: Operand, /) -> Term: ...
    def erf(self, x: Operand, /) -> Term: ...
    def exp(self, x: Operand, /) -> Term: ...
    def relu(self, x: Operand, /) -> Term: ...
    def sigmoid(self, x: Operand, /) -> Term: ...
    def softplus(self, x: Operand, /) -> Term: ...
    def sqrt(self, x: Operand, /) -> Term: ...
    def tanh(self, x: Operand, /) -> Term: ...


Activation = Callable[[Math, Term], Term]
EQUATIONS: Math = functions


def _elu(f: Math, x: Term, alpha: float) -> Term:
    return f.where(x > 0.0, x, alpha * (f.exp(f.minimum(x, 0.0)) - 1.0))


def _shrink(f: Math, x: Term) -> Term:
    """0 between -0.5 and 0.5."""
    return f.where(f.absolute(x) > 0.5, x, 0.0 * x)


def _sparse_plus(f: Math, x: Term) -> Term:
    return f.where(x > 1.0, x, f.maximum(0.25 * (x + 1.0) * f.maximum(x + 1.0, 0.0), 0.0))


def _log_softmax(f: Math, x: Term) -> Term:
    if isinstance(x, StepValue):
        return x.math.make("LogSoftmax", x, axis=-1)
    shifted: Value = x - functions.max(x, -1, keepdims=True)
    return shifted - functions.log(functions.sum(functions.exp(shifted), -1, keepdims=True))


ACTIVATIONS: dict[str, Activation] = {
    "linear": lambda f, x: x,
    "tanh": lambda f, x: f.tanh(x),
    "sigmoid": lambda f, x: f.sigmoid(x),
    "relu": lambda f, x: f.relu(x),
    "relu6": lambda f, x: f.clip(x, 0.0, 6.0),
    "leaky_relu": lambda f, x: f.where(x > 0.0, x, 0.2 * x),
    "elu": lambda f, x: _elu(f, x, 1.0),
    "celu": lambda f, x: _elu(f, x, 1.0),
    "selu": lambda f, x: 1.0507009873554805 * _elu(f, x, 1.6732632423543772),
    "gelu": lambda f, x: 0.5 * x * (1.0 + f.erf(x * (0.5**0.5))),
    "softplus": lambda f, x: f.softplus(x),
    "softsign": lambda f, x: x / (1.0 + f.absolute(x)),
    "exponential": lambda f, x: f.exp(x),
    "hard_sigmoid": lambda f, x: f.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hard_tanh": lambda f, x: f.clip(x, -1.0, 1.0),
    "hard_silu": lambda f, x: x * f.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "silu": lambda f, x: x * f.sigmoid(x),
    "mish": lambda f, x: x * f.tanh(f.softplus(x)),
    "log_sigmoid": lambda f, x: -f.softplus(-x),
    "squareplus": lambda f, x: 0.5 * (x + f.sqrt(x * x + 4.0)),
    "tanh_shrink": lambda f, x: x - f.tanh(x),
    "soft_shrink": lambda f, x: f.maximum(x - 0.5, 0.0) - f.maximum(-x - 0.5, 0.0),
    "hard_shrink": _shrink,
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": lambda f, x: f.clip(0.5 * (x + 1.0), 0.0, 1.0),
    "softmax": lambda f, x: f.softmax(x),
    "log_softmax": _log_softmax,
}
ACTIVATIONS |= {"swish": ACTIVATIONS["silu"], "hard_swish": ACTIVATIONS["hard_silu"]}


def activation_name(config: object) -> str:
    """The name of the function that a config means. Raises Unreadable for one that is not Keras's, or has arguments."""
    if config is None:
        return "linear"
    name = config.get("config") if isinstance(config, dict) and config.get("class_name") == "function" else config
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise Unreadable(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    return name
