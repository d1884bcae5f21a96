"""Traced values: lines, lifting, what is recorded, and that nothing is computed. Messages: tests/errors."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest

from tvm_rnn import CellError, cells, tanh
from tvm_rnn.graph.graph import Node
from tvm_rnn.language.trace import Value, apply, contract, fail, lift, user_line


@pytest.fixture
def value() -> Value:
    return Value(Node("input", shape=(2, 3), name="x"))


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_every_node_carries_the_line_that_made_it(value: Any) -> None:
    sum_, line = value + 1.0, here()
    nested, next_line = tanh(value)[0].T, here()
    assert sum_.node.source == f"{__file__}:{line}"
    assert nested.node.source == nested.node.args[0].source == f"{__file__}:{next_line}"
    assert user_line() == f"{__file__}:{here()}"


def test_lines_of_the_zoo_are_those_of_its_files() -> None:
    """They are the user's to look at, unlike the other files of the package."""
    assert cells.gru.trace({"I": 2, "H": 3}).output.source.split(":")[0].endswith("gru.py")


def test_fail_points_at_the_caller() -> None:
    with pytest.raises(CellError) as error:
        fail("no", got=1, do="that")
    assert str(error.value).splitlines()[0] == "no" and f"{__file__}:" in str(error.value)


@pytest.mark.parametrize("thing", [2, 2.5, True, np.float32(2), np.ones(3), [1, 2], (1.0, 2.0), np.int64(3)])
def test_lift_takes_what_is_known_now(thing: Any) -> None:
    node = lift(thing).node
    assert node.op == "const" and node.value is not None
    np.testing.assert_array_equal(node.value, thing)


@pytest.mark.parametrize("thing", [None, "text", 2j, object(), [1, "a"], {"a": 1}, [[1], [2, 3]], np.array(["a"])])
def test_lift_refuses_the_rest(thing: Any) -> None:
    with pytest.raises(CellError, match="cannot be part of an equation"):
        lift(thing)


def test_numbers_take_the_rank_of_the_other_operand_without_a_reshape(value: Any) -> None:
    node = (value * 2.0).node
    assert [a.op for a in node.args] == ["input", "const"] and node.args[1].shape == (1, 1)
    row = Value(Node("input", shape=(3,)))
    assert [a.op for a in (value * row).node.args] == ["input", "reshape"]


def test_slices_of_everything_are_the_value_itself(value: Any) -> None:
    assert value[:].node is value[...].node is value[:, 0:3].node is (+value).node is value.node


def test_a_move_of_truth_values_stays_one(value: Any) -> None:
    condition = value > 0.0
    assert all(v.node.boolean for v in (condition, condition[0], condition.T, condition.reshape(-1), ~condition))


def test_shape_size_and_repr(value: Any) -> None:
    assert (value.shape, value.ndim, value.size, len(value)) == ((2, 3), 2, 6, 2)
    assert repr(value) == "<traced input x[2, 3]>" and value.T.shape == (3, 2)
    assert {value: 1}[value] == 1
    assert not hasattr(value, "__array_interface__")
    assert copy.copy(value).node is value.node


def test_contract_without_a_sum_is_a_multiplication(value: Any) -> None:
    row = Value(Node("input", shape=(3,)))
    assert contract("ij,j->ij", value, row).node.op == "mul"
    assert contract("ij,j->i", value, row).node.op == "einsum"
    assert contract("ij,k->kji", value, row).shape == (3, 3, 2)


def test_apply_checks_kinds(value: Any) -> None:
    with pytest.raises(CellError, match="add: argument 2 has the wrong kind"):
        apply("add", value, value > 0.0)
    with pytest.raises(CellError, match="where: argument 1 has the wrong kind"):
        apply("where", value, value, value)
    assert apply("where", True, value, 0.0).shape == (2, 3)
