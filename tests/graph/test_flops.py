"""flops: operations of nodes, graphs and networks, for one row of one step."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.graph.flops import flops_per_row, graph_flops, node_flops
from tvm_rnn.graph.graph import Layers, Node, make
from tvm_rnn.passes import pipeline
from tvm_rnn.target import TABLE, resolve

V4, H200 = TABLE["x86-64-v4"], resolve("nvidia-h200")


def layers_of(net: rnn.RNN, training: bool = False) -> Layers:
    return pipeline.run(net, V4, training=training)[-1][1]


def test_a_product_counts_two_for_each_multiply_add() -> None:
    w, x = Node("param", shape=(3, 4), name="W"), Node("input", shape=(4,), name="x")
    assert node_flops(make("einsum", w, x, spec="ab,b->a")) == 2 * 3 * 4
    assert node_flops(make("add", x, x)) == 4 and node_flops(make("concat", x, x, axis=-1)) == 0


def test_a_network_counts_every_layer_and_direction() -> None:
    products = 2 * 4 * 32 * (8 + 32)
    assert products < flops_per_row(layers_of(rnn.RNN(rnn.cells.lstm, 8, 32)), 1) < 1.5 * products
    one, two = (layers_of(rnn.RNN(rnn.cells.lstm, 32, 32, num_layers=n)) for n in (1, 2))
    assert flops_per_row(two, 2) == 4 * flops_per_row(one, 1)


def test_a_recurrence_counts_what_its_step_does() -> None:
    h, a = Node("state", shape=(4,), name="h"), Node("input", shape=(4,), name="a")
    assert node_flops(make("scan", h, a, a)) == node_flops(make("scan_max", h, a, a)) == 2 * 4
    s, k, v, d = (Node("input", shape=shape, name="s") for shape in ((3, 5), (1, 5), (3, 1), (1, 1)))
    new = make("scan_matrix", s, d, v, k, v, k, writes=1, key=-1)
    assert node_flops(new) == 3 * 5 * (1 + 2 + 2)
    assert node_flops(make("scan_matrix", s, d, v, k, make("neg", v), k, writes=1, key=-1)) == 3 * 5 * (1 + 4 + 2)
    own = make("carried", new, s)
    assert node_flops(own) == 0 and node_flops(make("read_out", own, k, key=-1)) == 2 * 3 * 5


@pytest.mark.parametrize("name", ["gated_delta_net", "gla", "min_gru"])
def test_all_steps_at_once_count_as_one_after_the_other(name: str) -> None:
    """Up to pointwise operations that one of the two ways saves."""
    over_time, in_steps = (
        pipeline.run(rnn.RNN(rnn.cells.get(name), 8, 32), H200, without=without)[-1][1]
        for without in ((), ("parallelise_time",))
    )
    assert flops_per_row(over_time, 1) == pytest.approx(flops_per_row(in_steps, 1), rel=0.1)


def test_a_backward_graph_counts_its_sums() -> None:
    (graph,) = layers_of(rnn.RNN(rnn.cells.lstm, 8, 32), training=True).graphs
    assert graph.backward is not None
    whole = graph_flops(graph.backward)
    assert whole > 4 * 4 * 32 * 32 and graph_flops(graph.backward, "before") < whole
    assert graph_flops(graph) == flops_per_row(Layers((graph,), (0,)), 1)
