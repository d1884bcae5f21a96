"""graph_text: a graph's regions as text; golden files of every stage are in test_show.py."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn.graph.graph_text import graph_text, layers_text, value_names
from tvm_rnn.passes import pipeline
from tvm_rnn.target import TABLE

V4 = TABLE["x86-64-v4"]


def test_names_depend_on_the_equations_alone() -> None:
    one, two = (rnn.RNN(rnn.cells.lstm, 3, 5).layers[0].graph for _ in range(2))
    assert graph_text(one) == graph_text(two) and "c'" in value_names(one).values()
    assert graph_text(one).splitlines()[0].startswith("graph lstm")


def test_layers_that_share_a_graph_are_written_once() -> None:
    layers = pipeline.run(rnn.RNN(rnn.cells.lstm, 5, 5, num_layers=3), V4)[-1][1]
    assert layers_text(layers).count("graph lstm") == 1 and "layers 0,1,2" in layers_text(layers)
    alone = pipeline.run(rnn.RNN(rnn.cells.lstm, 5, 5), V4)[-1][1]
    assert "layers" not in layers_text(alone)
