"""Dims: the text of an annotation ("4 H I") as axes that sizes are bound to.

In: annotation strings from `cell.py`. Out: shapes, once `rnn.RNN` gives each axis name a size.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

RESERVED = {"T": "steps", "B": "batch"}
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


@dataclass(frozen=True)
class Dims:
    """Axes as arithmetic expressions of axis names: "4", "H", "4*H", "I+H"."""

    text: str
    axes: tuple[ast.expr, ...]

    @property
    def names(self) -> tuple[str, ...]:
        found = [n.id for axis in self.axes for n in ast.walk(axis) if isinstance(n, ast.Name)]
        return tuple(dict.fromkeys(found))

    @property
    def labels(self) -> tuple[str | None, ...]:
        """Of each axis its name; None of a number or an expression."""
        return tuple(axis.id if isinstance(axis, ast.Name) else None for axis in self.axes)

    @property
    def numbers(self) -> tuple[int | None, ...]:
        """Of each axis its size where it is written as a number."""
        return tuple(_value(axis, {}) if isinstance(axis, ast.Constant) else None for axis in self.axes)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(_value(axis, sizes) for axis in self.axes)


def _value(axis: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, ast.Constant):
        return int(axis.value)  # type: ignore[arg-type]
    if isinstance(axis, ast.Name):
        return int(sizes[axis.id])
    assert isinstance(axis, ast.BinOp)
    a, b = _value(axis.left, sizes), _value(axis.right, sizes)
    return {"+": a + b, "-": a - b, "*": a * b, "//": a // b if b > 0 else 0}[_OPERATORS[type(axis.op)]]


def _check(axis: ast.expr) -> None:
    if isinstance(axis, ast.BinOp) and type(axis.op) in _OPERATORS:
        _check(axis.left)
        _check(axis.right)
    elif isinstance(axis, ast.Name):
        if axis.id in RESERVED:
            raise ValueError(f"axis {axis.id} ({RESERVED[axis.id]}) is implicit: a cell describes one step of one row")
    elif not (isinstance(axis, ast.Constant) and type(axis.value) is int and axis.value >= 1):
        raise ValueError("an axis is a name, a number of at least 1, or a sum or product of these")


def parse_dims(text: str) -> Dims:
    """Parse "4 H I". Raises ValueError with the reason where the text is not a list of axes."""
    axes = []
    for token in text.replace(",", " ").split():
        source = re.sub(r"^(\d+)([A-Za-z_])", r"\1*\2", token)  # 4H means 4*H
        try:
            axis = ast.parse(source, mode="eval").body
        except SyntaxError:
            raise ValueError(f"{token!r} is not an axis") from None
        _check(axis)
        axes.append(axis)
    return Dims(text, tuple(axes))
