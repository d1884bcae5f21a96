"""layer_backward: which values have rows for a whole tile, and which live for one step."""

from __future__ import annotations

import pytest
from networks import network

import tvm_rnn as rnn
from tests.oracle.test_reference import restless
from tvm_rnn import target
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.training.lower_layer_backward import BackwardLayer
from tvm_rnn.graph.graph import sums_rows
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


def layer_of(c: str | rnn.Cell) -> BackwardLayer:
    graph = pipeline.run(network(c, 8, 24), V4, training=True)[-1][1].graphs[0].backward
    assert graph is not None
    return BackwardLayer(graph, {}, Emitter(V4, graph.dtype, ()), 4)


def test_an_lstm_keeps_the_gradients_of_its_gates_for_a_tile() -> None:
    """Four gates of 32 padded units, and the gradient of x; nothing lives for one step alone."""
    layer = layer_of("lstm")
    assert layer.extent(layer.hoisted) == 4 * 32 + 16 and layer.extent(layer.scratch) == 0
    assert len(layer.last) == 4 and layer.carried == [] and layer.early == []


def test_transposed_weights_are_packed_for_both_products() -> None:
    layer = layer_of("lstm")
    assert layer.packed.size == 4 * (32 * 24 + 16 * 24)  # R^T gives 24 units, W^T 8, of depth 24 each


def test_a_carried_gradient_that_a_sum_reads_is_copied_at_every_step() -> None:
    layer = layer_of(restless)
    assert [n.name for n in layer.carried] == ["d_c"]
    assert set(layer.carried) <= set(layer.hoisted)


@pytest.mark.few_cells
@pytest.mark.parametrize("name", rnn.cells.names())
def test_sums_are_apart_from_what_is_computed_for_each_row(name: str) -> None:
    layer = layer_of(name)
    assert layer.sums and not any(sums_rows(n) for n in layer.graph.nodes())
    stored = {n for g in layer.graph.groups for n in g.stored}
    for node in layer.sums:
        for operand in node.args:
            assert operand in layer.graph.emitted
    assert set(layer.last) <= stored and not set(layer.last) & set(layer.scratch)
