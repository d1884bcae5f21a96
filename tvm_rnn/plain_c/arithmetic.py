"""What a kind of numbers is to the loops that compute with it.

In: nodes of a layer, C expressions of their operands. Out: C expressions. Implemented by `floating.py` and
`fixed_point.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tvm_rnn.graph.graph import Node


@dataclass(frozen=True)
class Sum:
    """How a value is summed up, or its largest element found. kind: the C type of the sum; begin: its first value; add:
    the new sum, of {sum}, {a} and, where products are summed, {b}; end: the result, of {sum}."""

    kind: str
    begin: str
    add: str
    end: str


@dataclass(frozen=True)
class Array:
    """Numbers known now, as C has them."""

    kind: str
    numbers: Sequence[str]
    size: int  # of a number in bytes


@dataclass(frozen=True)
class Product:
    """A sum of matrices times vectors. arrays: what it reads, by the names that `lines` have for them; lines: of C,
    with {these names}, {x0}, {x1}, ... for the vectors and {y} for the result."""

    arrays: Mapping[str, Array]
    lines: Sequence[str]


class Arithmetic(Protocol):
    """Numbers of one layer. kind: the C type of what is stored; value: that of what is computed with."""

    kind: str
    value: str
    bytes: int

    def literal(self, node: Node, value: float) -> str:
        """A number that is known now."""

    def array(self, node: Node, values: np.ndarray) -> Array:
        """Numbers that are known now."""

    def apply(self, node: Node, operands: Sequence[str]) -> str:
        """A pointwise operation."""

    def taken(self, node: Node, text: str) -> str:
        """An element of a row of a table. text: table, row, rows, elements of a row, which of them."""

    def converted(self, text: str, source: Node, to: Node) -> str:
        """A value as another one is stored."""

    def sum(self, node: Node) -> Sum:
        """A reduction, or a contraction of two operands."""

    def product(self, node: Node, matrices: Sequence[np.ndarray]) -> Product:
        """gemm: the sum of matrices [N, K] times vectors."""

    def scale(self, node: Node) -> int | None:
        """The exponent of a value in fixed point; None: it is a floating-point number."""

    def helpers(self) -> Mapping[str, str]:
        """The functions in C that these texts may call, by their names; those that one calls come before it."""

    def tables(self) -> Mapping[str, Array]:
        """The arrays that the texts made so far read besides, by their names."""
