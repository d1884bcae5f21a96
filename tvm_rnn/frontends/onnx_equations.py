"""The body of an ONNX Scan as equations: its operators on traced values of one step of one row.

In: a body's nodes, from `onnx_scan_body.py`, and `onnx_rows.py`'s values. Out: such values, or Unreadable. Operators
that only move elements are in `onnx_moves.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm_rnn.language import functions as f
from tvm_rnn.language.trace import Value
from tvm_rnn.runtime.runtime_ops import OPERATIONS

from ..errors import CellError
from .fields import Fields, Unreadable, integer, number, text
from .folding import Steps
from .onnx_moves import MOVES
from .onnx_rows import (
    BATCH,
    MOST_ELEMENTS,
    Data,
    Item,
    Items,
    aligned,
    axis_of,
    first_of,
    has_batch_size,
    numbers_of,
    shape_of,
    sizes_text,
)


def evaluate(steps: Steps, op: str, items: Items, attributes: Fields) -> list[Item]:
    """The outputs of a node. steps: of the model, which says how much may be made of constants. Raises Unreadable."""
    given = [item for item in items if item is not None]
    try:
        if op == "Shape":
            made: Item | list[Item] = shape_of(given[0], attributes)
        elif all(item.known and not item.batched for item in given):
            made = _known(steps, op, items, attributes)
        elif any(map(has_batch_size, items[:1] if op in ("Expand", "Reshape") else items)):
            raise Unreadable("it computes with the batch size")
        elif op in POINTWISE:
            batched, data = aligned(given)
            made = Item(POINTWISE[op](attributes, *data), batched)
        elif op in OTHERS:
            made = OTHERS[op](items, attributes)
        else:
            raise Unreadable("this operator is not supported on values of a step")
    except CellError as error:
        raise Unreadable(f"its operands do not fit: {str(error).splitlines()[0]}") from None
    except (ValueError, IndexError, TypeError, KeyError, ArithmeticError, AttributeError) as reason:
        raise Unreadable(f"it cannot be read: {reason}") from None
    found = made if isinstance(made, list) else [made]
    for item in found:
        size = math.prod(item.shape)
        if (item.batched or not item.known) and not 0 < size <= MOST_ELEMENTS:
            raise Unreadable(f"a value of {size} elements in one step of a row")
        if op == "Expand" or (item.known and item.batched):  # the equations have an array of this size
            steps.room -= size
    if steps.room < 0:
        raise Unreadable("it makes constants that are too large for a file of this size")
    return found


def _known(steps: Steps, op: str, items: Items, attributes: Fields) -> list[Item]:
    """A node whose inputs are all known: sizes with BATCH among them, too, are cut and joined as any numbers."""
    arrays = [None if item is None else np.asarray(item.data) for item in items]
    if not any(map(has_batch_size, items)):
        return [Item(value) for value in steps.compute(op, arrays, attributes)]
    if op in ("Expand", "ConstantOfShape"):
        shape = [int(n) for n in np.asarray(arrays[-1]).reshape(-1)]
        if shape[:1] != [BATCH] or BATCH in shape[1:]:
            raise Unreadable(f"sizes {sizes_text(shape)}: the batch is not the first axis")
        value = arrays[0] if op == "Expand" else number(attributes, "value", 0.0)
        data = np.asarray(value, text(attributes, "dtype") if "dtype" in attributes else None)
        if data.ndim == len(shape):
            data = np.squeeze(data, 0)
        return [Item(np.broadcast_to(data, tuple(shape[1:])), True)]
    whole = op == "Cast" and attributes.get("dtype") in ("int32", "int64")
    moved = op in ("Slice", "Gather", "Squeeze", "Unsqueeze", "Identity", "Reshape")
    if not (whole or op == "Concat" or (moved and not any(map(has_batch_size, items[1:])))):
        raise Unreadable("it computes with the batch size")
    return [Item(value) for value in steps.compute(op, arrays, attributes)]


# --- nodes that are not pointwise ------------------------------------------------------------------------------------


Operator = Callable[[Items, Fields], Item]  # makes a node's only output


def _reduce(function: Callable[..., Data]) -> Operator:
    def reduce(items: Items, a: Fields) -> Item:
        item, axes = first_of(items), numbers_of(items, 1, a, "axes")
        if axes is None:
            raise Unreadable("a reduction over all axes, the batch's too")
        own = [axis_of(item, axis) for axis in axes]
        return Item(function(item.data, own, keepdims=bool(a.get("keepdims", 1))), item.batched)

    return reduce


def _softmax(items: Items, a: Fields) -> Item:
    item = first_of(items)
    if a.get("flatten"):
        raise Unreadable("softmax as before operator set 13")
    return Item(f.softmax(item.data, axis_of(item, integer(a, "axis", -1))), item.batched)


def _log_softmax(items: Items, a: Fields) -> Item:
    item = first_of(items)
    if a.get("flatten"):
        raise Unreadable("softmax as before operator set 13")
    axis = axis_of(item, integer(a, "axis", -1))
    less = item.data - f.max(item.data, axis, keepdims=True)
    return Item(less - f.log(f.sum(f.exp(less), axis, keepdims=True)), item.batched)


def _layer_normalization(items: Items, a: Fields) -> Item:
    """Its first output; the others are for training."""
    item = first_of(items)
    own = [*range(axis_of(item, integer(a, "axis", -1)), 0)]
    centred = item.data - f.mean(item.data, own, keepdims=True)
    variance = f.mean(centred * centred, own, keepdims=True)
    y = Item(centred / f.sqrt(variance + number(a, "epsilon", 1e-5)), item.batched)
    for other, op in zip(items[1:], ("Mul", "Add"), strict=False):
        if other is not None:
            batched, data = aligned([y, other])
            y = Item(POINTWISE[op](a, *data), batched)
    return y


def _matmul(items: Items, a: Fields) -> Item:
    left, right = first_of(items), first_of(items[1:])
    ranks = len(left.shape), len(right.shape)
    if not left.batched and not right.batched:
        return Item(f.matmul(left.data, right.data))
    if left.batched and not right.batched and ranks == (1, 2):  # x W, of rows
        return Item(f.transpose(right.data) @ left.data, True)
    if ranks == (2, 2):
        return Item(f.matmul(left.data, right.data), True)
    raise Unreadable(f"a MatMul of shapes {list(left.shape)} and {list(right.shape)} of a row")


def _gemm(items: Items, a: Fields) -> Item:
    x, weight = first_of(items), first_of(items[1:])
    if weight.batched or len(x.shape) != 2 - x.batched or (x.batched and a.get("transA")):
        raise Unreadable("a Gemm that is not of rows and a matrix")
    if x.batched:
        y = (weight.data if a.get("transB") else f.transpose(weight.data)) @ x.data
    else:
        left = f.transpose(x.data) if a.get("transA") else x.data
        y = f.matmul(left, f.transpose(weight.data) if a.get("transB") else weight.data)
    alpha, beta = number(a, "alpha", 1.0), number(a, "beta", 1.0)
    y = y if alpha == 1 else alpha * y
    bias = items[2] if len(items) > 2 else None
    if bias is None:
        return Item(y, x.batched)
    batched, (y, own) = aligned([Item(y, x.batched), bias])
    return Item(y + (own if beta == 1 else beta * own), batched)


def _einsum(items: Items, a: Fields) -> Item:
    inputs, arrow, out = str(a.get("equation", "")).replace(" ", "").partition("->")
    terms = inputs.split(",")
    given = [item for item in items if item is not None]
    if not arrow or "." in inputs or len(terms) != len(given):
        raise Unreadable(f"an Einsum {a.get('equation')!r}")
    if not any(item.batched for item in given):
        return Item(f.einsum(f"{inputs}->{out}", *(item.data for item in given)))
    rows = {term[:1] for term, item in zip(terms, given, strict=True) if item.batched}
    row = rows.pop() if len(rows) == 1 else ""
    cut = [term[1:] if item.batched else term for term, item in zip(terms, given, strict=True)]
    if not row or any(row in term for term in cut) or out[:1] != row or row in out[1:]:
        raise Unreadable(f"an Einsum {a.get('equation')!r} whose batch is not the first axis")
    return Item(f.einsum(f"{','.join(cut)}->{out[1:]}", *(item.data for item in given)), True)


def _clip(items: Items, a: Fields) -> Item:
    ends = []
    for at, name, function in ((1, "min", f.maximum), (2, "max", f.minimum)):
        item = items[at] if len(items) > at else None
        if item is None and a.get(name) is not None:
            item = Item(np.array(number(a, name)))
        if item is not None:
            ends.append((item, function))
    batched, data = aligned([first_of(items), *(item for item, _ in ends)])
    x = data[0]
    for value, (_, function) in zip(data[1:], ends, strict=True):
        x = function(x, value)
    return Item(x, batched)


def _cast(items: Items, a: Fields) -> Item:
    if not str(a.get("dtype")).startswith("float"):
        raise Unreadable(f"a cast to {a.get('dtype')} of a value of the step")
    item = first_of(items)
    truth = isinstance(item.data, Value) and item.data.node.boolean  # a number of the step stays what it is
    return Item(f.where(item.data, 1.0, 0.0), item.batched) if truth else item


OTHERS: dict[str, Callable[[Items, Fields], Item | list[Item]]] = {
    **MOVES,
    "ReduceSum": _reduce(f.sum),
    "ReduceMax": _reduce(f.max),
    "ReduceMin": _reduce(f.min),
    "ReduceMean": _reduce(f.mean),
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_normalization,
    "Clip": _clip,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Cast": _cast,
}


def _chained(function: Callable[[Data, Data], Data]) -> Callable[..., Data]:
    def chain(a: Fields, *data: Data) -> Data:
        total = data[0]
        for value in data[1:]:
            total = function(total, value)
        return total

    return chain


def _each(function: Callable[..., Data]) -> Callable[..., Data]:
    return lambda a, *data: function(*data)


def _power(x: Data, y: Data) -> Data:
    """With a number for an exponent, which may be a product or a square root, where the array is one."""
    return f.power(x, float(y.reshape(())) if isinstance(y, np.ndarray) and y.size == 1 and y.ndim <= x.ndim else y)


def _gelu(a: Fields, x: Data) -> Data:
    if a.get("approximate", "none") != "tanh":
        return f.gelu(x)
    return 0.5 * x * (1.0 + f.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


POINTWISE: dict[str, Callable[..., Data]] = {
    **{n: _each(getattr(f, n.lower())) for n in ("Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Softplus", "Erf")},
    **{n: _each(getattr(f, n.lower())) for n in ("Sin", "Cos", "Sign", "Softsign")},
    "Abs": _each(f.absolute),
    "Neg": _each(f.negative),
    "Reciprocal": _each(lambda x: 1.0 / x),
    "Add": _each(lambda x, y: x + y),
    "Sub": _each(lambda x, y: x - y),
    "Mul": _each(lambda x, y: x * y),
    "Div": _each(lambda x, y: x / y),
    "Pow": _each(_power),
    "Max": _chained(f.maximum),
    "Min": _chained(f.minimum),
    "Sum": _chained(lambda x, y: x + y),
    "Where": _each(f.where),
    "Equal": _each(lambda x, y: x == y),
    "Less": _each(lambda x, y: x < y),
    "LessOrEqual": _each(lambda x, y: x <= y),
    "Greater": _each(lambda x, y: x > y),
    "GreaterOrEqual": _each(lambda x, y: x >= y),
    "And": _each(f.logical_and),
    "Or": _each(f.logical_or),
    "Not": _each(f.logical_not),
    "Gelu": _gelu,
    "HardSwish": _each(lambda x: x * f.clip(x * (1 / 6) + 0.5, 0.0, 1.0)),
    "Elu": lambda a, x: f.elu(x, number(a, "alpha", 1.0)),
    "LeakyRelu": lambda a, x: f.leaky_relu(x, number(a, "alpha", 0.01)),
    "HardSigmoid": lambda a, x: f.clip(number(a, "alpha", 0.2) * x + number(a, "beta", 0.5), 0.0, 1.0),
}

# Of these, what has no row of its own here may only make what is known before the model runs.
KNOWN = OPERATIONS.keys() | POINTWISE.keys() | OTHERS.keys() | {"Shape"}
