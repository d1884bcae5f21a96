"""Scalar expressions of the pointwise ops for CUDA, where they differ from LLVM's.

In: a precision. Out: forms for `scalar.using`, so that the op table builds expressions for the GPU's own functions:

    with flavour("bfloat16"):
        value = element(node, index, read, "float32")

Nothing here depends on the compiler's fast-math options: where a fast function is right it is called by its own name.
exp and division in hardware are off by 2 ulp plus |x| / 2**23, and in sigmoid and tanh the |x| only counts where the
result is flat: the absolute error of both stays below 2e-7. Infinities and NaN go through all forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from . import scalar

Expr = Any
SMALL = 0.2  # below, tanh is its series: 1 - 2 / (1 + e) would lose what x has to the left of 1
LARGE = 2.0**64
TANH_SERIES = (-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0)  # of x**7, x**5, x**3
NEAR_ONE = 1.0 / 32.0  # below, log1p is its series: the hardware's logarithm is right in absolute terms there
LOG1P_SERIES = (-1.0 / 4.0, 1.0 / 3.0, -1.0 / 2.0)  # of x**4, x**3, x**2


def _call(dtype: str, name: str, *operands: Expr) -> Expr:
    return scalar._tir().call_pure_extern(dtype, name, *operands)


def _function(name: str) -> Callable[[Expr], Expr]:
    """CUDA's function of that name, which ends in f for float32."""
    return lambda x: scalar._call(name, x)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)); exactly 0 at -inf, as 1 divided by infinity."""
    one = scalar.const(1.0, x)
    if scalar._dtype(x) != "float32":
        return scalar.div(one, one + scalar._call("exp", scalar.neg(x)))
    return _call("float32", "__fdividef", one, one + _call("float32", "__expf", scalar.neg(x)))


def _tanh_rough(x: Expr) -> Expr:
    """1 - 2 / (1 + exp(2 x)) in float32: right in absolute terms, as 16-bit results need."""
    if scalar._dtype(x) != "float32":
        return scalar._call("tanh", x)
    one, two = scalar.const(1.0, x), scalar.const(2.0, x)
    return one - _call("float32", "__fdividef", two, one + _call("float32", "__expf", two * x))


def tanh(x: Expr) -> Expr:
    """As the rough form, and its series where x is small: 8 ulp everywhere."""
    if scalar._dtype(x) != "float32":
        return scalar._call("tanh", x)

    def series(x: Expr, square: Expr) -> Expr:
        return x + x * square * scalar._horner(square, TANH_SERIES)

    def both(x: Expr) -> Expr:
        near = scalar.less(abs(x), scalar.const(SMALL, x))
        return scalar.where(near, scalar.let(x * x, lambda square: series(x, square)), _tanh_rough(x))

    return scalar.let(x, both)


def _log1p_rough(x: Expr) -> Expr:
    """log(1 + x) in float32, to 2e-5: of a number near 1 the hardware's logarithm is off by 4e-7."""
    if scalar._dtype(x) != "float32":
        return scalar._call("log1p", x)

    def both(x: Expr) -> Expr:
        near, one = scalar.less(abs(x), scalar.const(NEAR_ONE, x)), scalar.const(1.0, x)
        return scalar.where(near, x + x * x * scalar._horner(x, LOG1P_SERIES), _call("float32", "__logf", one + x))

    return scalar.let(x, both)


def _div_rough(a: Expr, b: Expr) -> Expr:
    """a / b to 2 ulp; both are scaled where b is so large that the hardware would call its reciprocal 0."""
    if scalar._dtype(b) != "float32":
        return scalar._tir().Div(a, b)

    def divide(b: Expr) -> Expr:
        large = scalar.less(scalar.const(LARGE, b), abs(b))
        scale = scalar.where(large, scalar.const(1.0 / LARGE, b), scalar.const(1.0, b))
        return scalar.let(scale, lambda scale: _call("float32", "__fdividef", a * scale, b * scale))

    return scalar.let(b, divide)


def _sqrt_rough(x: Expr) -> Expr:
    """The square root to 3 ulp."""
    if scalar._dtype(x) != "float32":
        return scalar._tir().sqrt(x)

    def root(x: Expr) -> Expr:
        ends = scalar.where(scalar.less(x, scalar.const(float("inf"), x)), x * _call("float32", "rsqrtf", x), x)
        return scalar.where(scalar.less(scalar.const(0.0, x), abs(x)), ends, x)

    return scalar.let(x, root)


def abs(x: Expr) -> Expr:
    return scalar._call("fabs", x)


def relu(x: Expr) -> Expr:
    """Not fmaxf(0, x), which is 0 where x is NaN."""
    zero = scalar.const(0.0, x)
    return scalar.let(x, lambda x: scalar.where(scalar.less(x, zero), zero, x))


def _either(a: Expr, b: Expr, first: Callable[[Expr, Expr], Expr], second: Callable[[Expr, Expr], Expr]) -> Expr:
    """a where first(a, b), b where second(a, b), else NaN: one of them is."""

    def choose(a: Expr, b: Expr) -> Expr:
        return scalar.where(first(a, b), a, scalar.where(second(a, b), b, a + b))

    return scalar.let(a, lambda a: scalar.let(b, lambda b: choose(a, b)))


def maximum(a: Expr, b: Expr) -> Expr:
    return _either(a, b, scalar.greater, scalar.less_equal)


def minimum(a: Expr, b: Expr) -> Expr:
    return _either(a, b, scalar.less, scalar.greater_equal)


def _minus_zero(like: Expr) -> Expr:
    """-0 made from its bits by a function, which TVM cannot fold."""
    integer, name, bits = {
        "float32": ("int32", "__int_as_float", 31),
        "float64": ("int64", "__longlong_as_double", 63),
    }[scalar._dtype(like)]
    return _call(scalar._dtype(like), name, scalar._tir().const(-1 << bits, integer))


FORMS: Mapping[str, Callable[..., Expr]] = {
    **{name: _function(name) for name in ("exp", "expm1", "log", "log1p", "erf", "floor")},
    **{form.__name__: form for form in (sigmoid, tanh, abs, relu, maximum, minimum, _minus_zero)},
}
FORMS_16_BIT: Mapping[str, Callable[..., Expr]] = {
    **FORMS,
    "tanh": _tanh_rough,
    "log1p": _log1p_rough,
    "div": _div_rough,
    "sqrt": _sqrt_rough,
    "exp": lambda x: _call("float32", "__expf", x) if scalar._dtype(x) == "float32" else scalar._call("exp", x),
}


def flavour(precision: str) -> AbstractContextManager[None]:
    """A context in which the op table builds expressions for CUDA.

    precision: "float64", "float32", "tf32", or "float16" and "bfloat16", whose results are rounded to 16 bits: those
    take tanh, exp and log1p in their shortest forms.
    """
    return scalar.using(FORMS_16_BIT if precision in ("float16", "bfloat16") else FORMS)
