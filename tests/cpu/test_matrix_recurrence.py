"""matrix_recurrence: matrices that are linear in themselves, over all steps of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from linear_cells import enduring, stretches

import tvm_rnn as rnn
from tests.cpu.matrix_parts import V4, delta_part
from tvm_rnn import cell, outer, sigmoid, sum
from tvm_rnn.cpu import matrix_chunk
from tvm_rnn.cpu.matrix_recurrence import MatrixRecurrence
from tvm_rnn.cpu.walk_through_time import CHUNK, FEW_STEPS, FEW_WITH_PRODUCTS
from tvm_rnn.errors import PassError
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.tir.index import int64


@cell(states="S", output="y", initial={"S": 0.25})
def wide(x: "I", S: "K V", *, A: "4 K I", B: "V I"):
    """The key along the first axis, a decay for each key, a product of rank one, and what is read before the step."""
    k, r, d, q = A @ x
    v = B @ x
    new = sigmoid(d).reshape(-1, 1) * S + outer(k, v) * 0.3 - outer(sigmoid(k), r @ S) * 0.1
    return new, q @ new + k @ S


@cell(states="S", output="y")
def shared(x: "I", S: "N=2 V K", *, A: "2 N K I", B: "N V I", Q: "2 N K I"):
    """Two heads, each read by two queries."""
    k, d = A @ x
    q = Q @ x
    S = S * sigmoid(d)[:, None, :] + (B @ x)[:, :, None] * k[:, None, :]
    return S, sum(S * q[:, :, None, :], axis=-1).reshape(-1)


def gate_is_closed(net: rnn.RNN) -> None:
    net.weights["A_l0"][2] *= 1e4  # decays of exactly 0 and 1


NETS = [{}, {"reverse": True}, {"bidirectional": True, "num_layers": 2}]


def compare(net: rnn.RNN, shapes: Sequence[tuple[int, int]], target: str = "") -> None:
    module = rnn.compile(net, target=target) if target else rnn.compile(net)
    oracle, rng = Reference(net), np.random.default_rng(0)
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


@pytest.mark.broad
def test_a_key_on_either_axis_decays_of_nothing_and_reads_before_the_step() -> None:
    net = rnn.RNN(wide, 5, K=6, V=19).init(1)
    gate_is_closed(net)
    compare(net, ((1, 1), (9, 3)))


def test_queries_of_other_heads_than_those_of_the_matrix_are_refused() -> None:
    part = delta_part(16, 19)
    state, d, k, v = (Node("input", shape=s) for s in ((1, 16, 19), (1, 1, 1), (1, 1, 19), (1, 16, 1)))
    root = make("scan_matrix", state, d, k, v, writes=1, key=-1)
    read = make("read_out", root, Node("input", shape=(4, 1, 19)), key=-1)
    group, places = Group("scan", "before", 1, root, (root, read), (read,)), part.work.places
    places = replace(places, batch=int64(1), threads=int64(1))
    own = MatrixRecurrence(group, part.work.unit, places, part.work.walk, V4, part.work.config)
    with pytest.raises(PassError, match=r"queries of \(4,\) heads"):
        own.tasks(int64(9))


@pytest.mark.broad
def test_each_of_several_queries_reads_the_matrix_of_its_head() -> None:
    compare(rnn.RNN(shared, 5, V=7, K=19).init(1), ((3, 2), (FEW_STEPS + 3, 2)))


@pytest.mark.broad
@pytest.mark.parametrize("c", [wide, rnn.cells.gla, rnn.cells.gated_delta_net], ids=lambda c: c.name)
def test_few_steps_and_chunks_that_are_not_full(c: rnn.Cell) -> None:
    sizes = {"K": 6, "V": 19} if c is wide else {"H": 19}
    near = [steps + more for steps in (FEW_WITH_PRODUCTS, FEW_STEPS) for more in (-1, 0, 3)]
    compare(rnn.RNN(c, 5, **sizes).init(1), [(steps, 3) for steps in (2, CHUNK, *near)])


@pytest.mark.broad
def test_steps_by_themselves_and_vectors_of_eight_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    net = rnn.RNN(rnn.cells.gated_delta_net, 5, 19).init(1)
    compare(net, [(13, 2)], target="x86-64-v3")
    monkeypatch.setattr(matrix_chunk, "MOST_ELEMENTS", 0)
    compare(net, [(13, 2)])


@pytest.mark.parametrize(
    "steps", [pytest.param(5000, marks=pytest.mark.broad), pytest.param(100_000, marks=pytest.mark.slow)]
)
def test_long_stretches_lose_no_more_than_the_table_says(steps: int) -> None:
    x, net = stretches(steps).astype("float32"), rnn.RNN(enduring, 4, K=6).init(1)
    net.weights["A_l0"][:, :, :2] *= 0.01
    module, (wanted, last) = rnn.compile(net), Reference(net)(x)
    got, state = module(x)
    for row in range(5):  # each by itself: a large one would hide the others
        assert_close(got[:, row], wanted[:, row], net.dtype, steps)
        for name, value in last.items():
            assert_close(state[name][:, row], value[:, row], net.dtype, steps)
    for module.threads in (1, 2):
        again = module(x)
        assert np.array_equal(again[0], got) and all(np.array_equal(again[1][n], state[n]) for n in state)


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("net", NETS, ids=str)
@pytest.mark.parametrize("c", [rnn.cells.gated_delta_net, rnn.cells.mlstm], ids=lambda c: c.name)
def test_matrices_are_those_of_the_oracle(c: rnn.Cell, net: dict[str, int]) -> None:
    compare(rnn.RNN(c, 5, 19, **net).init(1), ((1, 1), (9, 3), (600, 2)))


@pytest.mark.broad
def test_matrices_of_float64() -> None:
    compare(rnn.RNN(rnn.cells.gated_delta_net, 5, 19, dtype="float64").init(1), ((1, 1), (40, 3)))


@pytest.mark.broad
def test_a_tile_has_a_chunk_however_many_rows_there_are() -> None:
    """A caller who counts with tiles of one step gets the same bits, and has given enough memory for more."""
    net = rnn.RNN(rnn.cells.gated_delta_net, 5, 8, num_layers=2).init(0)
    module, steps, batch = rnn.compile(net), 26, 3
    x, found = np.random.default_rng(0).standard_normal((steps, batch, 5)).astype("float32"), []
    for rows in (1, CHUNK * batch):
        module._sizes = (*module._sizes[:4], rows)
        found.append(module(x))
    (y, state), (other, last) = found
    assert (y == other).all() and (state["S"] == last["S"]).all()
    assert_close(y, Reference(net)(x)[0], "float32", steps)
