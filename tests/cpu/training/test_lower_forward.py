"""lower_forward_train: its functions, and that nothing between layers is in the workspace."""

from __future__ import annotations

import pytest
from networks import network

import tvm_rnn as rnn
from tests.cpu.training.test_lower_network import both
from tvm_rnn import target
from tvm_rnn.cpu.lower_group import Emitter
from tvm_rnn.cpu.lower_layer import Layer
from tvm_rnn.cpu.training.lower_forward import KeepingLayer
from tvm_rnn.passes import pipeline


def test_functions_by_name() -> None:
    forward, _ = both(network("elman", 5, 8, num_layers=2))
    assert set(forward.functions()) == {"forward_train", "train_pack_0", "train_pack_1"}


def test_states_and_inputs_are_in_the_tape() -> None:
    """The workspace has what a tile hoists, and scratch: an Elman layer has one hoisted value."""
    forward, _ = both(network("elman", 40, 16, num_layers=3))
    sizes = forward.memory.sizes()
    assert sizes.per_row == 0 and sizes.per_sequence_row == 0 and sizes.per_tile_row == 16
    assert forward.tape.inputs[0][1] == 48 and [stride for _, stride in forward.tape.inputs[1:]] == [16, 16]


V4 = target.TABLE["x86-64-v4"]


def layers_of(name: str) -> tuple[KeepingLayer, Layer]:
    graph = pipeline.run(network(name, 8, 24), V4, training=True)[-1][1].graphs[0]
    return KeepingLayer(graph, {}, Emitter(V4, "float32", ()), 4), Layer(graph, {}, Emitter(V4, "float32", ()), 4)


@pytest.mark.few_cells
@pytest.mark.parametrize("name", rnn.cells.names())
def test_every_kept_value_is_written_once(name: str) -> None:
    layer, plain = layers_of(name)
    assert bool(layer.states_per_row) == any(r.op == "scan_matrix" for r in layer.graph.results)
    for node in layer.graph.emitted:
        assert node not in layer.scratch and layer.hoisted.get(node, (0, 0)) == (0, 0)
        assert (node in layer.hoisted) != (node in layer.late)
        assert node in {n for g in layer.graph.groups for n in g.stored}
    # Nothing else moved.
    assert {n for n in plain.hoisted if n not in layer.graph.emitted} == {n for n, (_, s) in layer.hoisted.items() if s}
    assert layer.extent(layer.scratch) <= plain.extent(plain.scratch)


def test_an_lstm_s_gates_leave_the_scratch() -> None:
    layer, plain = layers_of("lstm")
    assert layer.extent(layer.scratch) == 0 and plain.extent(plain.scratch) == 4 * 32
    assert len(layer.late) == 4


def test_hoisted_values_that_are_kept_leave_the_tile() -> None:
    layer, plain = layers_of("sru")
    assert layer.extent(layer.hoisted) < plain.extent(plain.hoisted)
