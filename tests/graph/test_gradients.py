"""Gradients of single ops at ties, at NaN and at infinity: torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, clip, logsumexp, max, maximum, minimum, relu, sqrt, where
from tvm_rnn.graph.gradients import contract

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 700.0])
Function = Callable[[Any], Any]
UNARY: dict[str, tuple[Function, Function]] = {
    "abs": (abs, torch.abs),
    "sign": (rnn.sign, torch.sign),
    "exp": (rnn.exp, torch.exp),
    "expm1": (rnn.expm1, torch.expm1),
    "log": (rnn.log, torch.log),
    "log1p": (rnn.log1p, torch.log1p),
    "sqrt": (rnn.sqrt, torch.sqrt),
    "tanh": (rnn.tanh, torch.tanh),
    "sigmoid": (rnn.sigmoid, torch.sigmoid),
    "relu": (rnn.relu, torch.relu),
    "softplus": (rnn.softplus, torch.nn.functional.softplus),
    "erf": (rnn.erf, torch.erf),
    "floor": (rnn.floor, torch.floor),
    "round": (rnn.round, torch.round),
    "stop_gradient": (lambda x: x * rnn.stop_gradient(x), lambda x: x * x.detach()),
    "straight through": (lambda x: rnn.surrogate(rnn.floor(x + 0.5), x), lambda x: x),
    "clip": (lambda x: clip(x, -1.0, 0.5), lambda x: x.clamp(-1.0, 0.5)),
    "at least": (lambda x: maximum(x, 0.5), lambda x: x.clamp(min=0.5)),
    "at most": (lambda x: minimum(1.0, x), lambda x: x.clamp(max=1.0)),
    "elu": (rnn.elu, lambda x: torch.where(x > 0, x, torch.expm1(torch.where(x > 0, 0.0, x)))),
    "leaky_relu": (rnn.leaky_relu, torch.nn.functional.leaky_relu),
    "power": (lambda x: abs(x) ** 1.7, lambda x: torch.abs(x) ** 1.7),
    "power 0": (lambda x: rnn.power(x, 0.0), lambda x: torch.pow(x, 0.0)),
    "square": (lambda x: x**2, lambda x: x**2),
    "chosen": (lambda x: where(x > 0.0, sqrt(abs(x)), 1.0), lambda x: torch.where(x > 0, x.abs().sqrt(), 1.0)),
}
Pair = Callable[[Any, Any], Any]
BINARY: dict[str, tuple[Pair, Pair]] = {
    "maximum": (maximum, torch.maximum),
    "minimum": (minimum, torch.minimum),
    "mul": (lambda a, b: a * b, torch.mul),
    "div": (lambda a, b: a / b, torch.div),
    "power": (rnn.power, torch.pow),
    "mod": (rnn.mod, torch.remainder),
    "chosen": (lambda a, b: where(a > b, a, b * 2.0), lambda a, b: torch.where(a > b, a, b * 2.0)),
}


def ours(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The gradients of sum(function(*arrays)): each array an input of one step; the state is not read."""
    names = ", ".join(f'{n}: "{a.size}"' for n, a in zip("ab", arrays, strict=False))
    space: dict[str, Any] = {"function": function}
    exec(f"def drawn({names}, h: '{arrays[0].size}'): return function({', '.join('ab'[: len(arrays)])})", space)
    net = rnn.RNN(cell(space["drawn"]), arrays[0].size, dtype="float64")
    x = {n: a[None, None] for n, a in zip("ab", arrays, strict=False)}
    gx, _, _ = rnn.reference(net).gradients(x, None, np.ones((1, 1, net.output_size)))
    return [v[0, 0] for v in (gx.values() if isinstance(gx, dict) else [gx])]


