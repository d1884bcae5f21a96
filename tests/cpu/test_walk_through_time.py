"""walk_through_time: which states a recurrence begins with, and where it keeps them."""

from __future__ import annotations

from tvm_rnn.cpu.walk_through_time import Walk
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.statements import sequence


def test_a_walk_of_inference_keeps_no_states() -> None:
    state, new = Node("state", shape=(4,), name="h"), Node("input", shape=(4,))
    array = Array("workspace", 0, 16, (1,), (4,))
    walk = Walk(
        {new: state}, {state: array}, {state: array}, {}, lambda b: 3, 0, lambda t, b, body: sequence(body), {}, False
    )
    assert walk.kept == {} and walk.states[new] is state and walk.active(0) == 3
