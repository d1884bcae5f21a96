"""Keras's activation functions, each written once, as equations: for cells, and traced, as steps, for other layers.

In: a function's name in a layer's config. Out: a function of traced values; or the steps that it comes to.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.language import functions as f
from tvm_rnn.language.trace import Value

from .fields import Unreadable
from .folding import Steps
from .onnx_body import Body

ALONG_AN_AXIS = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def _elu(x: Value, alpha: float) -> Value:
    return f.where(x > 0.0, x, alpha * (f.exp(f.minimum(x, 0.0)) - 1.0))


def _shrink(x: Value) -> Value:
    """0 between -0.5 and 0.5."""
    return f.where(f.absolute(x) > 0.5, x, 0.0 * x)


def _sparse_plus(x: Value) -> Value:
    return f.where(x > 1.0, x, f.maximum(0.25 * (x + 1.0) * f.maximum(x + 1.0, 0.0), 0.0))


def _log_softmax(x: Value) -> Value:
    shifted = x - f.max(x, -1, keepdims=True)
    return shifted - f.log(f.sum(f.exp(shifted), -1, keepdims=True))


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "linear": lambda x: x,
    "tanh": lambda x: f.tanh(x),
    "sigmoid": lambda x: f.sigmoid(x),
    "relu": lambda x: f.relu(x),
    "relu6": lambda x: f.clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: f.where(x > 0.0, x, 0.2 * x),
    "elu": lambda x: _elu(x, 1.0),
    "celu": lambda x: _elu(x, 1.0),
    "selu": lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772),
    "gelu": lambda x: 0.5 * x * (1.0 + f.erf(x * (0.5**0.5))),
    "softplus": lambda x: f.softplus(x),
    "softsign": lambda x: x / (1.0 + f.absolute(x)),
    "exponential": lambda x: f.exp(x),
    "hard_sigmoid": lambda x: f.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hard_tanh": lambda x: f.clip(x, -1.0, 1.0),
    "hard_silu": lambda x: x * f.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "silu": lambda x: x * f.sigmoid(x),
    "mish": lambda x: x * f.tanh(f.softplus(x)),
    "log_sigmoid": lambda x: -f.softplus(-x),
    "squareplus": lambda x: 0.5 * (x + f.sqrt(x * x + 4.0)),
    "tanh_shrink": lambda x: x - f.tanh(x),
    "soft_shrink": lambda x: f.maximum(x - 0.5, 0.0) - f.maximum(-x - 0.5, 0.0),
    "hard_shrink": _shrink,
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": lambda x: f.clip(0.5 * (x + 1.0), 0.0, 1.0),
    "softmax": lambda x: f.softmax(x),
    "log_softmax": _log_softmax,
}
ACTIVATIONS |= {"swish": ACTIVATIONS["silu"], "hard_swish": ACTIVATIONS["hard_silu"]}


def activate(steps: Steps, node: str, dtype: str, value: str, name: str) -> str:
    """A value of a model through a function. node: what messages call the layer."""

    def make(op: str, *inputs: str, **attributes: object) -> str:
        return steps.emit(op, inputs, node, **attributes)

    if name in ALONG_AN_AXIS:
        return make(ALONG_AN_AXIS[name], value, axis=-1)
    x = Node("input", name="x")
    y = ACTIVATIONS[name](Value(x)).node
    return Body(make, steps.keep, dtype, {x: value}).names_of(topological([y]))[y]


def activation_name(config: object) -> str:
    """The name of the function that a config means. Raises Unreadable for one that is not Keras's, or has arguments."""
    if config is None:
        return "linear"
    name = config.get("config") if isinstance(config, dict) and config.get("class_name") == "function" else config
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise Unreadable(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    return name
