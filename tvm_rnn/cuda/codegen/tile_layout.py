"""Layouts: where the elements of a tile lie in memory, as values that are named, indexed and taken apart again.

In: sizes. Out: `Layout`, the axes of a packed array; `offset`, another order of the same coordinates; `Swizzle`, rows
of shared memory that are read without bank conflicts. They take Python integers, NumPy arrays and TVM's expressions.

A packed weight is the composition of two layouts: a position is taken apart into the coordinates of the array in which
threads read it, and these are put together to the row and the column of the weight.

    axes = Layout(block=blocks, step=steps, lane_row=8, lane_column=4, element=2)
    at = axes.coordinates(position)
    row = offset(at, block=8, lane_row=1)
    k = offset(at, step=8, lane_column=2, element=1)

Source: CuTe's layout algebra (NVIDIA CUTLASS 3), with names for modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tvm_rnn.tir.expr import Expr

PIECE_BYTES = 16  # what a thread moves at a time, and what a swizzle permutes


class Layout:
    """A dense array's axes: names and sizes, the first varies slowest. No element lies between two others."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    @property
    def elements(self) -> int:
        return prod(self.sizes.values())

    def strides(self) -> dict[str, int]:
        """How far apart neighbours along each axis are."""
        sizes = list(self.sizes.values())
        return {name: prod(sizes[i + 1 :]) for i, name in enumerate(self.sizes)}

    def coordinates(self, position: Expr) -> dict[str, Expr]:
        """A position below `elements`, taken apart: divmod by one axis after the other, from the last one on."""
        return dict(self._digits(position))

    def _digits(self, rest: Expr) -> Iterator[tuple[str, Expr]]:
        first, *others = self.sizes
        for name in reversed(others):
            yield name, rest % self.sizes[name]
            rest = rest // self.sizes[name]
        yield first, rest

    def position(self, **coordinates: Expr) -> Expr:
        """The inverse: all coordinates, put together. Raises KeyError for one that is no axis."""
        strides = self.strides()
        return offset(coordinates, **{name: strides[name] for name in coordinates})


def offset(coordinates: Mapping[str, Expr], **strides: int) -> Expr:
    """Some of the coordinates, each times its stride, summed in the order of the strides."""
    total: Expr = 0
    for name, stride in strides.items():
        total = total + coordinates[name] * stride
    return total


@dataclass(frozen=True)
class Swizzle:
    """Rows of shared memory whose 16-byte pieces change places with the row, as wgmma and bulk tensor copies have it:
    threads that read the same piece of consecutive rows meet no bank twice. row_bytes: 128, 64 or 32."""

    row_bytes: int

    @property
    def pieces(self) -> int:
        return self.row_bytes // PIECE_BYTES

    def piece(self, row: Expr, piece: Expr) -> Expr:
        """Which place in its row a piece has; also which piece lies at a place."""
        return piece ^ row // (8 // self.pieces) % self.pieces

    def offset(self, row: Expr, piece: Expr) -> Expr:
        """Bytes from the first row on to a piece of a row."""
        return row * self.row_bytes + self.piece(row, piece) * PIECE_BYTES


SWIZZLE_128, SWIZZLE_64 = Swizzle(128), Swizzle(64)
