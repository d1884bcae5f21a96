"""What backward makes again of states before some steps, and where it does not: by the bytes that move."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, stop_gradient, tanh
from tvm_rnn.bench.suites import neurons
from tvm_rnn.cuda.layer.made_again import MadeAgain, made_again, without_kept
from tvm_rnn.cuda.training.tape_layout import kept_nodes, states_read
from tvm_rnn.graph.graph import Graph
from tvm_rnn.passes import parallelise_time, pipeline
from tvm_rnn.target import resolve


@cell(states="v", output="y")
def of_many(x: "H", a: "H", b: "H", c: "H", v: "H"):
    """One value is read by gradients: to make it again, four inputs would be read."""
    u = tanh(v + x + a + b + c)
    return u * v, u


@cell(states="v", output="y")
def of_inputs(x: "H", v: "H"):
    """Gradients read inputs alone."""
    return v * tanh(x), stop_gradient(v) * x


@cell(states="v", output="y")
def of_weights(x: "H", v: "H", *, W: "H H"):
    u = tanh(v + W @ x)
    return u * v, u


def graph_of(own: rnn.Cell, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Graph, MadeAgain | None]:
    monkeypatch.setattr(parallelise_time, "FILLING", 1)
    net = rnn.RNN(own, 32, 32, **options)
    graph = pipeline.run(net, resolve("nvidia-h200"), training=True)[-1][1].graphs[0]
    return graph, made_again(graph, net)


def test_a_voltage_is_made_again_of_inputs_and_states_before_each_16th_step(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, found = graph_of(neurons.lif_neuron, monkeypatch)
    assert found is not None and found.every == 16
    assert len(graph.emitted) == 1 and [*found.values.values()] == [*graph.emitted]
    assert len(kept_nodes(graph)) == 1 and not kept_nodes(without_kept(graph)) and not states_read(without_kept(graph))


@pytest.mark.parametrize("own", [of_many, of_inputs, of_weights])
def test_what_would_move_more_bytes_is_kept(own: rnn.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_of(own, monkeypatch)[1] is None


@pytest.mark.parametrize("options", [{"reverse": True}, {"bidirectional": True}, {"zoneout": 0.1}])
def test_calls_that_go_back_in_time_and_masks_keep_values(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert graph_of(neurons.lif_neuron, monkeypatch, **options)[1] is None
