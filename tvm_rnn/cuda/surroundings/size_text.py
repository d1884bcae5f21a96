"""Sizes as C++ text of the host program.

In: an expression of int64 and bool on names. Out: the text. host.h has floordiv and floormod.

Rewrite: (n0 + 3) // 2  -->  floordiv((n0 + INT64_C(3)), INT64_C(2))
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from tvm_rnn.tir.expr import Expr

INFIX = (tirx.Add, tirx.Sub, tirx.Mul, tirx.And, tirx.Or, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
SIGNS = dict(zip(INFIX, ("+", "-", "*", "&&", "||", "==", "!=", "<", "<=", ">", ">="), strict=True))
CALLED = (tirx.Min, tirx.Max, tirx.FloorDiv, tirx.FloorMod)
CALLS = dict(zip(CALLED, ("min<int64_t>", "max<int64_t>", "floordiv", "floormod"), strict=True))


class NoText(Exception):
    """What no size has, in words."""


def size_text(value: Expr, names: Mapping[tirx.Var, str]) -> str:
    """The text. names: of variables. Raises NoText."""
    if isinstance(value, int | tirx.IntImm):
        return f"INT64_C({int(value)})"
    if isinstance(value, tirx.Var) and value in names:
        return names[value]
    if isinstance(value, tirx.Cast):
        return size_text(value.value, names)
    if isinstance(value, tirx.Not):
        return f"(!{size_text(value.a, names)})"
    if isinstance(value, tirx.Select):
        parts = (value.condition, value.true_value, value.false_value)
        return "({} ? {} : {})".format(*(size_text(part, names) for part in parts))
    kind: type = type(value)
    if isinstance(value, INFIX):
        return f"({size_text(value.a, names)} {SIGNS[kind]} {size_text(value.b, names)})"
    if isinstance(value, CALLED):
        return f"{CALLS[kind]}({size_text(value.a, names)}, {size_text(value.b, names)})"
    raise NoText(f"a size that is a {type(value).__name__}")
