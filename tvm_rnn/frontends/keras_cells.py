"""Keras's recurrent cells as ours: the zoo's where it has the equations, else one that is made for the functions.

In: the kind of cell and its config. Out: a `Cell`, and its parameters from Keras's arrays. Activation functions are
written once, as equations: traced, they are steps of a model too, for other layers.

    theirs: kernel [I, G*H], recurrent_kernel [H, G*H], bias [G*H] or, of a GRU that resets after, [2, G*H]
    gates:  theirs i f c o and z r h; ours i f g o and r z n
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.language import functions as f
from tvm_rnn.language.cell import Cell
from tvm_rnn.language.trace import Value

from .. import cells
from ..dtypes import summed
from .built_cells import Values, build_recurrent
from .fields import Fields, Unreadable, integer
from .folding import Steps
from .onnx_body import Body

ALONG_AN_AXIS = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


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
    "elu": lambda x: f.elu(x),
    "celu": lambda x: f.elu(x),
    "selu": lambda x: 1.0507009873554805 * f.elu(x, 1.6732632423543772),
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


Array = np.ndarray
GATES = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}
DEFAULTS = {"SimpleRNN": ("tanh", ""), "LSTM": ("tanh", "sigmoid"), "GRU": ("tanh", "sigmoid")}
ORDER = {"SimpleRNN": [0], "LSTM": [0, 1, 2, 3], "GRU": [1, 0, 2]}


@dataclass(frozen=True)
class Form:
    """What decides a cell's equations. activation: of the state; recurrent: of the gates."""

    kind: str
    activation: str
    recurrent: str = ""
    reset_after: bool = False


def form_of(kind: str, config: Fields) -> Form:
    """The form of a cell with that config. Raises Unreadable for a function that is not Keras's."""
    recurrent = "" if kind == "SimpleRNN" else activation_name(config.get("recurrent_activation", "sigmoid"))
    reset_after = kind == "GRU" and bool(config.get("reset_after", True))
    return Form(kind, activation_name(config.get("activation", "tanh")), recurrent, reset_after)


@functools.cache
def cell_of(form: Form) -> Cell:
    """The cell with these equations: the zoo's, or a new one; always the same for the same form."""
    if form.kind == "SimpleRNN" and form.activation in ("tanh", "relu"):
        return cells.elman if form.activation == "tanh" else cells.elman_relu
    if form.kind != "SimpleRNN" and (form.activation, form.recurrent) == DEFAULTS[form.kind]:
        return cells.lstm if form.kind == "LSTM" else cells.gru if form.reset_after else cells.gru_reset_before
    names = [name for name in (form.activation, form.recurrent) if name]
    doc = f"{form.kind} of Keras with {', '.join(names)}{', reset after the product' if form.reset_after else ''}."
    kind = form.kind.removeprefix("Simple")

    def apply(which: int, x: Value, values: Values) -> Value:
        return ACTIVATIONS[form.recurrent if form.recurrent and which == 0 else form.activation](x)

    return build_recurrent(f"keras_{kind.lower()}", doc, kind, apply, reset_after=form.reset_after)


def parameters(form: Form, config: Fields, arrays: Sequence[Array]) -> tuple[dict[str, Array], Array | None]:
    """The cell's parameters, of Keras's arrays in their order; and where a GRU has two biases, those in our order.

    Raises Unreadable where arrays are missing, too many, or of shapes that do not go together.
    """
    gates, order, units = GATES[form.kind], ORDER[form.kind], integer(config, "units")
    bias = bool(config.get("use_bias", True))
    if units < 1:
        raise Unreadable(f"units is {units!r}, expected a whole number of at least 1")
    shapes = [a.shape for a in arrays]
    width = shapes[0][0] if shapes and len(shapes[0]) == 2 else 0
    expected: list[tuple[int, ...]] = [(width, gates * units), (units, gates * units)]
    expected += [(2, gates * units) if form.reset_after else (gates * units,)] if bias else []
    if shapes != expected or width < 1:
        raise Unreadable(f"its arrays have shapes {shapes}, expected {expected}")
    W = arrays[0].T.reshape(gates, units, width)[order]
    R = arrays[1].T.reshape(gates, units, units)[order]
    b = arrays[2] if bias else np.zeros(expected[0][1] * (2 if form.reset_after else 1), W.dtype)
    b = b.reshape(-1, gates, units)[:, order]
    if form.kind == "SimpleRNN":
        return {"W": W[0], "R": R[0], "b": b[0, 0]}, None
    if form.kind == "LSTM":
        return {"W": W, "R": R, "b": b[0]}, None
    if not form.reset_after:
        return {"W": W, "R": R[:2], "R_n": R[2], "b": b[0]}, None
    joined = np.concatenate([summed(b[0, :2], b[1, :2], b.dtype.name), b[0, 2:]])
    return {"W": W, "R": R, "b": joined, "b_R": b[1, 2]}, b.reshape(2, -1)