def theirs(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    function(*leaves).sum().backward()
    return [v.grad.numpy() for v in leaves]


@pytest.mark.parametrize("name", UNARY)
def test_of_one_operand(name: str) -> None:
    own, other = UNARY[name]
    np.testing.assert_allclose(ours(own, ODD)[0], theirs(other, ODD)[0], rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", BINARY)
def test_of_two_operands(name: str) -> None:
    own, other = BINARY[name]
    grid = [v.ravel() for v in np.meshgrid(ODD[:-1], ODD[:-1])]
    for found, expected in zip(ours(own, *grid), theirs(other, *grid), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("values", [[1.0, 3.0, 3.0], [np.nan, 1.0, 2.0], [-np.inf, 0.0, -np.inf], [np.inf, 1.0, 2.0]])
def test_of_max_over_an_axis(values: list[float]) -> None:
    array = np.array(values)
    found = ours(lambda x: max(x, keepdims=True) + 0.0 * relu(x), array)[0]
    expected = theirs(lambda x: torch.amax(x, -1, keepdim=True) + 0.0 * torch.relu(x), array)[0]
    np.testing.assert_allclose(found, expected)


AXES: dict[str, tuple[Function, Function]] = {
    "logsumexp": (lambda x: logsumexp(x, keepdims=True), lambda x: torch.logsumexp(x, -1, keepdim=True)),
    "cumsum": (rnn.cumsum, lambda x: torch.cumsum(x, -1)),
    "cumprod": (rnn.cumprod, lambda x: torch.cumprod(x, -1)),
    "sort": (rnn.sort, lambda x: torch.sort(x, stable=True).values),
    "sort down": (
        lambda x: rnn.sort(x, descending=True),
        lambda x: torch.sort(x, descending=True, stable=True).values,
    ),
    "topk": (lambda x: rnn.topk(x, 2)[0], lambda x: torch.topk(x, 2).values),
    "list": (lambda x: x[[1, 1, 0, -1]], lambda x: x[[1, 1, 0, -1]]),
    "backwards": (lambda x: x[::-1], lambda x: x.flip(-1)),
    "every other": (lambda x: x[1::2], lambda x: x[1::2]),
}
VALUES = ([1.0, 3.0, 2.0, -4.0], [0.0, 3.0, 0.0, 2.0], [2.0, 2.0, -1.0, 2.0], [np.nan, 1.0, 2.0, np.nan])
VALUES += ([-np.inf, 0.0, np.inf, 1.0], [-np.inf] * 4, [np.inf, 1.0, 2.0, -3.0], [0.0, -0.0, 0.0, 1.0])


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("name", AXES)
def test_along_an_axis(name: str, values: list[float]) -> None:
    """Each result counts differently. torch's topk breaks ties in no order; its cumprod divides by what is infinite."""
    own, other = AXES[name]
    array = np.array(values)
    if (name == "topk" and len({*map(str, values)}) < 4) or (name == "cumprod" and not np.isfinite(array).all()):
        return
    above = np.array([1.0, 2.0, 4.0, 8.0])
    found = ours(lambda x: 0.25 * rnn.sum(own(x) * above[: own(x).shape[0]]) + np.zeros(4), array)[0]
    expected = theirs(lambda x: other(x) * torch.tensor(above)[: other(x).shape[0]], array)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


SPIKES: dict[str, tuple[Function, Callable[[np.ndarray], np.ndarray]]] = {
    "fast_sigmoid": (lambda x: rnn.fast_sigmoid_spike(x, 10.0), lambda x: 1 / (1 + 10 * np.abs(x)) ** 2),
    "atan": (rnn.atan_spike, lambda x: 1 / (1 + (np.pi * x) ** 2)),
    "triangle": (lambda x: rnn.triangle_spike(x, 0.5), lambda x: 0.5 * np.maximum(0, 1 - np.abs(x))),
}


@pytest.mark.parametrize("name", SPIKES)
def test_of_spikes(name: str) -> None:
    array = np.array([0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 7.0, -7.0])
    spike, slope = SPIKES[name]
    np.testing.assert_allclose(ours(spike, array)[0], slope(array), rtol=1e-12)


def test_an_axis_of_one_operand_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="axis of 'ij' is summed alone"):
        contract(None, np.ones(3), np.ones(3), [np.ones((3, 4)), np.ones(3)], spec="ij,i->i")
