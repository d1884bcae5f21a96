"""Values of a lane: each element once, and only where it is."""

from __future__ import annotations

from collections import Counter

import pytest
from matrix_cells import gated
from matrix_steps import layout_of
from tvm import tirx

from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW, Along, NotOnChip
from tvm_rnn.cuda.matrix.lane_values import Index, LaneValues, placed
from tvm_rnn.cuda.matrix.matrix_axes import matrix_axes
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import TirExpr

LANES = {ROW: tuple(Along(ROW, i, 6) for i in range(2)), COLUMN: tuple(Along(COLUMN, i, 4) for i in range(3))}


def values() -> tuple[LaneValues, Counter[Node]]:
    axes, kept = matrix_axes(layout_of(gated, K=6, V=4).graph, (6, 4), turned=False), Counter[Node]()

    def leaf(node: Node, index: Index) -> TirExpr | None:
        if not (node.leaf or axes.graph.region_of(node) == "before") or node.op == "state":
            return None
        kept[node] += 1
        return tirx.Var("leaf", "float32")

    return LaneValues(axes, LANES, leaf, lambda value: value), kept


def test_each_leaf_is_read_once_for_each_element() -> None:
    own, read = values()
    (state,), (result,) = own.axes.graph.states, own.axes.graph.results
    for index in own.indices(state):
        own.held[state, index] = tirx.Var("S", "float32")
    for _ in range(2):
        for index in own.indices(result):
            own.at(result, index)
    (gate,) = (n for n in read if n.op == "param")
    assert read[gate] == 6 and len(list(own.indices(result))) == 6


def test_a_state_is_not_read_where_no_lane_has_it() -> None:
    own, _ = values()
    (state,) = own.axes.graph.states
    with pytest.raises(NotOnChip, match="no lane has it"):
        own.at(state, (0, 0))


def test_indices_move_to_a_kernel_s_lanes() -> None:
    own, _ = values()
    index = next(own.indices(own.axes.graph.states[0]))
    moved = {role: tuple(Along(a.role, a.number, a.extent, value=7) for a in every) for role, every in LANES.items()}
    found = placed((*index, 3), moved)
    assert found == (*index, 3) and [i if isinstance(i, int) else i.expression for i in found] == [7, 7, 3]
