"""The rows of kind scan: one step by NumPy, and which shapes they take."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_rnn.graph import recurrences
from tvm_rnn.graph.graph import Node, depends, has_steps, is_scan, make, recurrence_states
from tvm_rnn.graph.ops import TABLE


def leaf(op: str, *shape: int) -> Node:
    return Node(op, shape=shape, name=op)


def test_two_states_are_mixed_element_by_element() -> None:
    h, g, a, b, c = np.random.default_rng(0).standard_normal((5, 3, 4))
    np.testing.assert_array_equal(recurrences.scan(h, g, a, b, c), b * g + (a * h + c))


def test_a_maximum_of_sums() -> None:
    m, a, b = np.array([[1.0, -np.inf, 2.0]]), np.array([[-3.0, 0.0, np.nan]]), np.zeros((1, 3))
    np.testing.assert_array_equal(recurrences.scan_max(m, a, b), np.maximum(m + a, b))


@pytest.mark.parametrize("key", [-1, -2])
def test_a_matrix_with_a_write_and_a_product_of_rank_one(key: int) -> None:
    rng = np.random.default_rng(1)
    S, decay = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 1, 1))
    along, other = ((2, 1, 4), (2, 3, 1)) if key == -1 else ((2, 3, 1), (2, 1, 4))
    k, p, r = (rng.standard_normal(along) for _ in range(3))
    v = rng.standard_normal(other)
    found = recurrences.scan_matrix(S, decay, k, v, p, r, writes=1, key=key)
    expected = decay * S + k * v + p * (r * S).sum(axis=key, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    np.testing.assert_allclose(recurrences.read_out(found, r, key=key), (r * expected).sum(axis=key))


def test_its_operands_by_role() -> None:
    written, products = recurrences.matrix_operands(("S", "d", "k", "v", "p", "r", "p2", "r2"), 1)
    assert written == [("k", "v")] and products == [("p", "r"), ("p2", "r2")]


def test_operands_must_fit_the_state() -> None:
    with pytest.raises(ValueError, match="make"):
        make("scan", leaf("state", 1), leaf("input", 4), leaf("input", 4))
    with pytest.raises(ValueError, match="make"):
        make("scan_matrix", leaf("state", 4, 4), leaf("input", 1, 1), writes=0, key=-3)


def test_what_a_recurrence_makes_is_known_as_an_input_is() -> None:
    h, x = leaf("state", 4), leaf("input", 4)
    row = make("scan", h, x, x)
    old = make("carried", row, h)
    found = depends([h, x, row, old])
    assert found[h] == {"state"} and found[row] == found[old] == {"input"}
    assert is_scan(row) and not is_scan(h) and recurrence_states(row) == (h,)


def test_every_row_has_its_kind() -> None:
    names = ("scan", "scan_max", "scan_matrix", "delay", "carried", "read_out")
    assert {TABLE[name].kind for name in names} == {"scan"} and callable(has_steps)
