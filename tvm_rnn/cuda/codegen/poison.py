"""Poison: what lies in memory before a kernel begins where others of its threads wait for words to be written.

In: a number. Out: its bits, which are not those of poison: all ones, of a NaN with a sign, for which another NaN is
written. So who waits looks at the words themselves, and needs no counter.
"""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.tir.expr import Expr, TirExpr

POISON = 0xFFFFFFFF  # of a word of 32 bits
BITS = {"float32": 32, "float64": 64}


def poison(dtype: str) -> TirExpr:
    """Where numbers of this dtype are waited for."""
    return tirx.const((1 << BITS[dtype]) - 1, f"uint{BITS[dtype]}")


def written(value: Expr, dtype: str = "float32") -> TirExpr:
    """The bits of a number as they are written where others wait for it."""
    kind = f"uint{BITS[dtype]}"
    return tirx.Min(tirx.reinterpret(kind, value), poison(dtype) - tirx.const(1, kind))
