"""matrix_recurrence: matrices that are linear in themselves, over all steps of a tile."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, outer, sigmoid, target
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


@cell(states="S", output="y", initial={"S": 0.25})
def wide(x: "I", S: "K V", *, A: "4 K I", B: "V I"):
    """The key along the first axis, a decay for each key, a product of rank one, and what is read before the step."""
    k, r, d, q = A @ x
    v = B @ x
    new = sigmoid(d).reshape(-1, 1) * S + outer(k, v) * 0.3 - outer(sigmoid(k), r @ S) * 0.1
    return new, q @ new + k @ S


def gate_is_closed(net: rnn.RNN) -> None:
    net.weights["A_l0"][2] *= 1e4  # decays of exactly 0 and 1


NETS = [{}, {"reverse": True}, {"bidirectional": True, "num_layers": 2}]


def compare(net: rnn.RNN, shapes: tuple[tuple[int, int], ...]) -> None:
    module, oracle, rng = rnn.compile(net), Reference(net), np.random.default_rng(0)
    for steps, batch in shapes:
        x = rng.standard_normal((steps, batch, 5)).astype(net.dtype)
        lengths, reset = rng.integers(0, steps + 1, batch), rng.random((steps, batch)) < 0.2
        for ends in ({}, {"lengths": lengths}, {"lengths": lengths, "reset": reset}):
            got, wanted = module(x, **ends), oracle(x, **ends)
            assert_close(got[0], wanted[0], net.dtype, steps)
            for name, value in wanted[1].items():
                assert_close(got[1][name], value, net.dtype, steps)


def test_no_step_is_left_of_a_delta_net() -> None:
    graph = pipeline.run(rnn.RNN(rnn.cells.delta_net, 5, 19), V4)[-1][1].graphs[0]
    assert "scan" in [g.kind for g in graph.groups] and not [g for g in graph.groups if g.region == "step"]


def test_a_key_on_either_axis_decays_of_nothing_and_reads_before_the_step() -> None:
    net = rnn.RNN(wide, 5, K=6, V=19).init(1)
    gate_is_closed(net)
    compare(net, ((1, 1), (9, 3)))


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("net", NETS, ids=str)
@pytest.mark.parametrize("c", [rnn.cells.gated_delta_net, rnn.cells.mlstm], ids=lambda c: c.name)
def test_matrices_are_those_of_the_oracle(c: rnn.Cell, net: dict[str, int]) -> None:
    compare(rnn.RNN(c, 5, 19, **net).init(1), ((1, 1), (9, 3), (600, 2)))


@pytest.mark.broad
def test_matrices_of_float64() -> None:
    compare(rnn.RNN(rnn.cells.gated_delta_net, 5, 19, dtype="float64").init(1), ((1, 1), (40, 3)))
