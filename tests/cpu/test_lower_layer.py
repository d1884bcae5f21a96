"""layer: what is packed and where the values of a layer live."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, sigmoid, sqrt, sum, tanh, target
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.lower_layer import Layer
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


def layer_of(c: rnn.Cell, hidden: int = 24, without: tuple[str, ...] = ()) -> Layer:
    graph = pipeline.run(rnn.RNN(c, 8, hidden), V4, without)[-1][1].graphs[0]
    return Layer(graph, {}, Emitter(V4, graph.dtype, ()), 4)


def test_an_lstm_packs_two_products_and_four_biases() -> None:
    layer = layer_of(rnn.cells.lstm)
    assert layer.packed.size == 4 * 32 * (8 + 24) + 4 * 32
    assert layer.extent(layer.hoisted) == 4 * 32 and layer.extent(layer.scratch) == 0


def test_values_between_phases_are_scratch() -> None:
    layer = layer_of(rnn.cells.gru_reset_before)
    assert layer.extent(layer.scratch) >= 2 * 32  # r h, and what of z and h the second phase needs


def test_hoisted_values_vanish_with_the_pass() -> None:
    assert layer_of(rnn.cells.lstm, without=("hoist_gemms",)).hoisted == {}


@cell(states="h")
def normed(x: "I", h: "H", *, W: "H I", R: "H H", g: "H"):
    """Weight normalisation: a reduction over parameters alone, packed once."""
    direction = R / sqrt(sum(R * R, -1, keepdims=True) + 1e-6)
    return tanh(W @ x + (sigmoid(g).reshape(-1, 1) * direction) @ h)


@cell(states="h")
def low_rank(x: "I", h: "H", *, W: "H I", U: "H 3", V: "3 H"):
    """A product of two parameters."""
    return tanh(W @ x + (U @ V) @ h)


@cell(states="h")
def tied(x: "H", h: "H", *, W: "H H"):
    """One parameter in two products, once transposed."""
    return tanh(W @ x + W.T @ h)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("c", [normed, low_rank, tied], ids=lambda c: c.name)
def test_expressions_of_parameters_are_computed_when_weights_are_loaded(c: rnn.Cell) -> None:
    net = rnn.RNN(c, 19, 19).init(4)
    module = rnn.compile(net)
    x = np.random.default_rng(0).normal(size=(6, 3, 19)).astype("float32")
    assert_close(module(x)[0], rnn.reference(net)(x)[0], "float32", 6)
    net.init(5)
    module.load_weights(net.weights)
    assert_close(module(x)[0], rnn.reference(net)(x)[0], "float32", 6)
