"""Indices of the elements that a lane has: linear in the number of a row, and of a column, of the matrices.

In: which of a lane's rows or columns. Out: `ElementIndex`, which takes the place of an expression in the index of a
value, so that views are followed without losing what runs along what. Two are equal if they mean the same element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm_rnn.tir.expr import Expr

ROW, COLUMN, UNIT = "row", "column", "unit"  # UNIT: of vectors that run along neither, spread over all threads


class NotOnChip(Exception):
    """No kernel keeps the matrices of these steps on the chip; the text says why."""


@dataclass(frozen=True)
class Along:
    """One of a lane's rows, columns or units. role: which of these; number: which of them; extent: how many all lanes
    have; spread: over lanes of one warp, one after the other, not as tiles are; value: the row, column or unit."""

    role: str
    number: int
    extent: int
    spread: bool = False
    value: Expr = field(default=0, compare=False)


@dataclass(frozen=True)
class ElementIndex:
    """first + the sum of terms, each the value of an `Along` times a factor."""

    terms: tuple[tuple[Along, int], ...]
    first: int = 0

    @property
    def alone(self) -> Along | None:
        """The row or column that this is, and no more."""
        return self.terms[0][0] if not self.first and len(self.terms) == 1 and self.terms[0][1] == 1 else None

    @property
    def most(self) -> int:
        return self.first + sum(factor * (along.extent - 1) for along, factor in self.terms)

    @property
    def expression(self) -> Expr:
        total: Expr = self.first
        for along, factor in self.terms:
            total = total + along.value * factor
        return total

    def __add__(self, other: ElementIndex | int) -> ElementIndex:
        if isinstance(other, int):
            return ElementIndex(self.terms, self.first + other)
        return ElementIndex((*self.terms, *other.terms), self.first + other.first)

    __radd__ = __add__

    def __sub__(self, other: int) -> ElementIndex:
        return self + -other

    def __mul__(self, factor: int) -> ElementIndex | int:
        if not factor:
            return 0
        return ElementIndex(tuple((along, own * factor) for along, own in self.terms), self.first * factor)

    __rmul__ = __mul__

    def _split(self, size: int) -> tuple[ElementIndex, ElementIndex]:
        """(quotient, rest) of a division."""
        whole = tuple((along, factor // size) for along, factor in self.terms if factor % size == 0)
        rest = ElementIndex(tuple(term for term in self.terms if term[1] % size), self.first % size)
        if any(factor < 0 for _, factor in self.terms) or rest.most >= size:
            raise NotOnChip("a view cuts rows or columns of the states into parts")
        return ElementIndex(whole, self.first // size), rest

    def __floordiv__(self, size: int) -> ElementIndex | int:
        found, _ = self._split(size)
        return found if found.terms else found.first

    def __mod__(self, size: int) -> ElementIndex | int:
        _, found = self._split(size)
        return found if found.terms else found.first


def flattened(shape: Sequence[int], index: Sequence[ElementIndex | int]) -> ElementIndex | int:
    """The row-major offset of an index."""
    total: ElementIndex | int = 0
    for i, size in zip(index, shape, strict=True):
        total = total * size + i
    return total


def of(along: Along) -> ElementIndex:
    """The index that is one row or column."""
    return ElementIndex(((along, 1),))
