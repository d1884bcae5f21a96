"""recurrence: vectors that are linear in themselves, over all steps of a tile."""

from __future__ import annotations

import numpy as np
import pytest
from networks import arguments, network

import tvm_rnn as rnn
from tvm_rnn import cell, maximum, sigmoid, tanh, target
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.lower_layer import Layer
from tvm_rnn.cpu.recurrence import ROWS, one_step
from tvm_rnn.graph.graph import is_scan
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


@cell(states="h c", initial={"c": 0.5})
def turning(x: "I", h: "H", c: "H", *, W: "3 H I"):
    """Two states that turn into each other, and a gate."""
    a, u, v = W @ x
    a = sigmoid(a)
    return a * h - (1 - a) * c + u, (1 - a) * h + a * c + v


@cell(states="m h last", output="y", initial={"m": -3.0})
def mixed(x: "I", m: "", h: "H", last: "I", *, W: "2 H I", w: "I", R: "H H"):
    """A maximum of sums, a delay, and a state that must go step by step and reads both."""
    a, b = W @ x
    m = maximum(m - 0.1, w @ x)
    h = tanh(R @ h + a + m)
    return m, h, x, h * b + sum(last)


def test_a_step_of_a_recurrence_is_pointwise_work_that_stores_its_states() -> None:
    graph = pipeline.run(rnn.RNN(turning, 5, 19), V4)[-1][1].graphs[0]
    group = next(g for g in graph.groups if g.kind == "scan")
    step, new = one_step(group)
    assert step.kind == "pointwise" and not any(is_scan(n) for n in step.nodes)
    assert {new[n] for n in group.nodes if n.op in ROWS} <= set(step.stored)


@pytest.mark.parametrize("c", [turning, rnn.cells.min_gru], ids=lambda c: c.name)
def test_where_all_states_are_solved_no_step_is_left(c: rnn.Cell) -> None:
    graph = pipeline.run(rnn.RNN(c, 5, 19), V4)[-1][1].graphs[0]
    assert not Layer(graph, {}, Emitter(V4, graph.dtype, ()), 4).has_steps
    assert "scan" in [g.kind for g in graph.groups]


@cell(states="h c", output="y")
def exchanged(x: "I", h: "H", c: "H", *, W: "H I"):
    return c, h, rnn.tanh(W @ x)


def test_a_nan_stays_in_the_state_that_has_it() -> None:
    net = network(exchanged, 3, 5)
    x, state = arguments(net, 3, 2)
    state["c"][0, 1, 2] = np.nan
    y, after = rnn.compile(net)(x, state)
    assert np.isnan(after["h"][0, 1, 2]) and after["c"][0, 1, 2] == state["h"][0, 1, 2] and np.isfinite(y).all()


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("net", [{}, {"reverse": True}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("c", [turning, mixed], ids=lambda c: c.name)
def test_recurrences_are_those_of_the_oracle(c: rnn.Cell, net: dict[str, int]) -> None:
    network = rnn.RNN(c, 5, 19, **net).init(1)
    module, oracle, rng = rnn.compile(network), Reference(network), np.random.default_rng(0)
    for steps, batch in ((1, 1), (9, 3), (600, 2)):
        x = rng.standard_normal((steps, batch, 5)).astype("float32")
        lengths, reset = rng.integers(0, steps + 1, batch), rng.random((steps, batch)) < 0.2
        for ends in ({}, {"lengths": lengths}, {"reset": reset}, {"lengths": lengths, "reset": reset}):
            got, wanted = module(x, **ends), oracle(x, **ends)
            assert_close(got[0], wanted[0], "float32", steps)
            for name, value in wanted[1].items():
                assert_close(got[1][name], value, "float32", steps)


@pytest.mark.broad
@pytest.mark.slow_after(4)
@pytest.mark.parametrize("net", [{}, {"reverse": True}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("c", [turning, mixed], ids=lambda c: c.name)
def test_gradients_of_recurrences_are_those_of_the_oracle(c: rnn.Cell, net: dict[str, int]) -> None:
    network = rnn.RNN(c, 5, 19, **net).init(1)
    module, oracle, rng = rnn.compile(network, training=True), Reference(network), np.random.default_rng(0)
    for steps, batch in ((1, 1), (70, 3)):
        x = rng.standard_normal((steps, batch, 5)).astype("float32")
        lengths, reset = rng.integers(0, steps + 1, batch), rng.random((steps, batch)) < 0.2
        for ends in ({}, {"lengths": lengths, "reset": reset}):
            y, state, tape = module.forward_train(x, **ends)
            gy = rng.standard_normal(y.shape).astype("float32")
            gstate = {n: rng.standard_normal(np.shape(v)).astype("float32") for n, v in state.items()}
            d_x, d_state, d_weights = module.backward(tape, gy, gstate)
            wanted = oracle.gradients(x, gy=gy, gstate=gstate, **ends)
            pairs = [(d_x, wanted[0])]
            pairs += [(d_state[n], v) for n, v in wanted[1].items()] + [(d_weights[n], v) for n, v in wanted[2].items()]
            for got, right in pairs:
                scale = max(1.0, float(np.abs(right).max(initial=0)))
                assert np.abs(got - right).max(initial=0) < 1e-4 * scale
