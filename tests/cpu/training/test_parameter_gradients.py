"""finish: from sums to the gradients of parameters: what is kept on the way, and where."""

from __future__ import annotations

import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import cell, exp, softmax, target
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.training.lower_layer_backward import BackwardLayer
from tvm_rnn.cpu.training.parameter_gradients import Finish
from tvm_rnn.graph.graph import Graph
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


@cell(states="h")
def weighed(x: "H", h: "H", *, a: "H", U: "H 2", V: "2 H"):
    """Functions, reductions and a product of parameters."""
    return softmax(exp(a)) * h + (U @ V) @ x


@cell(states="h")
def without_parameters(x: "H", h: "H"):
    return x * h


def back_of(c: str | rnn.Cell) -> Graph:
    graph = pipeline.run(network(c, 5, 5), V4, training=True)[-1][1].graphs[0].backward
    assert graph is not None
    return graph


def finish_of(c: str | rnn.Cell) -> Finish:
    graph = back_of(c)
    return BackwardLayer(graph, {}, Emitter(V4, graph.dtype, ()), 4).finish


def test_joined_gates_are_read_where_they_were_summed() -> None:
    finish = finish_of("lstm")
    assert finish.kept == [] and len(finish.sums) == 12
    assert [n.op for n in finish.graph.weight_gradients] == ["concat"] * 3


def test_reductions_functions_and_what_several_read_are_kept() -> None:
    finish = finish_of(weighed)
    ops = [n.op for n in finish.kept]
    assert "exp" in ops and "sum" in ops and "max" in ops and "einsum" in ops
    assert all(n not in finish.sums for n in finish.kept)


@pytest.mark.parametrize("c", ["lstm", "gated_delta_net", weighed], ids=str)
def test_places_do_not_overlap(c: str | rnn.Cell) -> None:
    finish = finish_of(c)
    at = 0
    for node in (*finish.sums, *finish.kept):
        assert finish.places[node] == at and int(finish.place(node, 0).base) == at
        lanes = V4.lanes("float32")
        size = lanes
        for extent in node.shape[:-1]:
            size *= extent
        at += -(-(size * -(-(node.shape[-1] if node.shape else 1) // lanes)) // 16) * 16
    assert finish.size == at


def test_a_cell_without_parameters_has_nothing_to_finish() -> None:
    finish = finish_of(without_parameters)
    assert finish.size == 0 and finish.graph.weight_gradients == () and finish.kept == []
