"""regularise: where masks go, what inference makes of them, what options are refused, and the oracle's slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from derivatives import assert_slopes, draw
from networks import arguments, flags, network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, cell, cells, concat, mean, tanh
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.oracle.reference import Draws, Reference
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.runtime import runtime_random
from tvm_rnn.target import TABLE

EVERYTHING: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}


@cell(states="h m")
def mixed(x: "I", h: "H", m: "H", *, W: "H I+H", V: "H H", u: "H"):
    """h enters products in a join and below a mean; m enters none."""
    a = tanh(W @ concat([x, h]) + u * h)
    return a + V @ (h - mean(h)), m * 0.5 + a


def streams(net: rnn.RNN) -> list[list[str]]:
    """By layer: the names of the masks in its graph of training, each as often as it is there."""
    return [sorted(n.attrs["stream"] for n in layer.training.nodes() if n.random) for layer in net.layers]


def test_masks_leave_constants_alone() -> None:
    @cell(constants="m")
    def reading(x: "I", h: "H", m: "M", *, W: "H I", R: "H H", C: "H M"):
        return tanh(W @ x + R @ h + C @ m)

    net = network(reading, 2, 3, M=2, recurrent_dropout=0.3, zoneout=0.2, weight_drop=0.35)
    assert [*net.regularisers.zoneout] == [*net.regularisers.recurrent_dropout] == ["h"]
    assert [*net.regularisers.weight_drop] == ["R"]
    with pytest.raises(ConfigError, match="no such state"):
        network(reading, 2, 3, M=2, zoneout={"m": 0.1})


def test_without_options_nothing_changes() -> None:
    net = network("lstm", 3, 4, num_layers=2, recurrent_dropout=0.0, zoneout={"h": 0})
    assert not net.regularisers and not net.regularisers.streams
    assert all(layer.training is layer.graph for layer in net.layers)


def test_where_masks_are() -> None:
    assert streams(network("lstm", 3, 4, num_layers=3, **EVERYTHING)) == [
        ["recurrent_dropout.h", "zoneout.c", "zoneout.h"],
        *[["dropout", "recurrent_dropout.h", "zoneout.c", "zoneout.h"]] * 2,
    ]
    net = network("gru", 4, 4, num_layers=3, dropout=0.5)
    assert streams(net) == [[], ["dropout"], ["dropout"]]
    assert net.layers[1].training is net.layers[2].training is not net.layers[0].training
    assert net.layers[0].graph is net.layers[1].graph


def test_a_number_is_for_what_parameters_multiply() -> None:
    def own(name: str, **options: Any) -> dict[str, Any]:
        return network(name, 3, 4, **options).regularisers.facts()

    assert own("lstm", weight_drop=0.5, recurrent_dropout=0.25) == {
        "recurrent_dropout": {"h": 0.25},
        "weight_drop": {"R": 0.5},
    }
    assert own("gru_reset_before", recurrent_dropout=0.25) == {"recurrent_dropout": {"h": 0.25}}
    assert own("mlstm", zoneout=0.1)["zoneout"].keys() == {s.name for s in cells.mlstm.states}
    assert own("indrnn", zoneout=0.1) == {"zoneout": {"h": 0.1}}
    found = rnn.RNN(mixed, 3, 4, recurrent_dropout=0.5, weight_drop=0.5).regularisers
    assert found.recurrent_dropout == {"h": 0.5} and found.weight_drop == {"W": 0.5, "V": 0.5}


def test_products_alone_read_what_recurrent_dropout_drops() -> None:
    """A GRU's z * h is of the whole state, and so is what zoneout keeps."""
    net = network("gru", 3, 4, dtype="float64", recurrent_dropout=0.5)
    x, state = arguments(net, 1, 5)
    y, _ = rnn.reference(net, seed=3)(x["x"], state)
    words = runtime_random.key(3, "recurrent_dropout.h", 0, 0)
    mask = runtime_random.mask(words, 0.5, 5, 4, 0) * 2.0
    w, h, one = net.weights, state["h"][0], x["x"][0]

    def gate(i: int) -> tuple[np.ndarray, np.ndarray]:
        return one @ w["W_l0"][i].T + w["b_l0"][i], (h * mask) @ w["R_l0"][i].T

    r, z = (1 / (1 + np.exp(-sum(gate(i)))) for i in (0, 1))
    n = np.tanh(gate(2)[0] + r * (gate(2)[1] + w["b_R_l0"]))
    np.testing.assert_allclose(y[0], (1 - z) * n + z * h, rtol=1e-12)


