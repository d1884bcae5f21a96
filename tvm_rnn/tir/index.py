"""Indices as TVM expressions: 64 bits wide, so that no product of sizes overflows.

In: Python integers and expressions. Out: expressions of int64.
"""

from __future__ import annotations

from tvm import tirx

from .expr import Expr, TirExpr

INDEX = "int64"


def int64(value: int) -> tirx.IntImm:
    return tirx.IntImm(INDEX, int(value))


def wide(value: Expr) -> Expr:
    """An index, or a vector of indices that are 64 bits wide, as a 64-bit expression."""
    if isinstance(value, int):
        return int64(value)
    return value if str(value.ty).partition("x")[0] == INDEX else tirx.Cast(INDEX, value)


def uint32(value: int) -> TirExpr:
    """A constant, as addresses in shared memory and operands of PTX are."""
    return tirx.const(value, "uint32")
