"""pipeline: the order of passes, switching them off, and the meaning after every stage."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import constants, flags, network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, target
from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]
OFF = [(), *((name,) for name in PASS_NAMES), *combinations(PASS_NAMES[:3], 2), PASS_NAMES]


@pytest.mark.few_cells
@pytest.mark.broad_after(len(rnn.cells.names()))
@pytest.mark.parametrize("name", rnn.cells.names())
@pytest.mark.parametrize("off", OFF, ids=lambda off: "+".join(off) or "all on")
def test_every_stage_means_the_same(name: str, off: tuple[str, ...]) -> None:
    c = rnn.cells.get(name)
    width = 3 if "I" in c.size_names else 5
    net = rnn.RNN(c, width, 5, **{n: 2 for n in c.size_names if n not in ("I", "H")}).init(2)
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(3, 2, *shape)) for shape in net.input_shapes.values()]
    x = inputs[0] if len(inputs) == 1 else tuple(inputs)
    held = constants(net, 2)
    expected, state = rnn.reference(net)(x, **held)
    for stage, layers in pipeline.run(net, V4, off):
        actual, ours = Reference(net, [layers.graphs[i] for i in layers.of_layer])(x, **held)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12, err_msg=stage)
        for key, value in state.items():
            np.testing.assert_allclose(ours[key], value, rtol=1e-12, atol=1e-12, err_msg=f"{stage}: {key}")


QUICK = ("lstm", "gru_reset_before", "lstm_layer_norm", "mlstm", "delta_net", "augru")


@pytest.mark.broad_after(15)
@pytest.mark.parametrize("off", OFF, ids=lambda off: "+".join(off) or "all on")
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in rnn.cells.names()]
)
def test_every_stage_of_training_means_the_same(name: str, off: tuple[str, ...]) -> None:
    net = network(name, 3, 5, dtype="float64")
    case = draw(net, 3, 2, **flags(3, 2))
    expected = oracle(net, case)
    for stage, layers in pipeline.run(net, V4, off, training=True)[1:]:
        run = Reference(net, [layers.graphs[i] for i in layers.of_layer])
        found = named(*run.gradients(case.x, case.state, case.gy, case.gstate, **case.rows))
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-11, atol=1e-12, err_msg=f"{stage}: {key}")


def test_training_applies_every_pass_to_both_graphs() -> None:
    stages = pipeline.run(rnn.RNN(rnn.cells.lstm, 3, 5), V4, ["combine_gemms"], training=True)
    assert [name for name, _ in stages][:2] == ["trace", "differentiate"]
    graph = stages[-1][1].graphs[0]
    assert graph.backward is not None and graph.applied == ("differentiate", *graph.backward.applied)
    assert graph.backward.applied == ("parallelise_time", "hoist_gemms", "fuse_pointwise", "tile_layers_and_time")


def test_stages_are_in_order() -> None:
    names = [name for name, _ in pipeline.run(rnn.RNN(rnn.cells.lstm, 3, 5), V4)]
    assert names == ["trace", "normalise", *PASS_NAMES]


def test_a_pass_that_only_improves_is_left_out() -> None:
    names = [name for name, _ in pipeline.run(rnn.RNN(rnn.cells.lstm, 3, 5), V4, ["hoist_gemms"])]
    assert "hoist_gemms" not in names


def test_graphs_know_what_was_applied() -> None:
    graph = pipeline.run(rnn.RNN(rnn.cells.lstm, 3, 5), V4, ["combine_gemms"])[-1][1].graphs[0]
    assert graph.applied == ("parallelise_time", "hoist_gemms", "fuse_pointwise", "tile_layers_and_time")
    off = ["fuse_pointwise", "tile_layers_and_time"]  # they run all the same, in their plain form
    graph = pipeline.run(rnn.RNN(rnn.cells.lstm, 3, 5), V4, off)[-1][1].graphs[0]
    assert graph.applied == ("parallelise_time", "hoist_gemms", "combine_gemms")


def test_layers_of_equal_sizes_share_a_graph() -> None:
    layers = pipeline.run(rnn.RNN(rnn.cells.lstm, 5, 5, num_layers=6), V4)[-1][1]
    assert len(layers.graphs) == 1 and layers.of_layer == (0,) * 6
    layers = pipeline.run(rnn.RNN(rnn.cells.lstm, 3, [5, 7, 5], num_layers=3), V4)[-1][1]
    assert len(layers.graphs) == 3


def test_an_unknown_pass_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no such pass[\s\S]*hoist_gems[\s\S]*did you mean 'hoist_gemms'"):
        pipeline.run(rnn.RNN(rnn.cells.lstm, 3, 5), V4, ["hoist_gems"])


def _walked(monkeypatch: pytest.MonkeyPatch, levels: int) -> float:
    """How many nodes the passes walk for each node of a cell of so many products, one behind the other."""

    @rnn.cell
    def deep(x: "I", h: "H", *, W: "H I", U: "N H H") -> object:
        value = rnn.tanh(W @ x + h)
        for level in range(levels):
            value = rnn.tanh(U[level] @ value) + rnn.sigmoid(value)
        return value

    walked = 0

    def counted(roots: Iterable[Node]) -> Iterator[Node]:
        nonlocal walked
        for node in topological(roots):
            walked += 1
            yield node

    for module in [
        m for name, m in sys.modules.copy().items() if name.startswith("tvm_rnn.") and "topological" in vars(m)
    ]:
        monkeypatch.setattr(module, "topological", counted)
    net = rnn.RNN(deep, 2, 3, N=levels)
    walked = 0
    with recording(True):
        stages = pipeline.run(net, target.resolve("x86-64-v3"), training="values")
    return walked / sum(1 for _ in topological(stages[0][1].graphs[0].roots))


def test_passes_walk_each_node_as_often_in_larger_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = _walked(monkeypatch, 6), _walked(monkeypatch, 12)
    assert large < 1.3 * small
