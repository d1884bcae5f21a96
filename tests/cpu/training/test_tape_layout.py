"""tape: every value has a place of its own, inside the size that the manifest says, in the order of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from networks import network

from tests.oracle.test_reference import restless
from tvm_rnn import target
from tvm_rnn.cpu.training.tape_layout import Extents, TapeLayout
from tvm_rnn.passes import pipeline
from tvm_rnn.tir.index import int64

V4 = target.TABLE["x86-64-v4"]
T, B, MARKS = 3, 2, 1
ROWS = Extents(int64(T * B), int64(B), int64(MARKS * B))
NETS: dict[str, dict[str, Any]] = {
    "lstm": {"c": "lstm"},
    "layers both ways": {"c": "lstm", "num_layers": 3, "bidirectional": True},
    "sizes per layer": {"c": restless, "hidden": (17, 2, 5), "num_layers": 3},
    "several inputs": {"c": "augru", "num_layers": 2, "bidirectional": True, "dtype": "float64"},
    "a matrix": {"c": "mlstm", "num_layers": 2},
    "matrices both ways": {"c": "gated_delta_net", "num_layers": 2, "bidirectional": True},
}


def layout_of(c: Any, hidden: Any = 7, **options: Any) -> TapeLayout:
    net = network(c, 3, hidden, **options)
    return TapeLayout(net, pipeline.run(net, V4, training=True)[-1][1], V4.lanes(net.dtype))


def number(expression: Any) -> int:
    return int(expression)  # TVM folds constants


def places(layout: TapeLayout) -> list[tuple[int, int]]:
    """(first element, number of elements) of all that is kept."""
    steps, found = int64(T * B), []
    for layer in range(layout.net.num_layers):
        at = number(layout.input(layer, int64(0), steps))
        found.append((at, T * B * layout.inputs[layer][1]))
        graph = layout.layers.of_layer[layer]
        for d in range(layout.net.num_directions):
            block = layout.visit(layer, int64(d), ROWS, steps)
            for i in layout.rows[graph].matrices:
                first = layout.matrix(graph, i, block, int64(0), ROWS)
                assert (
                    number(layout.matrix(graph, i, block, int64(1), ROWS).base)
                    == number(first.base) + B * first.row_stride
                )
                found.append((number(first.base), (MARKS + 1) * B * first.row_stride))
            for i in {*range(len(layout.layers.graphs[graph].states))} - {*layout.rows[graph].matrices}:
                first = layout.state(graph, i, block, int64(0), ROWS)
                last = layout.state(graph, i, block, int64(T), ROWS)
                assert number(last.base) - number(first.base) == T * B * first.row_stride
                found.append((number(first.base), (T + 1) * B * first.row_stride))
            for i in range(len(layout.layers.graphs[graph].emitted)):
                array = layout.emitted(graph, i, block, int64(0), ROWS)
                found.append((number(array.base), T * B * array.row_stride))
    return found + [(T * B * at, T * B * stride) for at, stride in layout.extra]


@pytest.mark.parametrize("name", NETS)
def test_every_value_has_a_place_of_its_own(name: str) -> None:
    layout = layout_of(**NETS[name])
    sizes = layout.sizes()
    taken = np.zeros(B * (sizes.per_row + T * sizes.per_sequence_row + MARKS * (sizes.per_mark or 0)), int)
    for first, count in places(layout):
        taken[first : first + count] += 1
    assert (taken == 1).all()


def test_layers_that_share_a_graph_follow_each_other() -> None:
    """What code with a loop over layers relies on: the same distance from each to the next."""
    layout = layout_of("lstm", num_layers=4, bidirectional=True)
    steps = int64(T * B)
    for offset in range(3):
        apart = number(layout.input(1, int64(offset), steps)), number(layout.input(1 + offset, int64(0), steps))
        assert apart[0] == apart[1]
        visits = [layout.visit(*at, ROWS, steps) for at in ((1, int64(2 * offset)), (1 + offset, int64(0)))]
        assert number(visits[0]) == number(visits[1])


def test_inputs_are_there_for_all_steps_and_visits_for_a_part() -> None:
    layout = layout_of("lstm", num_layers=2, bidirectional=True)
    inputs, rest = layout.sizes().inputs_per_row, layout.per_sequence_row - layout.inputs_per_row
    assert inputs == sum(stride for _, stride in layout.inputs) and layout_of("lstm").sizes().inputs_per_row is None
    whole = int64(10 * T * B)
    assert number(layout.input(1, int64(0), whole)) == 10 * T * B * layout.inputs[0][1]
    first, last = (layout.visit(1, int64(d), ROWS, whole) for d in (0, 1))
    assert number(layout.visit(0, int64(0), ROWS, whole)) == 10 * T * B * inputs
    assert 10 * T * B * inputs < number(first) < number(last)
    assert number(last) < 10 * T * B * inputs + T * B * rest + B * layout.per_row


def test_a_tape_holds_gates_states_and_inputs_and_no_more() -> None:
    layout = layout_of("lstm", hidden=16)
    lanes = V4.lanes("float32")
    assert layout.per_sequence_row == lanes + 2 * 16 + 4 * 16 and layout.per_row == 2 * 16


def test_a_tape_has_matrices_before_some_steps_alone() -> None:
    layout, size = layout_of("gated_delta_net", hidden=16), 16 * 16
    kept = sum(layout.rows[0].emitted) + layout.stride(layout.net.layers[0].graph.inputs[0])
    assert layout.sizes().mark == 16 and size <= layout.per_mark <= 2 * size
    assert layout.per_row == layout.per_mark and layout.per_sequence_row == kept < size
