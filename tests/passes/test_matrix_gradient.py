"""matrix_gradient: the gradient of a matrix's recurrence is one too; every stage means the same, and no matrix is
read but by recurrences and read-outs."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, exp, outer, sigmoid, target
from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import Graph, Node, constant, has_steps, make
from tvm_rnn.graph.recurrences import BOTH_AXES
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.passes import parallelise_time, pipeline
from tvm_rnn.passes.differentiate import differentiate
from tvm_rnn.passes.matrix_gradient import rebuilt

V4 = target.TABLE["x86-64-v4"]


@cell(states="S", output="y", initial={"S": 0.25})
def both_ways(x: "I", S: "K V", *, A: "5 K I", B: "2 V I"):
    """The key along the first axis, a decay for each key, two products of rank one, two writes, and read-outs of the
    matrix before and after the step; a number of it all is a quadratic form."""
    k, r, d, q, p = A @ x
    v, u = B @ x
    new = sigmoid(d).reshape(-1, 1) * S + outer(k, v) * 0.3 + outer(exp(-k), u) - outer(sigmoid(p), r @ S) * 0.1
    new = new - outer(p, q @ S) * 0.05
    return new, q @ new + k @ S + (r @ new) @ u


@cell(states="S", output="y")
def shared(x: "I", S: "N=2 V K", *, A: "N V I", W: "2 K I", g: "N"):
    """Two heads with values of their own, one key and one query, and a decay that is a parameter of each head."""
    k, q = W @ x
    S = sigmoid(g)[:, None, None] * S + (A @ x)[:, :, None] * k[None, None, :]
    return S, (S @ q).reshape(-1)


@cell(states="S C", output="y")
def driven(x: "I", S: "H H", C: "H H", *, W: "4 H I"):
    """What is read of a matrix is written to another one."""
    q, k, v, d = W @ x
    S = sigmoid(d)[0] * S + outer(v, k)
    C = sigmoid(d) * C + outer(S @ q, k)
    return S, C, C @ q


@cell(states="S", output="y")
def squared(x: "I", S: "H H", *, W: "2 H I"):
    """The output is no product with a known vector."""
    k, v = W @ x
    S = 0.9 * S + outer(v, k)
    return S, (S * S) @ k


SIZES = {"both_ways": {"K": 4, "V": 6}, "shared": {"V": 5, "K": 3}}


def network(c: rnn.Cell) -> rnn.RNN:
    own = SIZES.get(c.name, {"H": 4})
    return rnn.RNN(c, 5, dtype="float64", **own).init(3)


def trained(net: rnn.RNN) -> Graph:
    return pipeline.run(net, V4, training=True)[-1][1].graphs[0]


def assert_stages_mean_the_same(net: rnn.RNN) -> None:
    rng = np.random.default_rng(2)
    x, gy = rng.standard_normal((6, 2, 5)), rng.standard_normal((6, 2, net.output_size))
    state, above = ({n: rng.standard_normal(v.shape) for n, v in net.initial_state(2).items()} for _ in range(2))
    ends = {"lengths": np.array([6, 3]), "reset": rng.random((6, 2)) < 0.2}
    wanted = Reference(net).gradients(x, state, gy, above, **ends)
    for name, layers in pipeline.run(net, V4, training=True)[1:]:
        graphs = [layers.graphs[i] for i in layers.of_layer]
        got = Reference(net, graphs).gradients(x, state, gy, above, **ends)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-9, atol=1e-9, err_msg=name)
        for own, other in zip(got[1:], wanted[1:], strict=True):
            for key, value in other.items():
                np.testing.assert_allclose(own[key], value, rtol=1e-9, atol=1e-9, err_msg=f"{name}: {key}")


OWN = [both_ways, shared, driven]
ZOO = [rnn.cells.mlstm, rnn.cells.delta_net, rnn.cells.gated_delta_net, rnn.cells.gla, rnn.cells.retnet]
ZOO += [rnn.cells.mamba2, rnn.cells.rwkv7, rnn.cells.hgrn2, rnn.cells.mamba2_conv]


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("c", [*OWN, rnn.cells.mlstm, rnn.cells.rwkv7], ids=lambda c: c.name)
def test_no_step_is_left_and_every_stage_means_the_same(c: rnn.Cell) -> None:
    net = network(c)
    graph = trained(net)
    assert graph.backward is not None and not has_steps(graph) and not has_steps(graph.backward)
    assert_stages_mean_the_same(net)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("c", [shared, rnn.cells.gated_delta_net, rnn.cells.mlstm], ids=lambda c: c.name)
def test_the_product_of_both_as_one_number(c: rnn.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a decay is one for all keys, as GPUs have it; of so many writes as are allowed."""
    net = network(c)
    for most in (0, 9):
        monkeypatch.setattr(parallelise_time, "sums_of_both", lambda *_, most=most: most)
        back = trained(net).backward
        assert back is not None
        assert any(n.op == "read_out" and n.attrs["key"] == BOTH_AXES for n in back.nodes()) == bool(most)
    assert_stages_mean_the_same(net)


