"""Traced values: lines, lifting, what is recorded, and that nothing is computed. Messages: tests/errors."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import CellError, cells, tanh
from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.language.trace import Value, apply, contract, einsum, fail, lift, user_line
from tvm_rnn.oracle.reference import evaluate


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


@pytest.mark.parametrize("thing", [2, 2.5, True, np.float32(2), 2**70, np.ones(3), [1, 2], (1.0, 2.0), np.int64(3)])
def test_lift_takes_what_is_known_now(thing: Any) -> None:
    node = lift(thing).node
    assert node.op == "const" and node.value is not None
    np.testing.assert_array_equal(node.value, thing)


REFUSED: list[object] = [None, "text", 2j, object(), [1, "a"], {"a": 1}, [[1], [2, 3]], np.array(["a"])]
REFUSED += [
    np.array(["1"]),
    np.exp(1j),
    [2j],
    np.array([1], object),
    np.ma.array([1.0]),
    np.datetime64(1, "s"),
    10**400,
]


@pytest.mark.parametrize("thing", REFUSED)
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


ROWS = 3


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij,j->i", ((3, 4), (4,))),
        ("ij, jk -> ik", ((3, 4), (4, 2))),
        ("ij,jk->ki", ((3, 4), (4, 2))),
        ("ij,kj->ki", ((3, 4), (2, 4))),
        ("i,j->ij", ((3,), (4,))),
        ("i,j->ji", ((3,), (4,))),
        ("ij,k->kji", ((2, 3), (4,))),
        ("ij,ij->ij", ((2, 3), (2, 3))),
        ("ij,ji->ij", ((2, 3), (3, 2))),
        ("i,i->", ((4,), (4,))),
        ("ij,ij->", ((2, 3), (2, 3))),
        ("ij,kl->", ((2, 3), (4, 2))),
        ("ij,k->j", ((2, 3), (4,))),
        ("ij->ji", ((2, 3),)),
        ("ij->", ((2, 3),)),
        ("ijk->ki", ((2, 3, 4),)),
        ("gij,j->gi", ((4, 2, 3), (3,))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("i,ij,j->", ((3,), (3, 4), (4,))),
        ("i,ij,j->ji", ((3,), (3, 4), (4,))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
        ("ij,k,jk->ki", ((2, 3), (4,), (3, 4))),
        ("i,j,k->kij", ((2,), (3,), (4,))),
        (",i->i", ((), (3,))),
    ],
)
def test_einsum(spec: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(ROWS, *shape)) for shape in shapes]
    leaves = [Node("input", shape=shape) for shape in shapes]
    node = einsum(spec, *map(Value, leaves)).node
    values: dict[Node, np.ndarray] = dict(zip(leaves, arrays, strict=True))
    evaluate(list(topological([node])), values)
    expected = np.stack([np.einsum(spec, *(a[row] for a in arrays)) for row in range(ROWS)])
    assert node.shape == expected.shape[1:] and values[node].shape == expected.shape
    np.testing.assert_allclose(values[node], expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(rnn.einsum(spec, *(a[0] for a in arrays)), expected[0], rtol=1e-13, atol=1e-13)


def test_arrays_known_now_are_operands_too() -> None:
    leaf, table = Node("input", shape=(4,)), np.arange(12.0).reshape(3, 4)
    node = rnn.einsum("ij,j->i", table, Value(leaf)).node
    values = {leaf: np.arange(8.0).reshape(2, 4)}
    evaluate(list(topological([node])), values)
    np.testing.assert_allclose(values[node], values[leaf] @ table.T)


def test_nothing_summed_is_a_multiplication() -> None:
    """An outer product is pointwise, so that it can be fused; a product of matrices stays one einsum."""
    a, b = Value(Node("state", shape=(3,))), Value(Node("state", shape=(4,)))
    assert einsum("i,j->ij", a, b).node.op == "mul"
    assert einsum("i,i->", a, a).node.op == "einsum"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: rnn.einsum("ij", x), "not supported"),
        (lambda x: rnn.einsum("...j->j", x), "not supported"),
        (lambda x: rnn.einsum("ii->i", x), "not supported"),
        (lambda x: rnn.einsum("ij->jj", x), "not supported"),
        (lambda x: rnn.einsum("ij,j->i", x), "not supported"),
        (lambda x: rnn.einsum("ij->k", x), "the result names an axis"),
        (lambda x: rnn.einsum("i->i", x), "letters do not match"),
        (lambda x: rnn.einsum("ij,j->i", x, x[:, 0]), "axis 'j' has sizes 3 and 2"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(CellError, match=text):
        call(Value(Node("input", shape=(2, 3), name="x")))
