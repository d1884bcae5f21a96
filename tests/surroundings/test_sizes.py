"""Numbers that follow from sizes: arithmetic and moves of expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.surroundings.sizes import computed, factors, sizes_of
from tvm_rnn.tir.index import int64

B, T = tirx.Var("B", "int64"), tirx.Var("T", "int64")
SHAPE = sizes_of([B, tirx.IntImm("int64", 3), T])


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Mul", [SHAPE, np.array(4)], {}, [B * 4, 12, T * 4]),
        ("Div", [SHAPE, np.array([1, 2, 2])], {}, [B, 1, T // 2]),
        ("Sub", [np.array(5), SHAPE], {}, [5 - B, 2, 5 - T]),
        ("Max", [SHAPE, np.array(4)], {}, [tirx.Max(B, int64(4)), 4, tirx.Max(T, int64(4))]),
        ("Gather", [SHAPE, np.array([2, 0])], {"axis": 0}, [T, B]),
        ("Slice", [SHAPE, np.array([1]), np.array([9])], {}, [3, T]),
        ("Concat", [SHAPE, np.array([-1])], {"axis": 0}, [B, 3, T, -1]),
        ("ReduceProd", [SHAPE], {}, [B * 3 * T]),
        ("Cast", [SHAPE], {"to": 7}, [B, 3, T]),
    ],
    ids=lambda own: own if isinstance(own, str) else "",
)
def test_what_follows(op: str, inputs: Any, attributes: Any, expected: Any) -> None:
    found = computed(op, inputs, attributes)
    assert found is not None and len(found.reshape(-1)) == len(expected)
    for got, wanted in zip(found.reshape(-1).tolist(), expected, strict=True):
        assert got == wanted if isinstance(wanted, int) else Analyzer().can_prove_equal(got, wanted)


def test_a_product_of_sizes_is_an_array_of_one_or_a_number() -> None:
    """As the operator's attribute says, whose default it is to keep axes."""
    shapes = [computed("ReduceProd", [SHAPE], own) for own in ({}, {"keepdims": 1}, {"keepdims": 0})]
    assert [np.shape(found) for found in shapes] == [(1,), (1,), ()] and np.shape(computed("Size", [SHAPE], {})) == ()


def test_what_a_size_is_a_product_of() -> None:
    one, other, number = factors(B * 8 * (int64(2) * T))
    assert one.same_as(B) and other.same_as(T) and number == 16
    assert factors(6) == factors(tirx.IntImm("int64", 6)) == [6]


def test_what_has_no_such_form() -> None:
    assert computed("Cast", [SHAPE], {"to": 1}) is None and computed("Tanh", [SHAPE], {}) is None
