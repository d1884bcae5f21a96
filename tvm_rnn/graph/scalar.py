"""Scalar expressions of the pointwise ops, on TVM expressions of any float dtype.

In: rows of `ops.py`. Out: TVM scalar expressions that LLVM can vectorise. TVM itself never vectorises exp or tanh (each
lane becomes a libm call, 10 to 20 times slower), so float32 has its own: a rational tanh, and polynomials for exp, log
and erf, with shared sub-expressions in `Let`. Other dtypes call libm, exact and slow.

IEEE behaviour: NaN goes through everywhere. x86 min/max return their second operand when one is NaN, hence constants
come first in every clamp. Other kinds of target replace some rows by forms of their own (`using`, `scalar_cuda.py`).
Coefficients: tanh, the [13/6] rational minimax used by Eigen and XLA (facts, cited); exp and log, S. L. Moshier's
Cephes library (expf, logf); erf, our own.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm import tirx

Expr = Any

TANH_P = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
RATIONAL_P = (
    4.37031012579801e-11,
    1.15627324459942e-07,
    6.08574864600143e-05,
    8.51377133304701e-03,
    2.48287947061529e-01,
)
RATIONAL_Q = (
    6.10247389755681e-13,
    5.76102136993427e-09,
    6.29106785017040e-06,
    1.70198817374094e-03,
    1.16817656904453e-01,
    9.93151921023180e-01,
)
EXP_P = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# exp(f) for |f| <= ln2 / 2, relative error 3e-9: a minimax of degree 6 by Remez' algorithm, its first two terms given.
SIGMOID_P = (
    1.3814540086907e-3,
    8.3687451075264e-3,
    4.1668390785357e-2,
    1.6666520399058e-1,
    4.9999993432120e-1,
    1.0,
    1.0,
)
LOG_P = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
# erf(x) / x - 1 in powers of x * x for |x| <= 1, and -log(1 - erf(x)) in powers of x for 1 <= x <= 4: weighted least
# squares in float64, whose weights go to the largest errors (Lawson's algorithm); erf is 1e-9 off in both.
ERF_NEAR = (
    7.854024969e-5,
    -8.010247214e-4,
    5.188334446e-3,
    -2.685381604e-2,
    1.128358527e-1,
    -3.761262584e-1,
    1.283791657e-1,
)
ERF_FAR = (
    -1.863800856e-4,
    2.947666809e-3,
    -2.183809702e-2,
    1.031068215e-1,
    6.381447581e-1,
    1.127089234,
    3.415125761e-4,
)
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
NEAREST = 12582912.0  # 1.5 * 2**23: its last bit counts ones
MANTISSA, BIAS = 23, 127

_names = itertools.count()
_ATOMS = ("Var", "FloatImm", "IntImm", "TensorLoad")
_LLVM: Mapping[str, Callable[..., Expr]] = MappingProxyType({})
_forms: ContextVar[Mapping[str, Callable[..., Expr]]] = ContextVar("_forms", default=_LLVM)

numpy_erf = np.vectorize(math.erf, otypes=[np.float64])


@contextmanager
def using(forms: Mapping[str, Callable[..., Expr]]) -> Iterator[None]:
    """Inside, the functions named in `forms` are built by these instead of by the forms for LLVM below."""
    token = _forms.set(forms)
    try:
        yield
    finally:
        _forms.reset(token)


def replaced() -> Mapping[str, Callable[..., Expr]]:
    """The forms of the `using` around."""
    return _forms.get()


def _row(form: Callable[..., Expr]) -> Callable[..., Expr]:
    """A function that `using` can replace."""

    @functools.wraps(form)
    def choose(*operands: Expr) -> Expr:
        return _forms.get().get(form.__name__, form)(*operands)

    return choose


def _tir() -> Any:
    from tvm import tirx  # imported on use: tracing and the oracle need no compiler

    return tirx


def const(value: float, like: Expr) -> Expr:
    return _tir().const(value, _dtype(like))


def _dtype(x: Expr) -> str:
    return str(x.ty)


def let(value: Expr, body: Callable[[tirx.Var], Expr]) -> Expr:
    """Let(var = value) in body(var): evaluated once, used many times. TE would otherwise copy the tree at each use.

    A value that is a load, a variable or a constant is used as it is: TVM's passes double their work with every Let
    that is nested in another's body (seven deep, one pass took a second).
    """
    load = getattr(getattr(value, "op", None), "name", "") == "te.tensor_load"
    if load or type(value).__name__ in _ATOMS:
        return body(value)
    var = _tir().Var(f"s{next(_names)}", _dtype(value))
    return _tir().Let(var, value, body(var))


def _call(name: str, x: Expr, *more: Expr) -> Expr:
    """A libm call, one per lane: exact, slow."""
    dtype = _dtype(x)
    suffix = {"float32": "f", "float64": ""}[dtype]
    return _tir().call_pure_extern(dtype, name + suffix, x, *more)


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    total = const(coefficients[0], x)
    for coefficient in coefficients[1:]:
        total = total * x + const(coefficient, x)
    return total


def _clamp(x: Expr, low: float, high: float) -> Expr:
    t = _tir()
    return t.Max(const(low, x), t.Min(const(high, x), x))


add, sub = operator.add, operator.sub


def _is_zero(x: Expr) -> bool:
    return type(x).__name__ == "FloatImm" and float(x.value) == 0.0


@_row
def _minus_zero(like: Expr) -> Expr:
    """-0 as bits, which TVM does not fold: it takes 0 * x and 0 / x for 0, also where they are NaN."""
    integer, sign = {"float32": ("int32", 31), "float64": ("int64", 63)}[_dtype(like)]
    return _tir().reinterpret(_dtype(like), _tir().const(-1 << sign, integer))


def mul(a: Expr, b: Expr) -> Expr:
    """a * b; a constant zero is written so that TVM keeps NaN and inf of the other operand."""
    if _is_zero(a) or _is_zero(b):
        return neg(_minus_zero(a) * (b if _is_zero(a) else a))
    return rounded(a * b)


@_row
def rounded(product: Expr) -> Expr:
    """A product of a cell's equations. LLVM may make one step of it and a sum, which rounds once."""
    return product


