"""Steps as phases: which layers a persistent kernel takes, and what meets in one exchange."""

from __future__ import annotations

from typing import Any

import pytest
from persistent_layers import layout_of, step

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.phases import NotPersistent, components, joined, phases, place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Lane
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve


def made(cell: rnn.Cell, hidden: int = 8) -> Layout:
    net = rnn.RNN(cell, 4, hidden)
    graph = pipeline.run(net, resolve("nvidia-h200"))[-1][1].graphs[0]
    return Layout(graph, "tf32", Weights(graph, 0, "tf32"), "float32")


def test_a_product_and_what_it_hands_over() -> None:
    (phase,) = step("lstm", 64).phases
    assert (phase.kind, phase.width, phase.gates) == ("gemm", 64, 4)
    assert [n is step("lstm", 64).graph.results[0] for n in phase.published] == [True]


def test_a_second_product_of_the_step() -> None:
    first, second = step("gru_reset_before", 64).phases
    assert [len(p.published) for p in (first, second)] == [1, 1]
    assert not second.operands[0].carried and first.operands[0].carried


def test_a_variance_joins_its_mean() -> None:
    """Layer norm twice: each time a sum and a sum of squares around the mean, in one exchange."""
    reductions = [p for p in step("lstm_layer_norm", 64).phases if p.kind == "reduce"]
    assert [len(p.roots) for p in reductions] == [2, 2]
    assert all(p.centres == (None, p.roots[0]) for p in reductions)
    assert step("lstm_layer_norm", 64).domain[reductions[0].roots[1]] == 1


def test_sums_of_the_same_phase_meet_and_dependent_ones_do_not() -> None:
    @rnn.cell(states="h")
    def both(x: "I", h: "H", *, W: "H I", R: "H H"):
        z = W @ x + R @ h
        return rnn.tanh(z * rnn.max(z, -1, keepdims=True) + rnn.sum(z, -1, keepdims=True))

    @rnn.cell(states="h")
    def chain(x: "I", h: "H", *, W: "H I", R: "H H"):
        z = W @ x + R @ h
        return rnn.tanh(z / rnn.sum(rnn.exp(z - rnn.max(z, -1, keepdims=True)), -1, keepdims=True))

    def reductions(cell: rnn.Cell) -> list[int]:
        return [len(p.roots) for p in step_of(made(cell)).phases if p.kind == "reduce"]

    assert reductions(both) == [2]
    assert reductions(chain) == [1, 1]
    assert joined([]) == []


def test_two_carried_states_of_one_value_are_refused() -> None:
    @rnn.cell(states="h g")
    def twins(x: "I", h: "H", g: "H", *, W: "H I", R: "H H", S: "H H"):
        new = rnn.tanh(W @ x + R @ h + S @ g)
        return new, new

    with pytest.raises(NotPersistent, match="same value"):
        step_of(made(twins))


@pytest.mark.parametrize(
    ("cell", "hidden", "says"),
    [("sru", 8, "no product"), ("m2rnn", 8, "not a vector"), ("lstm", 1, "one unit")],
)
def test_what_is_refused(cell: str, hidden: int, says: str) -> None:
    with pytest.raises(NotPersistent, match=says):
        step_of(layout_of(cell, hidden))


def test_without_products_nothing_but_pointwise_work_is_taken() -> None:
    def scan(cell: str) -> int:
        layout = layout_of(cell, 8)
        hoisted = set(layout.hoisted_nodes)
        found = phases(layout.graph, lambda n: layout.weights.place(n) is not None, lambda n: n in hoisted, False)
        return found.phases[0].width

    assert scan("sru") == 8
    with pytest.raises(NotPersistent, match="more than pointwise"):
        scan("lstm")


def test_components_are_gates_of_the_same_unit() -> None:
    assert [i for i, _ in components(Node("state", shape=(24,)), 8)] == [0, 1, 2]
    assert [index for _, index in components(Node("state", shape=(2, 8)), 8)] == [(0, Lane(0, 8)), (1, Lane(0, 8))]
    assert list(components(Node("state", shape=(1,)), 8)) == [(0, (0,))]
    with pytest.raises(NotPersistent):
        list(components(Node("state", shape=(12,)), 8))


def test_places_move_with_the_unit_or_do_not() -> None:
    node = Node("state", shape=(24,))
    assert place(node, (Lane(8, 8),), 8) == (1, True) and place(node, (3,), 8) == (3, False)
    with pytest.raises(NotPersistent, match="another unit"):
        place(node, (Lane(3, 8),), 8)


def test_a_state_times_a_mask_is_shown_only_where_nobody_else_reads_it() -> None:
    @rnn.cell(states="h")
    def both(x: "I", h: "H", *, W: "H I", R: "H H", S: "H H"):
        return rnn.tanh(W @ x + R @ h + S @ (h * h))

    def shown(cell: rnn.Cell, **options: Any) -> tuple[int, int]:
        net = rnn.RNN(cell, 4, 16, dtype="bfloat16", **options)
        (graph,) = pipeline.run(net, resolve("nvidia-h200"), training=True)[-1][1].graphs
        found = step_of(Layout(graph, "bfloat16", Weights(graph, 0, "bfloat16"), "bfloat16"))
        return len(found.shown), len(found.phases)

    assert shown(rnn.cells.elman, recurrent_dropout=0.5) == (1, 1)
    assert shown(rnn.cells.gru, recurrent_dropout=0.5) == (1, 1)
    assert shown(rnn.cells.gru_reset_before, recurrent_dropout=0.5)[0] == 0
    assert shown(rnn.cells.elman, zoneout=0.5) == (0, 1)
    assert shown(both, recurrent_dropout=0.5)[0] == 0
