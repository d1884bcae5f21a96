"""Graphs of pixels compute what graphs of images do; what stands in the way is said."""

from __future__ import annotations

from typing import Any

import convolutions
import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, conv, tanh
from tvm_rnn.decisions import about, recording
from tvm_rnn.graph.graph import Graph, Layers, Node
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.differentiate import Differentiate, choice
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.passes.rows_of_pixels import of_pixels
from tvm_rnn.target import resolve

CELLS: dict[str, tuple[Any, dict[str, int]]] = {
    "lstm": (rnn.cells.conv_lstm, {"Y": 3, "X": 4}),
    "peephole": (rnn.cells.conv_lstm_peephole, {"Y": 3, "X": 4}),
    "gru": (rnn.cells.conv_gru, {"Y": 2, "X": 3}),
    "separable": (rnn.cells.conv_gru_separable, {"Y": 4}),
    "line": (convolutions.line, {"L": 7}),
    "images": (convolutions.images, {"Y": 4, "X": 3, "U": 3, "V": 2}),
    "mapped": (convolutions.mapped, {"Y": 2, "X": 3}),
    "joined": (convolutions.joined, {"Y": 3, "X": 3}),
}
B = 2


def graph_of(name: str, training: bool = False) -> Graph:
    own, sizes = CELLS[name]
    net = rnn.RNN(own, 3, 2, **sizes)
    if not training:
        return normalise(net.layers[0].graph)
    differentiate = Differentiate(choice("states"))
    return differentiate.apply(net.layers[0].graph, net, resolve("nvidia-h200"))


def values(graph: Graph, leaves: dict[Node, Any]) -> dict[Node, Any]:
    found = dict(leaves)
    nodes = [n for n in graph.nodes() if n not in found]
    found |= {n: n.value for n in nodes if n.op == "const"}
    evaluate([n for n in nodes if n.op != "const"], found)
    return found


def as_pixels(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[B, C * prod(S)] or [B, C, *S] as [B * prod(S), C]; shape: of a row."""
    whole = value.reshape(len(value), *shape, -1)
    return np.moveaxis(whole, -1, 1).reshape(-1, *shape)


def compare(images: Graph, pixels: Graph) -> None:
    rng = np.random.default_rng(0)
    given: dict[Node, Any] = {}
    own: dict[Node, Any] = {}
    for old, new in zip((*images.inputs, *images.states), (*pixels.inputs, *pixels.states), strict=True):
        given[old] = rng.normal(size=(B, *old.shape))
        own[new] = as_pixels(given[old], new.shape)
    for param in images.params:
        given[param] = own[param] = rng.normal(size=param.shape)
    expected, found = values(images, given), values(pixels, own)
    own_roots = (*pixels.results, pixels.output, *pixels.emitted)
    pairs = zip((*images.results, images.output, *images.emitted), own_roots, strict=True)
    for old, new in pairs:
        np.testing.assert_allclose(found[new], as_pixels(expected[old], new.shape), rtol=1e-10, atol=1e-12)
    for old, new in zip(images.weight_gradients, pixels.weight_gradients, strict=True):
        np.testing.assert_allclose(found[new], expected[old], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_a_step_of_pixels_is_that_of_images(name: str) -> None:
    images = graph_of(name)
    (pixels,) = of_pixels(Layers((images,), (0,))).graphs
    assert pixels.pixels == images.states[0].shape[1:] and not any(n.op == "windows" for n in pixels.nodes())
    assert any(n.op == "gemm" and n.args[1].op == "neighbours" for n in pixels.nodes())
    compare(images, pixels)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_pixels_are_those_of_images(name: str) -> None:
    images = graph_of(name, training=True)
    (pixels,) = of_pixels(Layers((images,), (0,))).graphs
    assert images.backward is not None and pixels.backward is not None
    compare(images, pixels)
    compare(images.backward, pixels.backward)


@cell(states="h")
def centred(x: "I Y X", h: "H Y X", *, W: "H I 3 3", R: "H H 3 3"):
    """Without its mean over all pixels."""
    h = tanh(conv(x, W) + conv(h, R))
    return h - rnn.mean(rnn.mean(h, axis=-1, keepdims=True), axis=-2, keepdims=True)


@pytest.mark.parametrize(
    ("own", "sizes"),
    [
        (convolutions.lines, {"L": 6}),
        (convolutions.made, {"Y": 3, "X": 3}),
        (centred, {"Y": 3, "X": 3}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_mixes_pixels_stays_an_image(own: Any, sizes: dict[str, int]) -> None:
    before = Layers((normalise(rnn.RNN(own, 2, 3, **sizes).layers[0].graph),), (0,))
    with recording() as found, about("rows_of_pixels"):
        assert of_pixels(before) is before
    assert any("is more than a convolution" in decision.why for decision in found)


def test_vectors_are_no_images() -> None:
    before = Layers((normalise(rnn.RNN(rnn.cells.lstm, 2, 3).layers[0].graph),), (0,))
    assert of_pixels(before) is before
