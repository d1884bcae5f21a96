"""Numbers of rows: a vector has those of several rows, and what is left goes row by row."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.cpu.numbers_of_rows import is_numbers
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.oracle.tolerance import assert_close


def test_what_is_one_number_in_each_row() -> None:
    number, vector = (Node("input", shape=shape, name="x") for shape in ((1, 1), (3,)))
    groups = {shape: (make("exp", node),) for shape, node in ((1, number), (3, vector))}
    assert is_numbers(Group("pointwise", "before", 0, None, groups[1], groups[1]))
    assert not is_numbers(Group("pointwise", "step", 0, None, groups[1], groups[1]))
    assert not is_numbers(Group("pointwise", "before", 0, None, groups[3], groups[3]))


@pytest.mark.broad
def test_numbers_of_all_rows() -> None:
    """Whole vectors of rows, and rows that do not fill one."""
    net = rnn.RNN(rnn.cells.gated_delta_net, 4, 8).init(seed=0)
    module = rnn.compile(net, batch=3)
    for steps, batch in ((1, 1), (7, 3), (8, 1), (53, 3)):
        x = np.random.default_rng(0).normal(size=(steps, batch, 4)).astype("f4")
        assert_close(np.asarray(module(x)[0]), rnn.reference(net)(x)[0], "float32", steps)
