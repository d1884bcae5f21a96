"""Cells that are linear in their states and that no paper has, each twice: in the language, and as a step in NumPy.

In: nothing. Out: `OWN`, by the name of the cell: the cell, and a function of the weights, one row of x and the old
states that returns the output and the new states; `exact`, for networks that 16 bits would round apart; `enduring`, a
cell for many steps, and `stretches`, its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

import tvm_rnn as rnn
from tvm_rnn import cell, exp, log_sigmoid, matvec, maximum, outer, sigmoid, softplus, sqrt, sum, tanh, vecdot

Array = np.ndarray
Weights = Mapping[str, Array]


def exact(net: rnn.RNN) -> rnn.RNN:
    """The network with weights in 32nds: 16 bits hold their products with few small whole numbers exactly.

    What a cell divides by a norm or a normaliser can be near 0 (of a step after a reset: query times key), where the
    rounding of a query changes the result by as much as it is.
    """
    return net.load({name: np.round(value.astype(float) * 32) / 32 for name, value in net.weights.items()})


@cell(states="S", output="y")
def corrected_twice(x: "I", S: "N? H K=H", *, W: "4 N? K I", V: "2 N? H I", w: "2 N? I", b: "N? K"):
    """A matrix whose keys' features decay each at its own rate, with an update of rank two and a gate at the output.

    Order of W: q k p d; of V: v o; of w: how much of what k and p find is taken away.
    """
    q, k, p, d = W @ x
    v, o = V @ x
    k, p = (u / sqrt(vecdot(u, u) + 1e-6)[..., None] for u in (k, p))
    first, second = sigmoid(w @ x)[..., None]
    S = S * exp(-softplus(d + b))[..., None, :]
    S = S + outer(first * (v - matvec(S, k)), k) - outer(second * matvec(S, p), p)
    return S, (sigmoid(o) * matvec(S, q)).reshape(-1)


def _corrected_twice(w: Weights, x: Array, S: Array) -> tuple[Array, ...]:
    q, k, p, d = (M.dot(x) for M in w["W"])
    v, o = (M.dot(x) for M in w["V"])
    k, p = k / np.sqrt(k.dot(k) + 1e-6), p / np.sqrt(p.dot(p) + 1e-6)
    first, second = 1 / (1 + np.exp(-w["w"].dot(x)))
    decay = np.diag(1 / (1 + np.exp(d + w["b"])))
    S = S.dot(decay).dot(np.eye(k.size) - first * np.outer(k, k) - second * np.outer(p, p)) + first * np.outer(v, k)
    return S.dot(q) / (1 + np.exp(-o)), S


@cell(states="S", output="y")
def given_delta(x: "I", S: "H K=I", *, V: "H I", w: "2 I"):
    """A delta rule whose key and query are its input, times a constant."""
    d, b = sigmoid(w @ x)
    k = rnn.rename(0.2 * x, "K")
    S = d * S
    S = S + outer(b * (V @ x - matvec(S, k)), k)
    return S, matvec(S, k)


def _given_delta(w: Weights, x: Array, S: Array) -> tuple[Array, ...]:
    d, b = 1 / (1 + np.exp(-w["w"].dot(x)))
    S = d * S + b * np.outer(w["V"].dot(x) - d * S.dot(0.2 * x), 0.2 * x)
    return S.dot(0.2 * x), S


@cell(states="S", output="y")
def delta_by_key(x: "I", S: "N? H K=H", *, W: "3 N? K I", v: "N? H I", w: "N? I"):
    """A delta rule whose keys' features decay each at its own rate. Order of W: q k d; w: how much is corrected."""
    q, k, d = W @ x
    k = k / sqrt(vecdot(k, k) + 1e-6)[..., None]
    S = S * sigmoid(d)[..., None, :]
    S = S + outer(sigmoid(w @ x)[..., None] * (v @ x - matvec(S, k)), k)
    return S, matvec(S, q).reshape(-1)


def _delta_by_key(w: Weights, x: Array, S: Array) -> tuple[Array, ...]:
    q, k, d = (M.dot(x) for M in w["W"])
    k = k / np.sqrt(k.dot(k) + 1e-6)
    S = S / (1 + np.exp(-d))
    S = S + np.outer(w["v"].dot(x) - S.dot(k), k) / (1 + np.exp(-w["w"].dot(x)))
    return S.dot(q), S


@cell(states="a c", output="c")
def driven(x: "I", a: "H", c: "H", *, W: "3 H I", b: "3 H"):
    """A linear state that drives another: c is linear in itself once all of a are known. Order: decay, input, gate."""
    f, u, g = W @ x + b
    a = sigmoid(f) * a + u
    keep = sigmoid(g + a)
    return a, keep * c + (1.0 - keep) * tanh(a)


def _driven(w: Weights, x: Array, a: Array, c: Array) -> tuple[Array, ...]:
    f, u, g = (M.dot(x) + b for M, b in zip(w["W"], w["b"], strict=True))
    a = a / (1 + np.exp(-f)) + u
    c = np.tanh(a) + (c - np.tanh(a)) / (1 + np.exp(-g - a))
    return c, a, c


@cell(states="S C h m", output="y", initial={"m": -1.0})
def enduring(x: "I", S: "K K", C: "K K", h: "K", m: "", *, A: "3 K I"):
    """A delta rule, a decaying sum, an average and a maximum, whose gates inputs set."""
    k, q, v = A @ x
    k = k / sqrt(sum(k * k) + 1e-6)
    keep, write = sigmoid(x[0]), sigmoid(x[1])
    S = keep * (S - write * outer(S @ k, k)) + write * outer(v, k)
    C = 0.999 * keep * C + write * outer(v, k)
    h = keep * h + (1 - keep) * v
    m = maximum(m + log_sigmoid(x[0]), x[1])
    return S, C, h, m, S @ q + C @ q + h + m


def stretches(steps: int) -> Array:
    """Inputs of `enduring`, [steps, 5 rows, 4]. Rows: gates near 0 and near 1 in turns; near 1 and near 0 all the time;
    zeros; one input again and again, so that keys repeat."""
    x = np.random.default_rng(0).standard_normal((steps, 5, 4))
    near, stretch = np.array([100.0, -100.0, 30.0, -30.0]), np.arange(steps) // (steps // 12)
    x[:, 0, 0], x[:, 0, 1] = near[stretch % 4], near[stretch // 2 % 4]
    x[:, 1] = x[0, 1]
    x[:, 1, :2], x[:, 2, :2], x[:, 3], x[:, 4] = 100.0, -100.0, 0.0, x[0, 4]
    x[:, 4, :2] = 5.0
    return x


OWN: dict[str, tuple[rnn.Cell, Callable[..., tuple[Array, ...]]]] = {
    "corrected_twice": (corrected_twice, _corrected_twice),
    "given_delta": (given_delta, _given_delta),
    "delta_by_key": (delta_by_key, _delta_by_key),
    "driven": (driven, _driven),
}
