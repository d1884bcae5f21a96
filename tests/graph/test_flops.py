"""flops: operations of nodes, graphs and networks, for one row of one step."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn.graph.flops import flops_per_row, graph_flops, node_flops
from tvm_rnn.graph.graph import Layers, Node, make
from tvm_rnn.passes import pipeline
from tvm_rnn.target import TABLE

V4 = TABLE["x86-64-v4"]


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


def test_a_backward_graph_counts_its_sums() -> None:
    (graph,) = layers_of(rnn.RNN(rnn.cells.lstm, 8, 32), training=True).graphs
    assert graph.backward is not None
    whole = graph_flops(graph.backward)
    assert whole > 4 * 4 * 32 * 32 and graph_flops(graph.backward, "before") < whole
    assert graph_flops(graph) == flops_per_row(Layers((graph,), (0,)), 1)