def test_zoneout_keeps_units_and_inference_has_its_expectation() -> None:
    net = network("lstm", 3, 4, dtype="float64", zoneout={"h": 0.25, "c": 0.5})
    plain = network("lstm", 3, 4, dtype="float64").load(net.weights)
    x, state = arguments(net, 1, 6)
    _, free = rnn.reference(plain)(x["x"], state)
    y, expected = rnn.reference(net)(x["x"], state)
    for name, p in (("h", 0.25), ("c", 0.5)):
        np.testing.assert_allclose(expected[name], p * state[name] + (1 - p) * free[name], rtol=1e-12)
    np.testing.assert_array_equal(y[0], expected["h"][0])
    y, drawn = rnn.reference(net, seed=1)(x["x"], state)
    np.testing.assert_array_equal(y[0], drawn["h"][0])
    for name in ("h", "c"):
        kept = drawn[name] == state[name]
        np.testing.assert_array_equal(np.where(kept, state[name], free[name]), drawn[name])
        assert kept.any() and not kept.all()


def test_dropout_is_between_layers_and_alike_for_both_directions() -> None:
    net = network("elman", 3, 4, num_layers=2, bidirectional=True, dtype="float64", dropout=0.5)
    x = arguments(net, 6, 3)[0]["x"]
    first = network("elman", 3, 4, bidirectional=True, dtype="float64")
    first.load({n: v for n, v in net.weights.items() if "_l0" in n})
    second = network("elman", 8, 4, bidirectional=True, dtype="float64")
    second.load({n.replace("_l1", "_l0"): v for n, v in net.weights.items() if "_l1" in n})
    words = runtime_random.key(2, "dropout", 1, 0)
    mask = np.stack([runtime_random.mask(words, 0.5, 3, 8, 10 + t) for t in range(6)])
    between = rnn.reference(first)(x)[0] * mask * 2.0
    np.testing.assert_allclose(
        rnn.reference(net, seed=2, first_step=10)(x)[0], rnn.reference(second)(between)[0], rtol=1e-12
    )
    plain = network("elman", 3, 4, num_layers=2, bidirectional=True, dtype="float64").load(net.weights)
    np.testing.assert_array_equal(rnn.reference(net)(x)[0], rnn.reference(plain)(x)[0])


SLOPES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("lstm", {"num_layers": 2, "bidirectional": True, **EVERYTHING}),
    "gru": ("gru", {"num_layers": 2, **EVERYTHING}),
    "gru_reset_before": ("gru_reset_before", {"reverse": True, "recurrent_dropout": 0.5, "zoneout": 0.3}),
    "matrices": ("mlstm", {"zoneout": 0.3}),
    "projection": ("lstm_projection", {"recurrent_dropout": 0.4, "weight_drop": 0.4}),
    "joined": ("mixed", {"recurrent_dropout": 0.4, "weight_drop": 0.4, "zoneout": {"m": 0.5}}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.broad) if n in ("lstm", "gru") else n for n in SLOPES]
)
def test_the_oracles_gradients_are_slopes(name: str) -> None:
    cell_name, options = SLOPES[name]
    net = network(mixed if name == "joined" else cell_name, 3, 4, dtype="float64", **options)
    case = draw(net, 5, 3)
    case.training.update(seed=4, first_step=20)
    assert_slopes(net, case)
    case.rows.update(flags(5, 3))
    assert_slopes(net, case)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("without", [(), ("hoist_gemms",), PASS_NAMES], ids=["all", "no hoisting", "none"])
def test_every_stage_has_the_same_masks(without: tuple[str, ...]) -> None:
    net = network("lstm", 3, 4, num_layers=2, bidirectional=True, dtype="float64", **EVERYTHING)
    case, draws = draw(net, 4, 3), Draws(9, 3)
    expected = Reference(net, draws=draws).gradients(case.x, case.state, case.gy, case.gstate)
    for stage, layers in pipeline.run(net, TABLE["x86-64-v4"], without, training=True):
        graphs = [layers.graphs[i] for i in layers.of_layer]
        found = Reference(net, graphs, draws).gradients(case.x, case.state, case.gy, case.gstate)
        assert_close(found[2], expected[2], "float64", 4, stage)
        for graph in graphs:
            assert all(graph.region_of(n) == "before" for n in graph.nodes() if n.random)


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"dropout": 0.5}, ["between layers", "num_layers >= 2"]),
    ({"dropout": 1.0, "num_layers": 2}, ["RNN: dropout", "from 0 to below 1"]),
    ({"zoneout": -0.1}, ["zoneout", "-0.1"]),
    ({"zoneout": "h"}, ["zoneout", "'h'"]),
    ({"zoneout": {"hh": 0.1}}, ["no such state", "hh"]),
    ({"weight_drop": {"h": 0.1}}, ["no such parameter", "R"]),
    ({"recurrent_dropout": {"c": 0.1}}, ["no parameter multiplies state c", "zoneout"]),
    ({"recurrent_dropout": {"h": True}}, ["recurrent_dropout of h", "True"]),
    ({"zone_out": 0.1}, ["no axis 'zone_out'", "zoneout"]),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda v: "-".join(v) if isinstance(v, dict) else "")
def test_what_is_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        rnn.RNN(cells.lstm, 3, 4, **options)
    assert all(word in str(error.value) for word in words), error.value
    for option in ("recurrent_dropout", "weight_drop"):
        with pytest.raises(ConfigError, match="acts where a parameter multiplies a state"):
            rnn.RNN(cells.indrnn, 3, 4, **{option: 0.1})
