"""The body of an ONNX Scan as equations: its operators on traced values of one step of one row.

In: a body's nodes, from `onnx_scan_body.py`, and `onnx_rows.py`'s values. Out: such values, or Unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tvm_rnn.graph.ops import TABLE
from tvm_rnn.language import functions as f
from tvm_rnn.language.trace import Value, apply
from tvm_rnn.network.program import Step
from tvm_rnn.surroundings.evaluation import reshaped

from ..errors import CellError
from .fields import Fields, Unreadable, integer, integers, number, text
from .folding import Steps
from .onnx_body import SAME
from .onnx_nodes import KNOWN as ORDINARY
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


def evaluate(steps: Steps, op: str, items: Items, attributes: Fields, outputs: int = 1) -> list[Item]:
    """The outputs of a node, so many. steps: of the model, which says how much may be made of constants. Raises
    Unreadable."""
    given = [item for item in items if item is not None]
    try:
        if op == "Shape":
            made: Item | list[Item] = shape_of(given[0], attributes)
        elif all(item.known and not item.batched for item in given):
            made = _known(steps, Step(op, (), ("",) * outputs, attributes), items)
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
            steps.make(op, size)
    return found


def _known(steps: Steps, step: Step, items: Items) -> list[Item]:
    """A node whose inputs are all known: sizes with BATCH among them, too, are cut and joined as any numbers."""
    op, attributes = step.op, step.attributes
    arrays = [None if item is None else np.asarray(item.data) for item in items]
    if not any(map(has_batch_size, items)):
        return [Item(value) for value in steps.compute(step, arrays)]
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
    return [Item(value) for value in steps.compute(step, arrays)]


# --- nodes that move elements: in other shapes, cut, joined or repeated, batch and all --------------------------------


Operator = Callable[[Items, Fields], Item | list[Item]]
MOST_PARTS = 64  # that one node may cut a value into


def _transpose(items: Items, a: Fields) -> Item:
    item = first_of(items)
    rank = len(item.shape) + item.batched
    perm = integers(a, "perm") if "perm" in a else [*range(rank)][::-1]
    if item.batched:
        if perm[:1] != [0]:
            raise Unreadable("a transposition moves the batch")
        perm = [p - 1 for p in perm[1:]]
    return Item(f.transpose(item.data, perm) if len(perm) > 1 else item.data, item.batched)


def _reshape(items: Items, a: Fields) -> Item:
    item, sizes = first_of(items), numbers_of(items, 1, a, "shape") or []
    if a.get("allowzero") and 0 in sizes:
        raise Unreadable("a reshape to nothing")
    if not item.batched:
        return Item(f.reshape(item.data, reshaped(item.shape, sizes, False)))
    total = math.prod(item.shape)
    if sizes[:1] == [-1]:
        sizes = [0, *sizes[1:]]
    if sizes[:1] not in ([0], [BATCH]) or BATCH in sizes[1:]:
        raise Unreadable(f"a reshape to {sizes_text(sizes)} does not keep the batch")
    own = reshaped((1, *item.shape), [1, *sizes[1:]], False)[1:]
    if math.prod(own) != total:
        raise Unreadable(f"a reshape of {total} elements of a row to {list(own)}")
    return Item(f.reshape(item.data, own), True)


def _squeeze(items: Items, a: Fields) -> Item:
    item, data = first_of(items), first_of(items).data
    axes = numbers_of(items, 1, a, "axes")
    if axes is None:
        raise Unreadable("a squeeze of whatever is 1")
    for axis in sorted(axis_of(item, axis) for axis in axes):
        data = f.squeeze(data, axis)
    return Item(data, item.batched)


def _unsqueeze(items: Items, a: Fields) -> Item:
    item, data = first_of(items), first_of(items).data
    axes = numbers_of(items, 1, a, "axes") or []
    rank = len(item.shape) + item.batched + len(axes)
    for axis in sorted(axis if axis >= 0 else axis + rank for axis in axes):
        if item.batched and axis == 0:
            raise Unreadable("a new axis before the batch")
        data = f.expand(data, axis - item.batched)
    return Item(data, item.batched)


def _slice(items: Items, a: Fields) -> Item:
    item, data = first_of(items), first_of(items).data
    starts, ends = numbers_of(items, 1, a, "starts") or [], numbers_of(items, 2, a, "ends") or []
    axes = numbers_of(items, 3, a, "axes") or list(range(len(starts)))
    steps = numbers_of(items, 4, a, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        own = axis_of(item, axis)
        keys = [slice(None)] * len(item.shape)
        keys[own] = slice(start, end, step)
        data = data[tuple(keys)]
    return Item(data, item.batched)


def _split(items: Items, a: Fields) -> list[Item]:
    item = first_of(items)
    axis = axis_of(item, integer(a, "axis", 0))
    sizes = numbers_of(items, 1, a, "split")
    parts = integer(a, "num_outputs") if sizes is None else sizes
    if (parts if isinstance(parts, int) else len(parts)) > MOST_PARTS:
        raise Unreadable("a Split into so many parts")
    return [Item(part, item.batched) for part in f.split(item.data, parts, axis)]


def _gather(items: Items, a: Fields) -> Item:
    item, index = first_of(items), first_of(items[1:])
    if isinstance(index.data, Value) or index.batched or index.data.ndim > 1:
        raise Unreadable("a Gather whose places are not known, or have several axes")
    axis = axis_of(item, integer(a, "axis", 0))
    size = item.shape[axis]
    runs: list[list[int]] = []  # first place of each run of neighbours, and the one behind it
    for place in (int(n) + size * (n < 0) for n in index.data.reshape(-1)):
        if not 0 <= place < size:
            raise Unreadable(f"a Gather of place {place} of {size}")
        if runs and place == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    if len(runs) > MOST_PARTS:
        raise Unreadable("a Gather of so many parts")
    keys: list[slice | int] = [slice(None)] * len(item.shape)
    picked = []
    for start, end in runs:
        keys[axis] = slice(start, end) if index.data.ndim else start
        picked.append(item.data[tuple(keys)])
    return Item(picked[0] if len(picked) == 1 else f.concat(picked, axis), item.batched)


def _concat(items: Items, a: Fields) -> Item:
    given = [item for item in items if item is not None]
    batched = any(item.batched for item in given)
    if batched and not all(item.batched for item in given):
        raise Unreadable("a Concat of values with and without the batch")
    axis = axis_of(given[0], integer(a, "axis"))
    return Item(f.concat([item.data for item in given], axis), batched)


def _expand(items: Items, a: Fields) -> Item:
    item, sizes = first_of(items), numbers_of(items, 1, a, "shape") or []
    batched = item.batched or sizes[:1] == [BATCH]
    own = sizes[1:] if batched else sizes
    if batched and not item.batched and len(item.shape) == len(sizes) and item.shape[0] == 1:
        item = Item(item.data[0])
    if batched and (BATCH in own or sizes[:1] not in ([BATCH], [1]) or len(own) < len(item.shape)):
        raise Unreadable(f"an Expand of {list(item.shape)} of a row to {sizes_text(sizes)}")
    target = np.broadcast_shapes(item.shape, tuple(own))
    if math.prod(target) > MOST_ELEMENTS:  # before there is an array of zeros so large
        raise Unreadable(f"a value of {math.prod(target)} elements in one step of a row")
    return Item(item.data if target == item.shape else item.data + np.zeros(target), batched)


MOVES: dict[str, Operator] = {
    "Identity": lambda items, a: first_of(items),
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Concat": _concat,
    "Expand": _expand,
}


# --- nodes that are not pointwise ------------------------------------------------------------------------------------


def _reduce(function: Callable[..., Data]) -> Operator:
    def reduce(items: Items, a: Fields) -> Item:
        item, axes = first_of(items), numbers_of(items, 1, a, "axes")
        if axes is None and item.batched:
            raise Unreadable("a reduction over all axes, the batch's too")
        own = [*range(len(item.shape))] if axes is None else [axis_of(item, axis) for axis in axes]
        return Item(function(item.data, own, keepdims=bool(a.get("keepdims", 1))), item.batched)

    return reduce


def _softmax(log: bool) -> Operator:
    def softmax(items: Items, a: Fields) -> Item:
        item = first_of(items)
        if a.get("flatten"):
            raise Unreadable("softmax as before operator set 13")
        axis = axis_of(item, integer(a, "axis", -1))
        if not log:
            return Item(f.softmax(item.data, axis), item.batched)
        less = item.data - f.max(item.data, axis, keepdims=True)
        return Item(less - f.log(f.sum(f.exp(less), axis, keepdims=True)), item.batched)

    return softmax


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


def _conv(items: Items, a: Fields) -> Item:
    """Of lines or images of rows, or of the one row of a body without a batch."""
    x, weight = first_of(items), first_of(items[1:])
    rank, rows = len(weight.shape) - 2, len(x.shape) + x.batched
    if weight.batched or rank not in (1, 2) or rows != rank + 2 or not (x.batched or x.shape[0] == 1):
        raise Unreadable(f"a Conv of shapes {list(x.shape)} and {list(weight.shape)} of a row")
    taps, groups = list(weight.shape[2:]), integer(a, "group", 1)
    strides, dilations = (integers(a, name) if name in a else [1] * rank for name in ("strides", "dilations"))
    if "kernel_shape" in a and integers(a, "kernel_shape") != taps:
        raise Unreadable(f"a kernel_shape that is not {taps}")
    if len(strides) != rank or min(strides) < 1 or len(dilations) != rank or len(set(dilations)) > 1:
        raise Unreadable(f"strides {strides} and dilations {dilations}")
    if not 0 < groups <= MOST_PARTS or weight.shape[0] % groups:
        raise Unreadable(f"{groups} groups of {weight.shape[0]} channels")
    image = x.data if x.batched else f.reshape(x.data, x.shape[1:])
    spans = [d * (n - 1) for d, n in zip(dilations, taps, strict=True)]
    zeros = _pads(a, image.shape[1:], strides, spans)
    if math.prod(n + sum(own) for n, own in zip(image.shape, [(0, 0), *zeros], strict=True)) > MOST_ELEMENTS:
        raise Unreadable(f"zeros {zeros} around {list(x.shape)}")
    image, channels, results = f.padded(image, zeros), image.shape[0] // groups, weight.shape[0] // groups
    parts = [
        f.conv(
            image[g * channels : (g + 1) * channels],
            weight.data[g * results : (g + 1) * results],
            padding="valid",
            dilation=dilations[0],
        )
        for g in range(groups)
    ]
    y = f.concat(parts, axis=0)
    if max(strides) > 1:
        every = (slice(None), *(slice(None, None, s) for s in strides))
        y = y[every]
    bias = items[2] if len(items) > 2 else None
    if bias is not None:
        y = y + f.reshape(bias.data, (-1, *[1] * rank))
    return Item(y if x.batched else f.reshape(y, (1, *y.shape)), x.batched)


def _pads(a: Fields, places: Sequence[int], strides: Sequence[int], spans: Sequence[int]) -> list[tuple[int, int]]:
    """Zeros before and after each axis. spans: from a kernel's first tap to its last."""
    rank, how = len(places), text(a, "auto_pad", "NOTSET")
    if how == "NOTSET":
        given = integers(a, "pads") if "pads" in a else [0] * (2 * rank)
        if len(given) != 2 * rank or min(given) < 0:
            raise Unreadable(f"pads {given}")
        return list(zip(given[:rank], given[rank:], strict=True))
    if how == "VALID":
        return [(0, 0)] * rank
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unreadable(f"auto_pad {how!r}")
    less = [max(0, (-(-n // s) - 1) * s + span + 1 - n) for n, s, span in zip(places, strides, spans, strict=True)]
    return [(n // 2, n - n // 2) if how == "SAME_UPPER" else (n - n // 2, n // 2) for n in less]


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


OTHERS: dict[str, Operator] = {
    **MOVES,
    "ReduceSum": _reduce(f.sum),
    "ReduceMax": _reduce(f.max),
    "ReduceMin": _reduce(f.min),
    "ReduceMean": _reduce(f.mean),
    "Softmax": _softmax(log=False),
    "LogSoftmax": _softmax(log=True),
    "LayerNormalization": _layer_normalization,
    "Clip": _clip,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
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


def _row(op: str) -> Callable[..., Data]:
    """A row of our table, on traced values or on arrays."""
    return lambda a, *data: apply(op, *data) if any(isinstance(d, Value) for d in data) else TABLE[op].numpy(*data)


def _power(x: Data, y: Data) -> Data:
    """With a number for an exponent, which may be a product or a square root, where the array is one."""
    return f.power(x, float(y.reshape(())) if isinstance(y, np.ndarray) and y.size == 1 and y.ndim <= x.ndim else y)


def _gelu(a: Fields, x: Data) -> Data:
    if a.get("approximate", "none") != "tanh":
        return f.gelu(x)
    return 0.5 * x * (1.0 + f.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _mod(a: Fields, x: Data, y: Data) -> Data:
    """The rest of x / y: with the sign of x where `fmod` says so, else with that of y."""
    return f.sign(x) * f.mod(f.absolute(x), f.absolute(y)) if integer(a, "fmod", 0) else f.mod(x, y)


POINTWISE: dict[str, Callable[..., Data]] = {
    **{name: _row(op) for op, name in SAME.items()},
    "Softsign": _each(f.softsign),
    "Mod": _mod,
    "Reciprocal": _each(lambda x: 1.0 / x),
    "Pow": _each(_power),
    "Max": _chained(f.maximum),
    "Min": _chained(f.minimum),
    "Sum": _chained(lambda x, y: x + y),
    "Gelu": _gelu,
    "HardSwish": _each(lambda x: x * f.clip(x * (1 / 6) + 0.5, 0.0, 1.0)),
    "Elu": lambda a, x: f.elu(x, number(a, "alpha", 1.0)),
    "LeakyRelu": lambda a, x: f.leaky_relu(x, number(a, "alpha", 0.01)),
    "HardSigmoid": lambda a, x: f.clip(number(a, "alpha", 0.2) * x + number(a, "beta", 0.5), 0.0, 1.0),
}

# Of these, what has no row of its own here may only make what is known before the model runs.
KNOWN = ORDINARY | POINTWISE.keys() | OTHERS.keys() | {"Shape"}
