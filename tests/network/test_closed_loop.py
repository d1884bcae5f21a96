"""closed_loop: the network of the loop, run over a sequence by the oracle, makes what the oracle generates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import argmax, cell, random_normal, relu, tanh
from tvm_rnn.network.closed_loop import ENDED, FED, GIVEN, STOP, Loop, check_generation, closed


@cell(states="h", output="token")
def pen(x: "1", h: "H", *, E: "V H", R: "H H", Q: "V H"):
    """A token, a state, and the next token."""
    h = tanh(E[x[0]] + R @ h)
    return h, argmax(Q @ h, keepdims=True)


@cell(states="h m")
def frames(x: "I", more: "I", h: "I", m: "2 I", *, W: "I I", R: "I I"):
    """Frames, with a further input and a state that becomes another one."""
    h = tanh(W @ x + R @ h + more)
    return h, relu(m + h)


@cell(states="h", output="y")
def noisy(x: "I", h: "H", *, W: "H I", Q: "I H"):
    """It draws numbers."""
    h = tanh(W @ x + h + random_normal([8]))
    return h, Q @ h


def run(loop: Loop, x: np.ndarray, given: int, stop: float | None, **more: np.ndarray) -> tuple[Any, Any]:
    """A call of the loop's network, in which the first `given` rows of x are given."""
    net, steps, batch = loop.net, len(x), x.shape[1]
    names = net.weight_shapes
    net.load({name: loop.of.weights[loop.weight(name)] for name in names})
    follows = np.arange(1, steps + 1) < given
    inputs = {"x": np.concatenate([x[1:], 0 * x[:1]]), GIVEN: np.tile(follows[:, None, None] * 1.0, (1, batch, 1))}
    if STOP in net.input_shapes:
        inputs[STOP] = np.full((steps, batch, 1), np.nan if stop is None else stop)
    state = {**net.initial_state(batch), FED: x[:1]}
    return rnn.reference(net)(inputs | more, state)


@pytest.mark.parametrize("stop", [None, 3.0])
def test_tokens_and_where_they_end(stop: float | None) -> None:
    net = rnn.RNN(pen, 1, 6, V=9).init(2)
    net.load({name: 5 * value for name, value in net.weights.items()})
    prompt = np.array([[1, 4, 0, 8], [2, 2, 5, 3]])
    expected, last, lengths = rnn.reference(net).generate(14, prompt=prompt, stop=stop)
    x = np.zeros((15, 4, 1))
    x[:2, :, 0] = prompt
    y, states = run(closed(net), x, 2, stop)
    for row, length in enumerate(lengths):
        assert (y[1 : 1 + length, row, 0] == expected[:length, row]).all()
    np.testing.assert_array_equal(states["h_l0"], last["h"])
    assert [*states[ENDED].ravel()] == [float(stop in expected[:, row]) for row in range(4)]


def test_every_state_keeps_its_shape() -> None:
    """Also a number, and a table of numbers, that stay as they are behind a row's end."""

    @cell(states="h count M", output="token")
    def counting(x: "1", h: "H", count: "", M: "2 H", *, W: "H H") -> Any:
        h = tanh(W @ h + x)
        return h, count + 1.0, M + h, argmax(h, keepdims=True)

    graph = closed(rnn.RNN(counting, 1, 4)).net.layers[0].graph
    assert [n.shape for n in graph.results] == [n.shape for n in graph.states]


def test_layers_become_one_and_other_inputs_stay() -> None:
    net = rnn.RNN(frames, 5, num_layers=3).init(1)
    rng = np.random.default_rng(0)
    prompt, more = rng.normal(size=(3, 2, 5)), rng.normal(size=(10, 2, 5))
    expected, last, _ = rnn.reference(net).generate(8, prompt=prompt, more=more)
    loop = closed(net)
    assert loop.net.num_layers == 1 and [s.name for s in loop.net.layers[0].graph.states] == [
        *("h_l0", "h_l1", "h_l2", "m_l0", "m_l1", "m_l2"),
        FED,
    ]
    y, states = run(loop, np.concatenate([prompt, np.zeros((7, 2, 5))]), 3, None, more=more)
    np.testing.assert_allclose(y[2:], expected, atol=1e-12)
    for layer in range(3):
        np.testing.assert_allclose(states[f"m_l{layer}"][0], last["m"][layer], atol=1e-12)


def test_each_layer_draws_from_streams_of_its_own() -> None:
    net = rnn.RNN(noisy, 8, 8, num_layers=2).init(1)
    assert len(net.draws) == 2
    loop = closed(net)
    assert loop.streams == tuple(f"{layer}.{stream}" for layer in range(2) for stream in net.draws)
    assert {*loop.net.draws} == {*loop.streams}


def test_what_cannot_feed_itself() -> None:
    for net, reason in (
        (rnn.RNN(rnn.cells.gru, 3, 4), "outputs of 4, inputs of 3"),
        (rnn.RNN(rnn.cells.gru, 3, 3, reverse=True), "goes backwards"),
        (rnn.RNN(pen, 1, 6, dtype="bfloat16", V=258), "258 tokens in bfloat16"),
    ):
        with pytest.raises(rnn.ConfigError, match=reason):
            check_generation(net)
    check_generation(rnn.RNN(pen, 1, 6, dtype="bfloat16", V=257))
