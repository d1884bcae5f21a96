"""Keras's layers that look at neighbours, as steps: convolutions, pooling, padding, cropping, repetition.

In: a layer's config, arrays and the value it is called with, from `keras_layers.py`. Out: values. Keras has channels
last, ONNX has them behind the batch: what is computed lies between two transpositions, which moves in a row come to
nothing of. Masks end here, as they do in Keras.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .fields import Unreadable, integer, integers, items, text
from .keras_cells import activate, activation_name
from .keras_recurrent import Call, Value

FIRST = "channels_first"


@dataclass(frozen=True)
class Places:
    """The axes that a layer of a number of dimensions looks along. wide, strides, apart: of each its window, how far it
    moves, and how far its places are from each other."""

    call: Call
    dimensions: int
    wide: Sequence[int]
    strides: Sequence[int]
    apart: Sequence[int]

    @property
    def first(self) -> bool:
        """Whether channels are behind the batch."""
        return self.call.config.get("data_format") == FIRST

    def before(self, value: str) -> str:
        """The value with channels behind the batch."""
        count = self.dimensions
        return value if self.first else self.call.emit("Transpose", value, perm=[0, count + 1, *range(1, count + 1)])

    def behind(self, value: str) -> str:
        """The value as Keras has it."""
        count = self.dimensions
        return value if self.first else self.call.emit("Transpose", value, perm=[0, *range(2, count + 2), 1])

    def padded(self, value: str, filler: float = 0.0) -> str:
        """The value with what the layer's padding adds; how much may follow from sizes."""
        how = text(self.call.config, "padding", "valid")
        if how not in ("valid", "same", "causal") or (how == "causal" and self.dimensions > 1):
            raise Unreadable(f"padding {how!r}")
        reach = [(n - 1) * d + 1 for n, d in zip(self.wide, self.apart, strict=True)]
        if how == "valid" or math.prod(reach) == 1:
            return value
        emit, whole = self.call.emit, self.call.whole
        if how == "causal":
            low, high = whole(reach[0] - 1), whole(0)
        elif math.prod(self.strides) == 1:
            low, high = whole(*((n - 1) // 2 for n in reach)), whole(*(n - 1 - (n - 1) // 2 for n in reach))
        else:  # as many outputs as there are strides begun, the rest shared
            size = emit("Gather", emit("Shape", value), whole(*range(2, self.dimensions + 2)), axis=0)
            rest = emit("Div", emit("Sub", size, whole(1)), whole(*self.strides))
            ends = emit("Add", emit("Mul", rest, whole(*self.strides)), whole(*reach))
            total = emit("Max", emit("Sub", ends, size), whole(0))
            low = emit("Div", total, whole(2))
            high = emit("Sub", total, low)
        none = whole(0, 0)
        pads = emit("Concat", none, low, none, high, axis=0)
        return emit("Pad", value, pads, self.call.numbers(filler))


def _convolved(dimensions: int, kind: str = "") -> Callable[[Call], list[Value]]:
    """A convolution; kind: "Depthwise", of each channel by itself, or "Separable", of these and then over channels."""

    def apply(call: Call) -> list[Value]:
        arrays, biased = call.part.arrays, bool(call.config.get("use_bias", True))
        ranks = [dimensions + 2] * (2 if kind == "Separable" else 1) + [1] * biased
        if [array.ndim for array in arrays] != ranks or any(array.dtype.kind != "f" for array in arrays):
            raise Unreadable(f"its arrays have shapes {[list(array.shape) for array in arrays]}")
        places = _places(call, dimensions, [*arrays[0].shape[:dimensions]])
        x, group = places.before(call.x.name), integer(call.config, "groups", 1) if not kind else 0
        if kind:
            each = np.moveaxis(arrays[0], (-2, -1), (0, 1))  # a filter of every channel, or several
            filters, group = each.reshape(-1, 1, *each.shape[2:]), each.shape[0]
        else:
            filters = np.moveaxis(arrays[0], (-1, -2), (0, 1))
        x = _filtered(places, places.padded(x), filters, group, list(places.strides))
        if kind == "Separable":
            x = _filtered(places, x, np.moveaxis(arrays[1], (-1, -2), (0, 1)), 1, [1] * dimensions)
        if biased:
            shape = [-1] + [1] * dimensions
            x = call.emit("Add", x, call.numbers(arrays[-1].reshape(shape)))
        name = activation_name(call.config.get("activation"))
        return [Value(activate(call.model.steps, call.part.label, call.model.dtype, places.behind(x), name))]

    return apply


def _filtered(places: Places, x: str, filters: np.ndarray, group: int, strides: list[int]) -> str:
    kept = places.call.numbers(filters)
    apart = list(places.apart) if filters.shape[2:] == tuple(places.wide) else [1] * places.dimensions
    return places.call.emit("Conv", x, kept, strides=strides, dilations=apart, group=group)


def _pooled(dimensions: int, op: str) -> Callable[[Call], list[Value]]:
    """The largest or the mean of each window; a mean counts what is there alone."""

    def apply(call: Call) -> list[Value]:
        wide = _numbers(call, "pool_size", dimensions)
        places = _places(call, dimensions, wide, wide)
        x, how = places.before(call.x.name), {"kernel_shape": wide, "strides": list(places.strides)}
        y = call.emit(op, places.padded(x, -math.inf if op == "MaxPool" else 0.0), **how)
        if op == "AveragePool" and call.config.get("padding") == "same":
            ones = call.emit("Expand", call.numbers(1.0), call.emit("Shape", x))
            y = call.emit("Div", y, call.emit(op, places.padded(ones), **how))
        return [Value(places.behind(y))]

    return apply


def _pooled_all(op: str) -> Callable[[Call], list[Value]]:
    def apply(call: Call) -> list[Value]:
        axes = [2, 3] if call.config.get("data_format") == FIRST else [1, 2]
        keep = int(bool(call.config.get("keepdims", False)))
        return [Value(call.emit(op, call.x.name, axes=axes, keepdims=keep))]

    return apply


def _filled(dimensions: int) -> Callable[[Call], list[Value]]:
    """Zeros around."""

    def apply(call: Call) -> list[Value]:
        low, high = _ends(call, "padding", dimensions)
        count = [0] if call.config.get("data_format") == FIRST else []
        sides = [[0, *count, *own, *([] if count else [0])] for own in (low, high)]
        return [Value(call.emit("Pad", call.x.name, call.whole(*sides[0], *sides[1]), call.numbers(0.0)))]

    return apply


def _cropped(dimensions: int) -> Callable[[Call], list[Value]]:
    """What is cut off at both ends."""

    def apply(call: Call) -> list[Value]:
        low, high = _ends(call, "cropping", dimensions)
        begin = 2 if call.config.get("data_format") == FIRST else 1
        ends = [-n if n else np.iinfo(np.int64).max for n in high]
        axes = [*range(begin, begin + dimensions)]
        return [Value(call.emit("Slice", call.x.name, starts=low, ends=ends, axes=axes))]

    return apply


def _repeated(dimensions: int) -> Callable[[Call], list[Value]]:
    """Each place several times."""

    def apply(call: Call) -> list[Value]:
        if call.config.get("interpolation", "nearest") != "nearest":
            raise Unreadable(f"interpolation {call.config['interpolation']!r}: nearest alone is supported")
        begin, x = 2 if call.config.get("data_format") == FIRST else 1, call.x.name
        for axis, times in enumerate(_numbers(call, "size", dimensions), begin):
            rank = dimensions + 2
            more = call.emit("Unsqueeze", x, call.whole(axis + 1))
            more = call.emit("Tile", more, call.whole(*(times if i == axis + 1 else 1 for i in range(rank + 1))))
            sizes = call.emit(
                "Mul", call.emit("Shape", x), call.whole(*(times if i == axis else 1 for i in range(rank)))
            )
            x = call.emit("Reshape", more, sizes)
        return [Value(x)]

    return apply


def _places(call: Call, dimensions: int, wide: list[int], strides: list[int] | None = None) -> Places:
    apart = _numbers(call, "dilation_rate", dimensions) if call.config.get("dilation_rate") else [1] * dimensions
    given = _numbers(call, "strides", dimensions) if call.config.get("strides") is not None else strides
    if min([*wide, *apart, *(given or [1])]) < 1:
        raise Unreadable("a window, a stride or a dilation below 1")
    return Places(call, dimensions, wide, given or [1] * dimensions, apart)


def _numbers(call: Call, name: str, dimensions: int) -> list[int]:
    """A number for each dimension; a config may have one for all."""
    value = call.config.get(name)
    found = [integer(call.config, name)] if isinstance(value, int) else integers(call.config, name)
    if len(found) not in (1, dimensions):
        raise Unreadable(f"{name} has {len(found)} numbers, expected {dimensions}")
    return found * (dimensions // len(found))


def _ends(call: Call, name: str, dimensions: int) -> tuple[list[int], list[int]]:
    """How much before and behind: a number, a number for each dimension, or two of each."""
    value = call.config.get(name)
    each = items(value) if isinstance(value, list | tuple) else [value]
    if dimensions == 1 and len(each) == 2:
        each = [each]
    pairs = [[*items(one)] if isinstance(one, list | tuple) else [one, one] for one in each * (dimensions // len(each))]
    flat = [n for pair in pairs for n in pair]
    if len(pairs) != dimensions or len(flat) != 2 * dimensions or any(type(n) is not int or n < 0 for n in flat):
        raise Unreadable(f"{name} is {value!r:.60}")
    return [int(str(low)) for low, _ in pairs], [int(str(high)) for _, high in pairs]


HANDLERS: dict[str, Callable[[Call], list[Value]]] = {
    **{f"Conv{n}D": _convolved(n) for n in (1, 2)},
    **{f"{kind}Conv{n}D": _convolved(n, kind) for kind in ("Depthwise", "Separable") for n in (1, 2)},
    **{f"MaxPooling{n}D": _pooled(n, "MaxPool") for n in (1, 2)},
    **{f"AveragePooling{n}D": _pooled(n, "AveragePool") for n in (1, 2)},
    "GlobalMaxPooling2D": _pooled_all("ReduceMax"),
    "GlobalAveragePooling2D": _pooled_all("ReduceMean"),
    **{f"ZeroPadding{n}D": _filled(n) for n in (1, 2)},
    **{f"Cropping{n}D": _cropped(n) for n in (1, 2)},
    **{f"UpSampling{n}D": _repeated(n) for n in (1, 2)},
}
