"""Texts: names that C takes, only the functions that are called, layers that share memory."""

from __future__ import annotations

import re

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Node
from tvm_rnn.network.rnn import RNN
from tvm_rnn.plain_c.floating import Floating
from tvm_rnn.plain_c.layer_values import layer_values
from tvm_rnn.plain_c.source import Network, Source, source


def written(net: RNN, about: tuple[str, ...] = ()) -> Source:
    layers = []
    for own in net.layers:
        weights = {p.name: net.weights[f"{p.name}_l{own.index}"] for p in own.graph.params}
        layers.append((layer_values(own.graph, weights), Floating(net.dtype)))
    return source(Network(net, "amp", layers, about))


def test_only_what_is_called_is_there() -> None:
    texts = written(rnn.RNN(rnn.cells.elman, 2, 8).init(0))
    assert re.findall(r"^static \w+ (\w+)\(", texts.files["amp.c"], re.M) == ["product8"]
    assert "tanhf(" in texts.files["amp.c"] and texts.flash == 4 * (16 + 64 + 8) and texts.ram == 4 * 16


def test_layers_share_memory_where_each_hands_on_a_state() -> None:
    net = rnn.RNN(rnn.cells.lstm, 2, 4, num_layers=2).init(0)
    texts = written(net)
    assert "union {" in texts.files["amp.h"] and texts.ram == 4 * (4 * 4 + 16)
    assert "/* layer 1: c */" in texts.files["amp.h"]


def test_names_of_users_are_no_trouble() -> None:
    """Words of C, our own names, and what ends a comment."""

    @rnn.cell(states="double y", output="out")
    def mine(s: "I", double: "I", y: "I"):
        return y + s, double * s, double

    net = rnn.RNN(mine, 3).init(0)
    texts = written(net, ("made from */ a file",))
    assert "made from * / a file" in texts.files["amp.h"] and "float double_0[3]" in texts.files["amp.h"]
    assert "const float *s_" in texts.files["amp.h"] and isinstance(net.layers[0].graph.output, Node)
