"""A graph's constants: numbers become part of the code, arrays are laid out as vectors read them.

In: constants of a graph, and which axis loops want to be the last one. Out: where each lies in one flat array per
dtype: a call takes time for each argument, and a bundle's steps have few.

Rewrite: w[f, k] along f  -->  w'[k, f], or w'[f // 32, k, f % 32];  pow(x, two[()])  -->  x * x
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tvm_rnn.surroundings.calls import Value
from tvm_rnn.surroundings.memory import ALIGNED, Room
from tvm_rnn.tir.expr import Buffer
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer as flat_buffer

from .places import Place


@dataclass
class Constants:
    """Those that functions read so far. flat: the arguments that have them. begins: where each lies. sizes: elements of
    the flat arrays."""

    flat: dict[str, Buffer] = field(default_factory=dict)
    begins: dict[Value, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    turned: dict[tuple[Value, int], Value] = field(default_factory=dict)
    cut: dict[tuple[Value, int, int], Value] = field(default_factory=dict)
    in_pairs: dict[tuple[Value, int, int, int], Value] = field(default_factory=dict)

    def place(self, value: Value) -> Place:
        """Where a constant's elements lie."""
        flat = self.flat.setdefault(value.dtype, flat_buffer(f"w_{value.dtype}", value.dtype, alignment=1))
        if value not in self.begins:
            self.begins[value] = self.sizes.get(value.dtype, 0)
            self.sizes[value.dtype] = self.begins[value] + -(-value.array.size // ALIGNED) * ALIGNED
        return Place(flat, Room(int64(self.begins[value]), int64(value.array.size)))

    @property
    def arrays(self) -> list[np.ndarray]:
        """The flat arrays, in the order of the arguments."""
        made = {dtype: np.zeros(size, dtype) for dtype, size in self.sizes.items()}
        for value, begin in self.begins.items():
            made[value.dtype][begin : begin + value.array.size] = value.array.reshape(-1)
        return [*made.values()]

    def along(self, value: Value, axis: int) -> Value:
        """The constant with this axis as its last one."""
        if axis == len(value.shape) - 1:
            return value
        if (value, axis) not in self.turned:
            array = np.ascontiguousarray(np.moveaxis(value.array, axis, -1))
            self.turned[value, axis] = Value(tuple(array.shape), value.dtype, array)
        return self.turned[value, axis]

    def panels(self, value: Value, axis: int, width: int) -> Value:
        """The constant in pieces along this axis, [pieces, other axes, width]; behind its end there are zeros."""
        if (value, axis, width) not in self.cut:
            array = in_pieces(np.moveaxis(value.array, axis, -1), width)
            self.cut[value, axis, width] = Value(tuple(array.shape), value.dtype, array)
        return self.cut[value, axis, width]

    def paired(self, value: Value, axis: int, pair: int, width: int) -> Value:
        """The constant, whole numbers, in pieces along an axis, in pairs along another one: [pieces, other axes, pairs,
        2 * width]. In 8 bits where that is enough, else in 16."""
        if (value, axis, pair, width) not in self.in_pairs:
            byte = np.iinfo(np.int8)
            short = byte.min <= value.array.min() and value.array.max() <= byte.max
            whole = value.array.astype(np.int8 if short else np.int16)
            array = in_pieces(np.moveaxis(whole, (pair, axis), (-2, -1)), width)
            array = array.reshape(*array.shape[:-2], -1, 2, width).swapaxes(-1, -2)
            array = np.ascontiguousarray(array).reshape(*array.shape[:-2], 2 * width)
            self.in_pairs[value, axis, pair, width] = Value(tuple(array.shape), str(array.dtype), array)
        return self.in_pairs[value, axis, pair, width]


def in_pieces(array: np.ndarray, width: int) -> np.ndarray:
    """An array in pieces along its last axis, [pieces, other axes, width]; behind its end there are zeros."""
    count = -(-array.shape[-1] // width)
    whole = np.zeros((*array.shape[:-1], count * width), array.dtype)
    whole[..., : array.shape[-1]] = array
    return np.ascontiguousarray(np.moveaxis(whole.reshape(*array.shape[:-1], count, width), -2, 0))
