"""differentiate: the parts of a backward graph, what is kept for it, and that its gradients are those of differences.

Every cell of the zoo is differentiated at one small size, and at more in the slow tests; the equations of
test_odd_equations.py, and random ones, as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import test_odd_equations as odd
from derivatives import assert_slopes, draw, named, oracle
from hypothesis import HealthCheck, given, settings
from networks import SPIKING, flags, network
from random_equations import Equations, equations

import tvm_rnn as rnn
from tvm_rnn import ConfigError, PassError, cell, cells, exp, maximum, outer, sigmoid, softplus, tanh, target
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.differentiate import Differentiate, cheapest_cut, choice, differentiate

V4 = target.TABLE["x86-64-v4"]
NAMES = cells.names()
ODD = {name: value for name, value in vars(odd).items() if isinstance(value, rnn.Cell)}


def graph_of(c: rnn.Cell, width: int = 3) -> Graph:
    return network(c, width, width).layers[0].graph


def both(graph: Graph) -> tuple[Graph, Graph]:
    found = differentiate(graph)
    assert found.backward is not None
    return found, found.backward


def ops(nodes: Sequence[Node]) -> list[str]:
    return [n.op for n in nodes]


# --- the parts of the graph ------------------------------------------------------------------------------------------


@pytest.mark.few_cells
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_backward_graph(name: str) -> None:
    forward, back = both(graph_of(cells.get(name)))
    read = [forward.output, *forward.inputs, *forward.states, *forward.emitted]
    assert [n.shape for n in back.inputs] == [n.shape for n in read]
    assert [n.shape for n in back.states] == [n.shape for n in back.results] == [n.shape for n in forward.states]
    assert [n.shape for n in (back.output, *back.emitted)] == [n.shape for n in forward.inputs]
    assert [n.shape for n in back.weight_gradients] == [
        n.shape for n in forward.params
    ] and back.params == forward.params
    assert back.kind == "backward" and forward.kind == "forward" and back.backward is None
    assert {n.op for n in back.nodes() if n.leaf} <= {"input", "state", "param", "const"}
    own = {*back.inputs, *back.states, *back.params}
    assert all(n in own for n in back.nodes() if n.op in ("input", "state", "param"))


def test_an_lstm_keeps_its_gates() -> None:
    forward, back = both(graph_of(cells.lstm))
    assert sorted(ops(forward.emitted)) == ["sigmoid", "sigmoid", "sigmoid", "tanh"]
    assert [n.name for n in back.inputs[:4]] == ["d_output", "x", "h", "c"]


@pytest.mark.few_cells
@pytest.mark.parametrize("name", NAMES)
def test_no_product_runs_twice(name: str) -> None:
    """Of what a backward graph computes from inputs alone, nothing is a product or a reduction of the forward graph."""
    forward, back = both(graph_of(cells.get(name)))
    kept = {n.name for n in back.inputs if n.name.startswith("kept")}
    assert len(kept) == len(forward.emitted)
    gradient = {n for n in back.nodes() if n is back.inputs[0] or n in back.states}
    for node in back.nodes():
        if any(a in gradient for a in node.args):
            gradient.add(node)
    again = [n for n in back.nodes() if n not in gradient and n.op in ("gemm", "sum", "max", "einsum")]
    free = {n for n in again if not any(_reads_rows(a) for a in n.args)}  # of parameters alone
    # One reduction is the gradient's own: among how many the largest elements are.
    assert [n for n in again if n not in free and not _counts_ties(n)] == []


def _reads_rows(node: Node) -> bool:
    return node.op in ("input", "state") or any(map(_reads_rows, node.args))


def _counts_ties(node: Node) -> bool:
    return node.op == "sum" and node.args[0].op == "where"


def test_a_weights_gradient_is_one_product_over_all_steps() -> None:
    _, back = both(graph_of(cells.elman))
    products = [n for n in back.nodes() if n.op == "einsum_rows"]
    assert sorted(n.args[1].name for n in products) == ["h", "x"]
    assert products[0].args[0] is products[1].args[0]


def test_data_gradients_leave_the_loop() -> None:
    layers = pipeline.run(network("lstm", 5, 7), V4, training=True)[-1][1]
    back = layers.graphs[0].backward
    assert back is not None
    assert [g.kind for g in back.groups if g.region == "after"] == ["gemm"]
    assert [g.kind for g in back.groups if g.region == "step"] == ["pointwise", "gemm"]


@pytest.mark.few_cells
@pytest.mark.parametrize("name", NAMES)
def test_states_alone_are_enough(name: str) -> None:
    """All that gradients read is made again of them, and its products leave the loop with those of matrices aside."""
    net = network(name, 4, 4, dtype="float64")
    expected = oracle(net, case := draw(net, 5, 3, **flags(5, 3)))
    layers = pipeline.run(net, V4, training="states")[-1][1]
    (graph,) = layers.graphs
    assert not graph.emitted and graph.backward is not None
    found = Reference(net, layers.graphs).gradients(case.x, case.state, case.gy, case.gstate, **case.rows)
    for key, value in named(*found).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-9, atol=1e-11)


def test_products_that_run_again_leave_the_loop() -> None:
    back = pipeline.run(network("lstm", 5, 7), V4, training="states")[-1][1].graphs[0].backward
    assert back is not None
    assert [g.kind for g in back.groups if g.region == "before"] == ["gemm"]
    assert [g.kind for g in back.groups if g.region == "step"] == ["pointwise", "gemm"]


def test_choices_by_name() -> None:
    assert choice(True) is choice("values") is cheapest_cut
    assert choice("values", spares=True) is not cheapest_cut and choice("states", spares=True)(None, []) == []
    with pytest.raises(ConfigError, match=r"no such choice[\s\S]*states, states:bfloat16, values[\s\S]*'states'"):
        choice("state")


def test_what_parameters_make_is_differentiated_once() -> None:
    """exp(A) is differentiated on its sum over rows, after all steps, and not at each of them."""

    @cell(states="h")
    def decay(x: "H", h: "H", *, A: "H"):
        return exp(A) * h + x

    _, back = both(graph_of(decay))
    (summed,) = [n for n in back.nodes() if n.op == "sum_rows"]
    assert back.weight_gradients[0].op == "mul" and summed in back.weight_gradients[0].args
    assert "exp" in ops(back.weight_gradients[0].args)


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_the_cut_is_the_cheapest() -> None:
    """One scalar rather than the vector that is made of it, and one sum rather than its two terms."""

    @cell(states="h")
    def scaled(x: "I", h: "H", *, w: "I", R: "H H"):
        s = tanh(w @ x)
        return tanh(s * (R @ h) + h * s)

    forward, _ = both(graph_of(scaled))
    assert sorted((n.op, n.shape) for n in forward.emitted) == [("gemm", (3,)), ("tanh", ())]


def test_nothing_is_kept_that_pointwise_work_makes_again() -> None:
    @cell(states="h")
    def cheap(x: "H", h: "H", *, a: "H"):
        return sigmoid(a * h + x) * tanh(h)

    assert both(graph_of(cheap))[0].emitted == ()


@pytest.mark.parametrize("name", ["lstm", "gru_reset_before", "mlstm", "lstm_layer_norm", "delta_net"])
def test_any_choice_of_what_is_kept_means_the_same(name: str) -> None:
    """Nothing (all is computed again from inputs and states), and everything that gradients read."""
    net = network(name, 3, 4, dtype="float64")
    case = draw(net, 3, 2)
    expected = oracle(net, case)

    def all_of_it(graph: Graph, read: Sequence[Node]) -> list[Node]:
        return [n for n in read if not n.boolean and n.op not in ("reshape", "index", "slice", "concat", "transpose")]

    for keep in (lambda graph, read: [], all_of_it):
        graphs = [Differentiate(keep).apply(net.layers[0].graph, net, V4)]
        found = Reference(net, graphs).gradients(case.x, case.state, case.gy, case.gstate)
        assert_close(found[2], {n: expected[n] for n in net.weights}, "float64", 3)


def test_what_cannot_be_kept_is_refused() -> None:
    graph = graph_of(cells.lstm)
    for wrong in (graph.states[0], Node("neg", (graph.inputs[0],), {}, (3,))):
        with pytest.raises(PassError, match=r"cannot be kept[\s\S]*got: +(state|neg)"):
            differentiate(graph, lambda g, read, wrong=wrong: [wrong])


# --- gradients are slopes --------------------------------------------------------------------------------------------


@pytest.mark.few_cells
@pytest.mark.parametrize("name", [n for n in NAMES if n not in SPIKING])  # spikes have no slope
def test_every_cell_has_the_slope_of_its_loss(name: str) -> None:
    net = network(name, 3, 4, dtype="float64")
    assert_slopes(net, draw(net, 4, 2))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1), (1, 7), (7, 2)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_at_more_sizes(name: str, sizes: tuple[int, int]) -> None:
    net = network(name, *sizes, num_layers=2, bidirectional=True, dtype="float64")
    for seed in range(3):
        assert_slopes(net, draw(net, 5, 3, seed, **flags(5, 3, seed)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_element_has_the_slope_of_its_loss(name: str) -> None:
    from derivatives import slopes

    net = network(name, 2, 3, dtype="float64")
    case = draw(net, 3, 2)
    for key, found in oracle(net, case).items():
        for place in np.ndindex(*found.shape):
            direction = np.zeros(found.shape)
            direction[place] = 1.0
            slope, scale = slopes(net, case, {key: direction})[key]
            assert abs(found[place] - slope) <= 2e-7 * max(1.0, abs(slope), scale), (key, place)


@pytest.mark.parametrize("name", ODD)
def test_odd_equations_have_the_slope_of_their_loss(name: str) -> None:
    net = network(ODD[name], 3, 4, dtype="float64")
    assert_slopes(net, draw(net, 3, 2), tolerance=1e-6)


def check(drawn: Equations) -> None:
    net = drawn.net("float64")
    assert_slopes(net, draw(net, 3, 2), tolerance=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(equations(most=8).filter(lambda e: not e.sharp))
def test_random_equations(drawn: Equations) -> None:
    check(drawn)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(equations().filter(lambda e: not e.sharp))
def test_many_random_equations(drawn: Equations) -> None:
    check(drawn)


def test_softplus_at_zero() -> None:
    """As one function it has a slope there; relu and abs, which it is compiled as, have none."""

    @cell(states="h")
    def soft(x: "H", h: "H"):
        return softplus(x) + 0.0 * h

    net = rnn.RNN(soft, 2, 2, dtype="float64")
    for _, layers in pipeline.run(net, V4, training=True)[1:]:
        gx, _, _ = Reference(net, layers.graphs).gradients(np.zeros((1, 1, 2)), None, np.ones((1, 1, 2)))
        assert gx.tolist() == [[[0.5, 0.5]]]


def test_what_has_a_gradient_of_its_own_is_kept_as_its_value() -> None:
    @cell(states="h")
    def spiking(x: "H", h: "H", *, R: "H H"):
        return tanh(R @ rnn.atan_spike(R @ h + x))

    graph = rnn.RNN(spiking, 7, 7).layers[0].graph
    derived = differentiate(graph)
    assert derived.backward is not None
    ops = {n.op for g in (derived, derived.backward) for n in g.nodes()}
    assert not ops & {"surrogate", "stop_gradient"}
    assert [n.op for n in derived.emitted] == ["add", "tanh"]  # R h + x, of which spikes and slopes are made again


def test_shared_parameters_and_states_add_up() -> None:
    """A parameter that is read in three ways, a state that is also the output, a vector that becomes a matrix."""

    @cell(states="M h", output="h")
    def tangled(x: "H", M: "H H", h: "H", *, P: "H H", a: "H"):
        M = M + outer(P @ x, maximum(a, h)) * P
        return M, tanh(M @ h + P.T @ h + a * a)

    net = network(tangled, 3, 3, num_layers=2, dtype="float64")
    assert_slopes(net, draw(net, 4, 2))
