"""Operations in fixed point, each written once: run on texts it is C, run on arrays of integers it is NumPy.

In: a `Machine` (of `CMachine` or `NumpyMachine`), the exponents of an operation, its operands. Out: the result, in 16
bits. A value of exponent e is q 2**-e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST, SMALLEST = 32767, -32768
Value = Any  # a Text, or an array of int64: both have the operators


class Text(str):
    """An expression of C; operators make larger ones. int32_t is enough for all that the rows below compute."""

    __slots__ = ()

    def _with(self, sign: str, other: object) -> Text:
        return Text(f"({self} {sign} {other})")

    def __add__(self, other: object) -> Text:
        return self._with("+", other)

    def __sub__(self, other: object) -> Text:
        return self._with("-", other)

    def __mul__(self, other: object) -> Text:
        return self._with("*", other)

    def __and__(self, other: object) -> Text:
        return self._with("&", other)

    def __or__(self, other: object) -> Text:
        return self._with("|", other)

    def __rshift__(self, other: object) -> Text:
        return self._with(">>", other)

    def __neg__(self) -> Text:
        return Text(f"(-{self})")

    def compared(self, sign: str, other: object) -> Text:
        return self._with(sign, other)


class CMachine:
    """Makes texts of C. Functions that they call: `HELPERS` of fixed_point.py."""

    def call(self, name: str, *operands: object) -> Text:
        return Text(f"{name}({', '.join(map(str, operands))})")

    def fit(self, value: Text, right: int) -> Text:
        """value 2**-right, rounded, cut off at 16 bits."""
        if right > 30:
            return self.call("fit", value, min(right, 63))
        if right < 0:
            return self.call("grown", value, min(-right, MOST_LEFT))
        return self.call("fit32", value, right) if right else self.call("cut", value)

    def compare(self, sign: str, a: Text, b: object) -> Text:
        return a.compared(sign, b)

    def where(self, condition: Text, a: Text, b: Text) -> Text:
        return Text(f"({condition} ? {a} : {b})")


MOST_LEFT = 22  # beyond it whatever is not 0 is cut off


class NumpyMachine:
    """Computes with arrays of int64 what that C computes."""

    def call(self, name: str, *operands: Value) -> Value:
        return FUNCTIONS[name](*operands)

    def fit(self, value: Value, right: int) -> Value:
        return fitted(value, right)

    def compare(self, sign: str, a: Value, b: Value) -> Value:
        return SIGNS[sign](a, b).astype(np.int64)

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        return np.where(condition != 0, a, b)


Machine = CMachine | NumpyMachine
SIGNS: dict[str, Callable[..., Value]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def fitted(values: Value, right: int) -> Value:
    """values 2**-right, rounded to the nearest (halves up), cut off at 16 bits."""
    if right > 62:
        return np.zeros_like(values)
    moved = (values + (1 << right >> 1)) >> right if right > 0 else values << min(-right, MOST_LEFT)
    return np.clip(moved, SMALLEST, LARGEST)


def _ratio(a: Value, b: Value, left: int) -> Value:
    above, below = np.abs(a) << max(left, 0), np.abs(b) << max(-left, 0)
    size = (above + (below >> 1)) // np.where(below == 0, 1, below)
    size = np.where(below == 0, LARGEST + 1, size)
    return np.clip(np.where(a == 0, 0, np.sign(a) * np.where(b < 0, -1, 1) * size), SMALLEST, LARGEST)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "absolute": np.abs,
    "positive": lambda a: np.maximum(a, 0),
    "sign_of": np.sign,
    "larger": np.maximum,
    "smaller": np.minimum,
    "ratio": _ratio,
}


@dataclass(frozen=True)
class Exponents:
    """Of a result, and of its operands."""

    out: int
    of: tuple[int, ...]


Row = Callable[..., Value]


def _together(m: Machine, e: Exponents, a: Value, b: Value) -> tuple[Value, Value, int]:
    """Two operands at one exponent, in at most 30 bits."""
    own = min(max(e.of), min(e.of) + 14)

    def moved(value: Value, exponent: int) -> Value:
        if own >= exponent:
            return value * (1 << own - exponent) if own > exponent else value
        return m.fit(value, exponent - own)

    return moved(a, e.of[0]), moved(b, e.of[1]), own


def _sum(m: Machine, e: Exponents, a: Value, b: Value) -> Value:
    one, other, own = _together(m, e, a, b)
    return m.fit(one + other, own - e.out)


def _difference(m: Machine, e: Exponents, a: Value, b: Value) -> Value:
    one, other, own = _together(m, e, a, b)
    return m.fit(one - other, own - e.out)


def _choice(name: str) -> Row:
    def row(m: Machine, e: Exponents, a: Value, b: Value) -> Value:
        one, other, own = _together(m, e, a, b)
        return m.fit(m.call(name, one, other), own - e.out)

    return row


def _comparison(sign: str) -> Row:
    def row(m: Machine, e: Exponents, a: Value, b: Value) -> Value:
        one, other, _ = _together(m, e, a, b)
        return m.compare(sign, one, other)

    return row


def _function(name: str) -> Row:
    return lambda m, e, a: m.fit(m.call(name, a), e.of[0] - e.out)


def _floor(m: Machine, e: Exponents, a: Value) -> Value:
    return m.fit(a >> e.of[0], -e.out) if e.of[0] > 0 else m.fit(a, e.of[0] - e.out)


def _where(m: Machine, e: Exponents, c: Value, a: Value, b: Value) -> Value:
    return m.where(c, m.fit(a, e.of[1] - e.out), m.fit(b, e.of[2] - e.out))


def _truth(m: Machine, a: Value) -> Value:
    return m.compare("!=", a, 0)


ROWS: dict[str, Row] = {
    "neg": lambda m, e, a: m.fit(-a, e.of[0] - e.out),
    "abs": _function("absolute"),
    "relu": _function("positive"),
    "sign": lambda m, e, a: m.fit(m.call("sign_of", a), -e.out),
    "floor": _floor,
    "add": _sum,
    "sub": _difference,
    "mul": lambda m, e, a, b: m.fit(a * b, sum(e.of) - e.out),
    "div": lambda m, e, a, b: m.call("ratio", a, b, min(max(e.out + e.of[1] - e.of[0], -30), 40)),
    "maximum": _choice("larger"),
    "minimum": _choice("smaller"),
    "less": _comparison("<"),
    "less_equal": _comparison("<="),
    "greater": _comparison(">"),
    "greater_equal": _comparison(">="),
    "equal": _comparison("=="),
    "not_equal": _comparison("!="),
    "logical_and": lambda m, e, a, b: _truth(m, a) & _truth(m, b),
    "logical_or": lambda m, e, a, b: _truth(m, a) | _truth(m, b),
    "logical_not": lambda m, e, a: m.compare("==", a, 0),
    "where": _where,
}