@_row
def div(a: Expr, b: Expr) -> Expr:
    """a / b; a constant zero is written so that TVM divides by it, and keeps NaN and inf of the divisor."""
    if _is_zero(b):  # TVM refuses to divide by the constant 0
        return a * const(math.copysign(math.inf, float(b.value)), a)
    return neg(_minus_zero(a) / b) if _is_zero(a) else _tir().Div(a, b)


def neg(x: Expr) -> Expr:
    return const(-1.0, x) * x


def _comparison(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: getattr(_tir(), name)(a, b)


less, less_equal, greater, greater_equal = map(_comparison, ("LT", "LE", "GT", "GE"))


def equal(a: Expr, b: Expr) -> Expr:
    """Not EQ(a, b): TVM folds EQ(x, x) to true, also where x is NaN."""
    return logical_and(less_equal(a, b), greater_equal(a, b))


def not_equal(a: Expr, b: Expr) -> Expr:
    """Not NE(a, b): in LLVM that is the ordered comparison, false where one of them is NaN."""
    return logical_not(equal(a, b))


def _truth(a: Expr) -> Expr:
    """A condition; a number (a constant known when the cell was traced) is true where it is not 0."""
    return a if _dtype(a) == "bool" else not_equal(a, const(0.0, a))


def logical_and(a: Expr, b: Expr) -> Expr:
    return _tir().And(_truth(a), _truth(b))


def logical_or(a: Expr, b: Expr) -> Expr:
    return _tir().Or(_truth(a), _truth(b))


def logical_not(a: Expr) -> Expr:
    """Not Not(a): TVM turns Not(x > y) to x <= y, which is false for NaN as well."""
    t = _tir()
    return t.Select(_truth(a), t.const(False, "bool"), t.const(True, "bool"))


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return _tir().Select(_truth(condition), a, b)


def _chosen(a: Expr, b: Expr, wins: Callable[[Expr, Expr], Expr]) -> Expr:
    """NumPy's maximum or minimum: NaN in either operand gives NaN."""
    return let(a, lambda a: let(b, lambda b: where(logical_or(wins(a, b), _tir().isnan(a)), a, b)))


@_row
def maximum(a: Expr, b: Expr) -> Expr:
    return _chosen(a, b, greater)


@_row
def minimum(a: Expr, b: Expr) -> Expr:
    return _chosen(a, b, less)


@_row
def relu(x: Expr) -> Expr:
    return _tir().Max(const(0.0, x), x)


@_row
def abs(x: Expr) -> Expr:
    return let(x, lambda x: where(less(x, const(0.0, x)), neg(x), x + const(0.0, x)))


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; zeros keep their sign and NaN stays NaN."""

    def body(x: Expr) -> Expr:
        zero = const(0.0, x)
        return where(less(x, zero), const(-1.0, x), where(greater(x, zero), const(1.0, x), x))

    return let(x, body)


@_row
def sqrt(x: Expr) -> Expr:
    return _tir().sqrt(x)


@_row
def floor(x: Expr) -> Expr:
    return _tir().floor(x)


@_row
def to_int8(x: Expr) -> Expr:
    return _in_a_byte(x, -128.0, 127.0)


@_row
def to_uint8(x: Expr) -> Expr:
    return _in_a_byte(x, 0.0, 255.0)


def _in_a_byte(x: Expr, low: float, high: float) -> Expr:
    """The nearest whole number of a range, the even one of two; 0 of NaN, of which no comparison is true."""
    tir = _tir()
    inside = where(greater(x, const(low, x)), where(less(x, const(high, x)), x, const(high, x)), const(low, x))
    return where(equal(x, x), tir.nearbyint(inside), const(0.0, x))


def mod(a: Expr, b: Expr) -> Expr:
    """The rest that libm's fmod leaves, with the sign of b as in NumPy, that of 0 too."""

    def signed(rest: Expr, b: Expr) -> Expr:
        zero = const(0.0, rest)
        above, below = (logical_and(wins(rest, zero), wins(zero, b)) for wins in (greater, less))
        size = _tir().abs(rest)  # of -0 it is 0; ours is -0 once TVM has simplified it
        return where(logical_or(above, below), rest + b, where(less(b, zero), neg(size), size))

    return let(b, lambda b: let(_call("fmod", a, b), lambda rest: signed(rest, b)))


def stop_gradient(x: Expr) -> Expr:
    return x


def surrogate(value: Expr, slope: Expr) -> Expr:
    return value


sin, cos, power = (functools.partial(_call, name) for name in ("sin", "cos", "pow"))


@_row
def tanh(x: Expr) -> Expr:
    """Odd rational of degree 13 over 6 in float32, libm in others."""
    if _dtype(x) != "float32":
        return _call("tanh", x)
    # Clamping at 9 gives exactly +-1 for large |x|; max abs error 3e-7, 5 ulp.
    return let(_clamp(x, -9.0, 9.0), lambda x: let(x * x, lambda y: div(x * _horner(y, TANH_P), _horner(y, TANH_Q))))


def _nearest(x: Expr, body: Callable[[Expr, Expr], Expr], ones: float = NEAREST) -> Expr:
    """body(the nearest integer, the bits of its sum with `ones`, the last of which count from there). TVM knows no
    vectors of nearbyint, and LLVM puts its lanes together again in halves of 512 bits. Without a name for the sum TVM
    makes x of the difference."""
    return let(x + const(ones, x), lambda total: let(total - const(ones, x), lambda n: body(n, _bits(total))))


def _bits(x: Expr) -> Expr:
    return _tir().reinterpret("int32", x)


def _power(bits: Expr, bias: int) -> Expr:
    """2**(n + bias - 127), n in the last bits."""
    t = _tir()
    shifted = (bits << t.const(MANTISSA, "int32")) + t.const(bias << MANTISSA, "int32")
    return t.reinterpret("float32", shifted)


def _exp_bounded(x: Expr) -> Expr:
    """2**n * p(f) for |x| <= 87: n the nearest integer of x/ln2, f = x - n ln2 with ln2 in two parts."""

    def scaled(f: Expr, bits: Expr) -> Expr:
        return (_horner(f, EXP_P) * f * f + f + const(1.0, f)) * _power(bits, BIAS)

    def rest(x: Expr, n: Expr, bits: Expr) -> Expr:
        return let(n * const(-LN2_LOW, x) + (n * const(-LN2_HIGH, x) + x), lambda f: scaled(f, bits))

    return let(x, lambda x: _nearest(x * const(1.0 / math.log(2.0), x), functools.partial(rest, x)))


@_row
def exp(x: Expr) -> Expr:
    """A polynomial and a shifted exponent in float32, libm in others."""
    if _dtype(x) != "float32":
        return _call("exp", x)

    # exp(x) = exp(x/2)**2 keeps the bit trick inside the normal range, so that overflow gives inf and underflow
    # reaches the denormals and 0 by plain multiplication. 104 is beyond both ends of float32.
    def body(x: Expr) -> Expr:
        return let(_exp_bounded(_clamp(x, -104.0, 104.0) * const(0.5, x)), lambda e: e * e)

    return let(x, body)


@_row
def erf(x: Expr) -> Expr:
    """x + x p(x**2) up to 1, from there 1 - exp(-q(|x|)), in float32; libm in others."""
    if _dtype(x) != "float32":
        return _call("erf", x)
    one = const(1.0, x)

    def parts(x: Expr, size: Expr) -> Expr:
        near = let(x * x, lambda square: x * _horner(square, ERF_NEAR) + x)
        # At 4 it is 1: float32 has nothing between.
        far = let(one - _exp_bounded(-_horner(size, ERF_FAR)), lambda y: where(less(x, const(0.0, x)), -y, y))
        return where(less(size, one), near, far)

    return let(x, lambda x: let(_tir().abs(_clamp(x, -4.0, 4.0)), lambda size: parts(x, size)))


@_row
def expm1(x: Expr) -> Expr:
    """2**n q + (2**n - 1) in float32, with q the polynomial of exp less 1, libm in others.

    Half of it is computed and doubled: 2**128 is beyond float32, though exp(88.7) is not. Where n is 0 it is q itself.
    """
    if _dtype(x) != "float32":
        return _call("expm1", x)
    half = const(0.5, x)

    def whole(n: Expr, bits: Expr, q: Expr) -> Expr:
        scaled = let(_power(bits, BIAS - 1), lambda s: (s * q + (s - half)) * const(2.0, x))
        return where(_tir().EQ(n, const(0.0, x)), q, scaled)

    def rest(x: Expr, n: Expr, bits: Expr) -> Expr:
        f = n * const(-LN2_LOW, x) + (n * const(-LN2_HIGH, x) + x)
        return let(f, lambda f: let(_horner(f, EXP_P) * f * f + f, lambda q: whole(n, bits, q)))

    def bounded(x: Expr) -> Expr:
        return _nearest(x * const(1.0 / math.log(2.0), x), functools.partial(rest, x))

    return let(_clamp(x, -20.0, 89.0), bounded)  # below it is -1 in float32, above infinite


@_row
def log(x: Expr) -> Expr:
    """The exponent and a polynomial of the mantissa in float32, libm in others."""
    if _dtype(x) != "float32":
        return _call("log", x)
    return let(x, _log_float32)


def _log_float32(x: Expr) -> Expr:
    t = _tir()

    def i32(v: int) -> Expr:
        return t.const(v, "int32")

    # Denormals are scaled up by 2**24 first. m in [sqrt(1/2), sqrt(2)), x = m * 2**e.
    tiny = less(x, const(1.17549435e-38, x))
    bits = t.reinterpret("int32", where(tiny, x * const(16777216.0, x), x))

    def split(bits: Expr) -> Expr:
        shifted = bits - i32(0x3F3504F3)
        exponent = (shifted >> i32(23)) + t.Select(tiny, i32(-24), i32(0))
        mantissa = (shifted & i32(0x007FFFFF)) + i32(0x3F3504F3)
        return let(
            t.Cast("float32", exponent),
            lambda e: let(t.reinterpret("float32", mantissa) - const(1.0, x), lambda m: series(e, m)),
        )

    def series(e: Expr, m: Expr) -> Expr:
        square = m * m
        tail = m * square * _horner(m, LOG_P) + e * const(LN2_LOW, x) - square * const(0.5, x)
        return m + tail + e * const(LN2_HIGH, x)

    inf = const(math.inf, x)
    finite = let(bits, split)
    other = where(t.EQ(x, const(0.0, x)), const(-math.inf, x), const(math.nan, x))  # negative numbers and NaN
    return where(greater(x, const(0.0, x)), where(less(x, inf), finite, x), other)


@_row
def sigmoid(x: Expr) -> Expr:
    """q = 1 / (1 + exp(|x|)), or 1 - q where x is not negative. Exactly 0 at -inf: 0 times inf must stay NaN where it
    is used as a gate.

    In float32 the exponential is infinite from 88.4 on, where its scale 2**128 is. Near 1 only the subtraction rounds,
    by half a unit: a state that such a gate multiplies in every step adds up its errors.
    """
    if _dtype(x) != "float32":
        return div(const(1.0, x), const(1.0, x) + _call("exp", neg(x)))
    one, zero = const(1.0, x), const(0.0, x)

    def scaled(f: Expr, bits: Expr) -> Expr:
        scale = _tir().reinterpret("float32", bits << _tir().const(MANTISSA, "int32"))
        return div(one, _horner(f, SIGMOID_P) * scale + one)

    def rest(size: Expr, n: Expr, bits: Expr) -> Expr:
        return let(n * const(-LN2_LOW, x) + (n * const(-LN2_HIGH, x) + size), lambda f: scaled(f, bits))

    def below_half(size: Expr) -> Expr:
        return _nearest(size * const(1.0 / math.log(2.0), x), functools.partial(rest, size), NEAREST + BIAS)

    def body(x: Expr) -> Expr:
        size = _tir().Min(const(89.0, x), _tir().abs(x))
        return let(let(size, below_half), lambda q: where(greater_equal(x, zero), one - q, q))

    return let(x, body)


def rational_sigmoid(x: Expr) -> Expr:
    """Of float32 alone, with ONNX Runtime's bits (MLAS): absolute error 1.3e-7, far from 0 a large relative one."""

    def inside(x: Expr) -> Expr:
        return let(x * x, lambda y: div(x * _horner(y, RATIONAL_P), _horner(y, RATIONAL_Q)) + const(0.5, x))

    t = _tir()
    return t.Max(const(0.0, x), t.Min(const(1.0, x), let(_clamp(x, -18.0, 18.0), inside)))


@_row
def log1p(y: Expr) -> Expr:
    """Kahan's log(u) (y / (u - 1)) with u = 1 + y, which keeps the relative error small where y is."""
    if _dtype(y) != "float32":
        return _call("log1p", y)
    one = const(1.0, y)

    def ratio(y: Expr, u: Expr) -> Expr:
        exact = logical_or(_tir().EQ(u, one), _tir().EQ(u, const(math.inf, y)))
        return where(exact, y, log(u) * div(y, where(exact, one, u - one)))

    return let(y, lambda y: let(y + one, lambda u: ratio(y, u)))


def softplus(x: Expr) -> Expr:
    """max(x, 0) + log1p(exp(-|x|)). Graphs are compiled with these three as nodes of their own (see
    passes/normalise.py)."""
    return let(x, lambda x: relu(x) + log1p(exp(neg(abs(x)))))
