"""walk_through_time: which states a recurrence begins with, and where it keeps them."""

from __future__ import annotations

import pytest
from tvm.sym import Analyzer

from tvm_rnn.cpu.walk_through_time import FEW_STEPS, FEW_WITH_PRODUCTS, Walk, is_few
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Node, make
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import sequence


def test_a_walk_of_inference_keeps_no_states() -> None:
    state, new = Node("state", shape=(4,), name="h"), Node("input", shape=(4,))
    array = Array("workspace", 0, 16, (1,), (4,))
    ends, restart = {state: array}, (lambda t, b, body: sequence(body))
    walk = Walk({new: state}, ends, ends, {}, lambda b: 3, 0, restart, {}, False, lambda root: is_few(int64(3), root))
    assert walk.kept == {} and walk.states[new] is state and walk.active(0) == 3


@pytest.mark.parametrize(("products", "least"), [(0, FEW_STEPS), (1, FEW_WITH_PRODUCTS)])
def test_few_steps_are_fewer_than_those_that_pay_for_a_turned_matrix(products: int, least: int) -> None:
    state, decay, k, v = (Node("input", shape=s) for s in ((16, 19), (1, 1), (1, 19), (16, 1)))
    root = make("scan_matrix", state, decay, k, v, *(k, k) * products, writes=1, key=-1)
    few, many = (is_few(int64(steps), root) for steps in (least - 1, least))
    assert (str(Analyzer().simplify(few)), str(Analyzer().simplify(many))) == ("T.bool(True)", "T.bool(False)")
