"""tangents: a network with tangents gives what the network gives, and how that changes along a direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.language.tangents import END, NoTangents, tangents
from tvm_rnn.network.layer import weight_name
from tvm_rnn.oracle.reference import reference

T, B, X, H = 4, 2, 5, 6


@rnn.cell(states="h c", output="y")
def many(x: "I", h: "H", c: "2", u: "2", *, W: "2 H I", R: "H H", V: "2 H", table: "3 H"):
    """What has rules of its own: maxima, places, moves, powers, what has another gradient, two inputs."""
    gates = rnn.einsum("ghi,i->gh", W, x)
    new = rnn.tanh(gates[0] + R @ h) * rnn.softmax(gates[1]) + rnn.take(table, 1.0) * rnn.max(gates)
    held = rnn.concat([rnn.absolute(c[1:]) ** 1.5, u[:1]]) + V @ new
    return new, held, rnn.where(new > 0.1, new * held[0], rnn.flip(h, -1))


NETS: dict[str, tuple[rnn.Cell, dict[str, Any]]] = {
    "many": (many, {}),
    "gru, two layers, both directions": (cells.gru, {"num_layers": 2, "bidirectional": True}),
    "norms": (cells.lstm_layer_norm, {"num_layers": 2}),
    "heads": (cells.slstm, {"N": 2}),
    "matrices": (cells.mlstm, {}),
    "members": (cells.elman, {"members": 3}),
}


@pytest.mark.parametrize("name", NETS)
def test_along_a_direction(name: str) -> None:
    """Beside central differences of the oracle."""
    cell, options = NETS[name]
    net = rnn.RNN(cell, X, H, dtype="float64", **options).init(1)
    own = rnn.RNN(tangents(net.cell), X, H, dtype="float64", **options).init(2)
    ways = {}
    for layer in range(net.num_layers):
        for direction in range(net.num_directions):
            for p in net.layers[0].graph.params:
                plain, other = (weight_name(p.name + end, layer, direction) for end in ("", END))
                own.weights[plain], ways[plain] = net.weights[plain], own.weights[other]
    rng = np.random.default_rng(0)
    x, u = ({n: rng.normal(size=(T, B, *shape)) for n, shape in net.input_shapes.items()} for _ in range(2))
    (first, *rest), wide = net.input_shapes, {}
    wide[first] = np.stack([x[first], u[first]], 2)
    for key in rest:
        wide |= {key: x[key], key + END: u[key]}
    y, last = reference(own)(wide)
    y = y.reshape(T, B, net.num_directions, 2, -1)

    def at(step: float) -> tuple[np.ndarray, Any]:
        net.weights = {key: own.weights[key] + step * ways[key] for key in ways}
        return reference(net)({key: x[key] + step * u[key] for key in x})

    e = 1e-6
    (value, _), (up, above), (down, below) = at(0.0), at(e), at(-e)
    np.testing.assert_allclose(y[:, :, :, 0].reshape(value.shape), value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(y[:, :, :, 1].reshape(value.shape), (up - down) / (2 * e), rtol=1e-5, atol=1e-7)
    for key in above:
        np.testing.assert_allclose(last[key + END], (above[key] - below[key]) / (2 * e), rtol=1e-5, atol=1e-7)


def test_what_has_none() -> None:
    @rnn.cell(constants="k")
    def held(x: "I", h: "I", k: "I"):
        return rnn.tanh(x + k * h)

    @rnn.cell
    def drawn(x: "I", h: "I"):
        return h + rnn.random_uniform(2)[0] * x

    for cell, why in ((held, "constants"), (drawn, "random")):
        with pytest.raises(NoTangents, match=why):
            rnn.RNN(tangents(cell), 3)