@pytest.mark.broad
@pytest.mark.parametrize("c", ZOO, ids=lambda c: c.name)
def test_gradients_of_the_zoo_s_matrices(c: rnn.Cell) -> None:
    assert_stages_mean_the_same(network(c))
    assert not has_steps(trained(network(c)))


def test_what_is_not_proved_means_the_same() -> None:
    assert_stages_mean_the_same(network(squared))


def test_why_a_matrix_stays_in_the_loop_of_training() -> None:
    with recording() as told:
        trained(network(squared))
    assert any(not d.done and d.what == "state S" for d in told if d.stage == "parallelise_time")


def test_no_matrix_is_read_but_by_recurrences_and_none_is_made_of_vectors() -> None:
    back = trained(network(both_ways)).backward
    assert back is not None
    matrices = {n for n in back.nodes() if n.shape == (4, 6)}
    assert {n.op for n in matrices} == {"state", "input", "scan_matrix", "rescan", "carried"}
    rows = [n for n in back.nodes() if n.op == "rescan"]
    assert [n.attrs["key"] for n in rows] == [-1, -1] and back.results[0].attrs["key"] == -2
    assert len(back.results[0].args) > 2 + 2 * back.results[0].attrs["writes"]  # products go back as products


def test_states_alone_on_the_tape_keep_the_loop_where_products_run_again() -> None:
    """What a delta rule takes away is a product, which such a tape does not have."""
    net = network(rnn.cells.delta_net)
    graph = pipeline.run(net, V4, training="states")[-1][1].graphs[0]
    assert graph.backward is not None
    forward = Reference(net, [graph])
    x = np.random.default_rng(0).standard_normal((4, 1, 5))
    gy = np.ones((4, 1, net.output_size))
    np.testing.assert_allclose(forward.gradients(x, gy=gy)[0], Reference(net).gradients(x, gy=gy)[0], atol=1e-12)


def test_values_are_rebuilt_of_others_in_what_is_made_of_them_too() -> None:
    a, b = Node("input", shape=(2,), name="a"), Node("input", shape=(2,), name="b")
    total = make("add", a, b)
    doubled = make("mul", total, constant(2.0, 1))
    (new,) = rebuilt([doubled], {total: make("neg", a), a: b})
    assert new.op == "mul" and new.args[0].op == "neg" and new.args[0].args == (b,)


def test_the_derived_graph_is_as_it_was_where_no_matrix_is_solved() -> None:
    graph = differentiate(network(squared).layers[0].training)
    assert graph.backward is not None and graph.backward.states[0].name == "d_S"


def test_a_sum_that_is_a_vector_of_each_head_is_read_once() -> None:
    """A norm behind the read-out makes a sum of its gradient."""
    net = rnn.RNN(rnn.cells.gla, 5, 8, dtype="bfloat16", N=2)
    stages = pipeline.run(net, target.resolve("nvidia-h200"), training="values", precision="bfloat16")
    back = stages[-1][1].graphs[0].backward
    assert back is not None
    reads = [node for node in back.nodes() if node.op == "read_out" and node.args[0].args[0].op == "rescan"]
    assert sorted(node.args[1].op == "carried" for node in reads) == [False, False, True]
