"""The gradients of the op table that take more than one line.

In: `f`, the functions that gradients are written with, then the gradient from above, the op's result and arguments:
arrays, or traced values. Out: one gradient per argument before un-broadcasting, for the gradient column of `ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Array = Any


class Functions(Protocol):
    """The functions of cells by name: those of `language/functions.py`, or what stands in for them."""

    def __getattr__(self, name: str) -> Callable[..., Array]: ...


Shape = tuple[int, ...]
SQRT_PI = float(np.sqrt(np.pi))


def contract(f: Functions, g: Array, out: Array, args: Sequence[Array], *, spec: str) -> Sequence[Array]:
    """einsum: each operand gets the product of the gradient with the other. Raises ValueError for an axis that one
    operand alone has, and that is summed."""
    inputs, result = spec.split("->")
    left, right = inputs.split(",")
    for own, other in ((left, right), (right, left)):
        if set(own) - set(other) - set(result):
            raise ValueError(f"an axis of '{own}' is summed alone: write it as sum()")
    return f.contract(f"{result},{right}->{left}", g, args[1]), f.contract(f"{result},{left}->{right}", g, args[0])


def conv(
    f: Functions, g: Array, out: Array, args: Sequence[Array], *, spec: str, taps: Shape, dilation: Shape
) -> Sequence[Array]:
    """conv: the kernel gets the product of the gradient with what its taps saw, the operand the convolution of the
    gradient with the kernel turned round."""
    kernel, x = args
    inputs, result = spec.split("->")
    left, right = inputs.split(",")
    rank = len(taps)
    places, channel, own = right[-rank:], right[0], right[1:-rank]
    lead = result[:-rank]
    spread = g if len(lead) == 1 else f.reshape(g, (-1, *f.shape(g)[-rank:]))
    turned = kernel
    for axis, letter in enumerate(left):
        if letter in own:
            turned = f.flip(turned, axis - len(left))
    order = [left.index(t) for t in (channel, *lead, *own)]
    turned = f.reshape(f.transpose(turned, order), (f.shape(x)[0], -1, *taps))
    wide = f.padded(spread, [(step * (n - 1),) * 2 for n, step in zip(taps, dilation, strict=True)])
    back = f"z{channel}{own},{channel}{own}{places}->z{places}"
    d_x = f.correlate(turned, wide, back, taps, dilation)
    return f.contract(f"{result},{right}->{left}", g, f.windows(x, taps, dilation)), d_x


def windows(f: Functions, g: Array, y: Array, a: Sequence[Array], *, taps: Shape, dilation: Shape) -> Sequence[Array]:
    """windows: each tap's gradient goes back to where it looked."""
    total = None
    for tap in np.ndindex(*taps):
        shifts = [(step * t, step * (n - 1 - t)) for t, n, step in zip(tap, taps, dilation, strict=True)]
        place = (..., *tap, *[np.s_[:]] * len(taps))
        part = f.padded(g[place], shifts)
        total = part if total is None else total + part
    return (total,)


def gemm(f: Functions, g: Array, out: Array, args: Sequence[Array]) -> list[Array]:
    """gemm: for each pair, the outer product for the parameter and the transposed product for the operand."""
    result: list[Array] = []
    for weight, operand in zip(args[::2], args[1::2], strict=True):
        rows = "abc"[: len(f.shape(weight)) - 1]
        result += [f.contract(f"{rows},k->{rows}k", g, operand), f.contract(f"{rows},{rows}k->k", g, weight)]
    return result


def choice(f: Functions, g: Array, args: Sequence[Array], wins: Array, loses: Array) -> list[Array]:
    """maximum and minimum: against a constant as clamp has it, else half each where two are equal."""
    pairs = list(zip(args, reversed(args), strict=True))
    if any(map(f.fixed, args)):
        return [f.where(wins(own, other), g, 0.0) for own, other in pairs]
    return [f.where(own == other, 0.5 * g, f.where(loses(own, other), 0.0, g)) for own, other in pairs]


def power(f: Functions, g: Array, y: Array, args: Sequence[Array]) -> Sequence[Array | None]:
    """power: the base gets 0 where the exponent is 0, the exponent where the base is 0."""
    base, exponent = args
    first = f.where(exponent == 0.0, 0.0, g * exponent * f.power(base, exponent - 1.0))
    if f.fixed(exponent):
        return first, None
    flat = f.logical_and(base == 0.0, exponent >= 0.0)  # where 0 * log(0) would be NaN
    return first, f.where(flat, 0.0, g * y * f.log(base))


def mod(f: Functions, g: Array, y: Array, args: Sequence[Array]) -> Sequence[Array]:
    """mod: the divisor gets what floor(a / b) says, from the rounded result: a / b may round to a whole number."""
    a, b = args
    whole = f.floor((a - y) / b + 0.5)
    endless = f.where(y == a, 0.0, -f.sign(y) * f.sign(b))  # an infinite divisor is in `a` no time, or once
    times = f.where(f.absolute(b) == np.inf, endless, f.where(b == 0.0, a / b, whole))
    return g, -g * times


def erf(f: Functions, g: Array, y: Array, a: Sequence[Array]) -> Sequence[Array]:
    return (g * f.exp(-(a[0] * a[0])) * (2.0 / SQRT_PI),)


def reshape(f: Functions, g: Array, y: Array, a: Sequence[Array], *, rank: int, to: Shape) -> Sequence[Array]:
    return (f.reshape(g, f.shape(a[0])),)


def transpose(f: Functions, g: Array, y: Array, a: Sequence[Array], *, axes: Sequence[int]) -> Sequence[Array]:
    return (f.transpose(g, tuple(int(i) for i in np.argsort(axes))),)


def slice(f: Functions, g: Array, y: Array, a: Sequence[Array], *, axis: int, start: int, stop: int) -> Sequence[Array]:
    return (f.pad(g, axis, start, f.shape(a[0])[axis] - stop),)


def index(f: Functions, g: Array, y: Array, a: Sequence[Array], *, axis: int, at: int) -> Sequence[Array]:
    return (f.pad(f.expand(g, axis), axis, at, f.shape(a[0])[axis] - at - 1),)


def concat(f: Functions, g: Array, y: Array, a: Sequence[Array], *, axis: int) -> list[Array]:
    return f.split(g, [f.shape(v)[axis] for v in a], axis)


def sum(f: Functions, g: Array, y: Array, a: Sequence[Array], *, axis: int, keepdims: bool) -> Sequence[Array]:
    return (f.repeat(g if keepdims else f.expand(g, axis), f.shape(a[0])),)


def max(f: Functions, g: Array, y: Array, a: Sequence[Array], *, axis: int, keepdims: bool) -> Sequence[Array]:
    return (f.share_max(a[0], *(v if keepdims else f.expand(v, axis) for v in (y, g)), axis),)


def take(f: Functions, g: Array, y: Array, args: Sequence[Array], *, rank: int) -> Sequence[Array | None]:
    """Rows of a table: each row gets the sum of what was made of it. Places get none."""
    table, places = args
    lead = f.shape(places)[: len(f.shape(places)) - rank + 1]
    letters, rest = "abcd"[: len(lead)], "wxyz"[: rank - 1]
    chosen = f.one_hot(f.reshape(places, lead), f.shape(table)[0])
    return f.contract(f"{letters}v,{letters}{rest}->v{rest}", chosen, g), None
