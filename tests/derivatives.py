"""Gradients by other ways than back-propagation through our graphs: central differences, and torch's autograd.

In: an RNN with weights, and a `Case`: arguments of a call and gradients of its results. Out: gradients by name ("x",
"state h", "W_l0", ...) to compare with those of the oracle or of a module.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from networks import arguments, fitting

import tvm_rnn as rnn
from tvm_rnn.oracle.torch_graph import Rows, Steps, programs

ENDS = ("lengths", "reset")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """Arguments x, state and rows (lengths, reset); gy and gstate, the gradients of y and of the final state. training:
    seed and first_step, where regularisers act."""

    x: dict[str, Any]
    state: dict[str, Any]
    gy: np.ndarray
    gstate: dict[str, Any]
    rows: dict[str, Any] = field(default_factory=dict)
    training: dict[str, int] = field(default_factory=dict)


def each(value: Any, change: Any) -> Any:
    return [change(v) for v in value] if isinstance(value, list) else change(value)


def draw(net: rnn.RNN, steps: int, batch: int, seed: int = 0, **rows: Any) -> Case:
    """A case in the network's dtype, from a state that is not the initial one."""
    x, state = arguments(net, steps, batch, seed)
    rng = np.random.default_rng(seed + 50)

    def normal(like: np.ndarray) -> Any:
        return np.asarray(rng.normal(size=like.shape)).astype(net.dtype)

    gy = normal(np.empty((steps, batch, *net.output_shape)))
    return Case(x, state, gy, {name: each(v, normal) for name, v in state.items()}, fitting(net, rows))


def named(gx: Any, gstate: dict[str, Any], gweights: Arrays) -> Arrays:
    """What `gradients` and `backward` return, as arrays by name."""
    found = dict(gx) if isinstance(gx, dict) else {"x": gx}
    for name, value in gstate.items():
        parts = value if isinstance(value, list) else [value]
        found |= {f"state {name} {i}": part for i, part in enumerate(parts)}
    return {**found, **gweights}


def oracle(net: rnn.RNN, case: Case) -> Arrays:
    return named(*rnn.reference(net, **case.training).gradients(case.x, case.state, case.gy, case.gstate, **case.rows))


# --- central differences ---------------------------------------------------------------------------------------------


def loss(net: rnn.RNN, case: Case) -> float:
    """What `gradients` differentiates."""
    y, state = rnn.reference(net, **case.training)(case.x, case.state, **case.rows)
    total = np.sum(case.gy * y)
    for name, value in state.items():
        pairs = zip(value, case.gstate[name], strict=True)
        total += sum(np.sum(a * b) for a, b in pairs) if isinstance(value, list) else np.sum(value * case.gstate[name])
    return float(total)


def slopes(net: rnn.RNN, case: Case, directions: Arrays, step: float = 1e-6) -> dict[str, tuple[float, float]]:
    """For each array: the loss's slope along its direction, and the largest magnitude that took part."""
    found = {}
    for name, direction in directions.items():
        ends = [loss(*moved(net, case, name, sign * step * direction)) for sign in (1, -1)]
        found[name] = ((ends[0] - ends[1]) / (2 * step), max(map(abs, ends)))
    return found


def moved(net: rnn.RNN, case: Case, name: str, by: np.ndarray) -> tuple[rnn.RNN, Case]:
    """The network and the case with one array of either changed."""
    if name in case.x:
        return net, replace(case, x={**case.x, name: case.x[name] + by})
    if name.startswith("state "):
        _, key, part = name.split()
        value = case.state[key]
        if isinstance(value, list):
            value = [v + by if i == int(part) else v for i, v in enumerate(value)]
        else:
            value = value + by
        return net, replace(case, state={**case.state, key: value})
    return with_weights(net, {**net.weights, name: net.weights[name] + by}), case


def with_weights(net: rnn.RNN, weights: Arrays) -> rnn.RNN:
    """A network of its own that is like `net`, with other weights."""
    sizes = {axis: [layer.sizes[axis] for layer in net.layers] for axis in net.sizes[0] if axis != "I"}
    ways = {"bidirectional": net.bidirectional, "reverse": net.reverse, **net.regularisers.facts()}
    return rnn.RNN(net.cell, net.input_size, None, net.num_layers, dtype=net.dtype, **ways, **sizes).load(weights)


def assert_slopes(net: rnn.RNN, case: Case, seed: int = 0, tolerance: float = 2e-7) -> None:
    """Every array's gradient along one random direction is the loss's slope. net is of float64."""
    rng = np.random.default_rng(seed)
    found = oracle(net, case)
    directions = {name: np.asarray(rng.choice([-1.0, 1.0], size=g.shape)) for name, g in found.items()}
    for name, (slope, scale) in slopes(net, case, directions).items():
        ours = float(np.sum(found[name] * directions[name]))
        assert abs(ours - slope) <= tolerance * max(1.0, abs(slope), scale), (name, ours, slope)


# --- torch -----------------------------------------------------------------------------------------------------------


def autograd(net: rnn.RNN, case: Case) -> Arrays:
    """torch's own gradients, in float64, of the forward graphs alone, run by torch op by op."""
    import torch

    def leaf(value: Any) -> Any:
        return torch.tensor(np.asarray(value, np.float64), requires_grad=True)

    x = {name: leaf(value) for name, value in case.x.items()}
    state = {name: each(value, leaf) for name, value in case.state.items()}
    weights = {name: leaf(value) for name, value in net.weights.items()}
    lengths, reset = (None if given is None else torch.tensor(given) for given in map(case.rows.get, ENDS))
    steps = Steps(net, programs(net), weights, torch.empty((), dtype=torch.float64))
    y, last = steps([*x.values()], state, Rows(lengths, reset))
    total = (torch.tensor(case.gy, dtype=torch.float64) * y).sum()
    for name, value in last.items():
        pairs = zip(case.gstate[name], value, strict=True)
        total = total + sum((torch.tensor(g, dtype=torch.float64) * v).sum() for g, v in pairs)
    leaves = named(x, state, weights)
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: np.zeros(tuple(v.shape)) if g is None else g.numpy() for (name, v), g in pairs}
