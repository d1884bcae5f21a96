"""What of a layer gets memory: sums, what is read twice, what a step leaves behind; and what overwrites its state."""

from __future__ import annotations

import numpy as np
from networks import network

import tvm_rnn as rnn
from tvm_rnn.plain_c.layer_values import DEEPEST, LayerValues, layer_values


def values_of(net: rnn.RNN) -> LayerValues:
    graph = net.layers[0].graph
    return layer_values(graph, {p.name: net.weights[f"{p.name}_l0"] for p in graph.params})


def test_an_lstm_needs_memory_for_its_products_alone() -> None:
    """One product of all gates; c and h overwrite their states, as whoever reads these comes before."""
    values = values_of(network("lstm", 3, 5))
    assert [node.op for node in values.stored] == ["gemm", "add", "mul"]
    assert [state.name for state in values.in_place.values()] == ["h", "c"]
    biases = [value for node, value in values.fixed.items() if node.shape == (5,)]
    assert len(biases) == 4 and all(np.isfinite(value).all() for value in biases)


def test_a_state_that_is_read_later_is_not_overwritten() -> None:
    """Two states that change places: neither may change before both are read."""

    @rnn.cell(states="a b")
    def swapped(x: "I", a: "I", b: "I"):
        return b * 0.5, a + x

    assert [s.name for s in values_of(rnn.RNN(swapped, 3).init(0)).in_place.values()] == ["b"]


def test_an_element_that_reads_another_overwrites_nothing() -> None:
    @rnn.cell
    def turned(x: "H", h: "H"):
        return rnn.tanh(x + rnn.flip(h, -1))

    assert not values_of(rnn.RNN(turned, 3, 3).init(0)).in_place


def test_long_sums_are_cut_into_expressions() -> None:
    @rnn.cell
    def long(x: "H", h: "H"):
        for _ in range(4 * DEEPEST):
            x = rnn.tanh(x)
        return x + h

    assert len(values_of(rnn.RNN(long, 3, 3).init(0)).stored) == 4
