"""Functions of `scalar.py` with a shorter way from operand to result, for code in which nothing else is left to do
meanwhile: a step of one row.

In: `using(FORMS)`. Out: TVM scalar expressions of float32, other dtypes as before. The polynomials are those of
`scalar.py`, summed in pairs instead of one term after the other: more products, half the depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from . import scalar
from .scalar import BIAS, EXP_P, LN2_HIGH, LN2_LOW, NEAREST, TANH_P, TANH_Q, Expr, const, let


def in_pairs(powers: Sequence[Expr], coefficients: Sequence[float]) -> Expr:
    """The polynomial at x, coefficients from the highest down. powers: x, x**2, x**4, ..., as many as it takes."""
    terms: list[Expr] = [const(c, powers[0]) for c in reversed(coefficients)]
    for power in powers:
        pairs = [high * power + low for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[len(pairs) * 2 :]]
    return terms[0]


def _tanh(x: Expr) -> Expr:
    if scalar._dtype(x) != "float32":
        return scalar._call("tanh", x)

    def ratio(x: Expr, y: Expr, y2: Expr, y4: Expr) -> Expr:
        return scalar.div(x * in_pairs([y, y2, y4], TANH_P), in_pairs([y, y2], TANH_Q))

    def square(x: Expr, y: Expr) -> Expr:
        return let(y * y, lambda y2: let(y2 * y2, lambda y4: ratio(x, y, y2, y4)))

    return let(scalar._clamp(x, -9.0, 9.0), lambda x: let(x * x, partial(square, x)))


def _exp(x: Expr) -> Expr:
    """exp(x/2)**2, as in `scalar.py`; n from the last bits of the rounded sum."""
    if scalar._dtype(x) != "float32":
        return scalar._call("exp", x)

    def scaled(bits: Expr, f: Expr, f2: Expr) -> Expr:
        series = in_pairs([f, f2], EXP_P[2:]) + f2 * f2 * in_pairs([f], EXP_P[:2])
        return let((f2 * series + (f + const(1.0, f))) * scalar._power(scalar._bits(bits), BIAS), lambda e: e * e)

    def rest(x: Expr, bits: Expr) -> Expr:
        n = bits - const(NEAREST, x)
        f = let(n, lambda n: n * const(-LN2_LOW, x) + (n * const(-LN2_HIGH, x) + x * const(0.5, x)))
        return let(f, lambda f: let(f * f, lambda f2: scaled(bits, f, f2)))

    def body(x: Expr) -> Expr:
        return let(x * const(0.5 / math.log(2.0), x) + const(NEAREST, x), partial(rest, x))

    return let(scalar._clamp(x, -104.0, 104.0), body)


FORMS: Mapping[str, Callable[..., Expr]] = MappingProxyType({"tanh": _tanh, "exp": _exp})
