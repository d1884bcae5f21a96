"""Addresses of values in kernels, evaluated as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import sym, tirx

from tvm_rnn.cuda.layer.pointers import Place, address, arithmetic, dense, storage


def number(expression: Any) -> int:
    return int(sym.Analyzer().simplify(expression))


def test_dense_is_row_major() -> None:
    shape = (3, 4, 5)
    for index in ((0, 0, 0), (2, 1, 4), (1, 3, 0)):
        assert dense(shape, index) == np.ravel_multi_index(index, shape)
    assert dense((), ()) == 0


@pytest.mark.parametrize("row", [0, 1, 3_000_000_000])
def test_addresses_are_64_bit(row: int) -> None:
    place = Place("float32", 24)
    found = address(place, tirx.IntImm("int64", row), tirx.IntImm("int32", 7))
    assert str(found.ty) == "int64" and number(found) == row * 24 + 7


def test_parameters_are_the_same_for_every_row() -> None:
    assert number(address(Place("float32", 0), tirx.IntImm("int64", 5), tirx.IntImm("int32", 7))) == 7


def test_dtypes_by_precision() -> None:
    assert [arithmetic(p) for p in ("float64", "float32", "tf32", "float16", "bfloat16")] == ["float64"] + [
        "float32"
    ] * 4
    assert [storage(p) for p in ("float64", "tf32", "bfloat16")] == ["float64", "float32", "bfloat16"]
