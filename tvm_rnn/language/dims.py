"""Dims: the text of an annotation ("4 H I") as axes that sizes are bound to.

In: annotation strings from `cell.py`. Out: shapes, once `rnn.RNN` gives each axis name a size. "N?" is an axis that is
there only where N is given, and counts 1 in an expression ("2*N?") where it is not; "K=H" has a size of its own where K
is given, else that of H.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

RESERVED = {"T": "steps", "B": "batch"}
OPTIONAL = r"([A-Za-z_]\w*)\?"  # a name with the mark of an axis that may be absent
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


@dataclass(frozen=True)
class Dims:
    """Axes as arithmetic expressions of axis names: "4", "H", "4*H", "I+H".

    optional: the names that are followed by "?". defaults: what a name is where it is not given.
    """

    text: str
    axes: tuple[ast.expr, ...]
    optional: frozenset[str] = frozenset()
    defaults: Mapping[str, ast.expr] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        found = [n.id for axis in (*self.axes, *self.defaults.values()) for n in ast.walk(axis) if _is_name(n)]
        return tuple(dict.fromkeys(found))

    def present(self, sizes: Mapping[str, int]) -> Dims:
        """Without the axes "N?" for which there is no size."""
        gone = self.optional - set(sizes)
        kept = tuple(axis for axis in self.axes if not (_is_name(axis) and axis.id in gone))
        return replace(self, axes=kept)

    @property
    def labels(self) -> tuple[str | None, ...]:
        """Of each axis its name; None of a number or an expression."""
        return tuple(axis.id if isinstance(axis, ast.Name) else None for axis in self.axes)

    @property
    def numbers(self) -> tuple[int | None, ...]:
        """Of each axis its size where it is written as a number."""
        return tuple(_value(axis, {}) if isinstance(axis, ast.Constant) else None for axis in self.axes)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        bound = {**dict.fromkeys(self.optional, 1), **sizes}
        return tuple(_value(axis, bound) for axis in self.present(sizes).axes)


def completed(sizes: Mapping[str, int], defaults: Mapping[str, ast.expr]) -> dict[str, int]:
    """The sizes with those that follow from others, as far as these are known."""
    known = dict(sizes)
    for name, default in defaults.items():
        needed = {n.id for n in ast.walk(default) if _is_name(n)}
        if name not in known and needed <= set(known):
            known[name] = _value(default, known)
    return known


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


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
    axes: list[ast.expr] = []
    optional: set[str] = set()
    defaults: dict[str, ast.expr] = {}
    for token in text.replace(",", " ").split():
        named = re.fullmatch(r"([A-Za-z_]\w*)=([^=?]+)", token)
        if named:
            defaults[named[1]] = _axis(named[2], token)
        source = named[1] if named else token
        optional |= set(re.findall(OPTIONAL, source))
        axes.append(_axis(re.sub(OPTIONAL, r"\1", source), token))
    return Dims(text, tuple(axes), frozenset(optional), defaults)


def _axis(text: str, token: str) -> ast.expr:
    source = re.sub(r"^(\d+)([A-Za-z_])", r"\1*\2", text)  # 4H means 4*H
    try:
        axis = ast.parse(source, mode="eval").body
    except SyntaxError:
        raise ValueError(f"{token!r} is not an axis") from None
    _check(axis)
    return axis
