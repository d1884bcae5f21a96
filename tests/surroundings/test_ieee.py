"""Extrema of floats as IEEE has them; those of whole numbers stay. Divisions of whole numbers that never stop."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from tvm_rnn.surroundings.ieee import as_ieee


def text(dtype: str) -> str:
    x, z = (te.placeholder((3, 4), dtype, name=name) for name in "xz")
    made = te.create_prim_func([x, z, topi.max(topi.maximum(x, z), 1)])
    found: str = as_ieee(made).script()
    return found


def test_nan_goes_through_and_nothing_is_less_than_everything() -> None:
    found = text("float32")
    assert "T.max(" not in found and found.count("T.isnan(") == 2
    assert "float32(-inf)" in found.replace('"', "").replace("T.float32(-inf)", "float32(-inf)")


def test_whole_numbers_stay() -> None:
    assert "T.isnan" not in text("int32") and "T.max(" in text("int32")


def test_a_bound_that_is_a_number_is_one_comparison() -> None:
    x = te.placeholder((4,), "float32", name="x")
    y = te.compute((4,), lambda i: tirx.Max(x[i], tirx.const(0, "float32")))
    found = as_ieee(te.create_prim_func([x, y])).script()
    assert "T.isnan" not in found and "T.Select" in found


@pytest.mark.parametrize("kind", ["int32", "int64", pytest.param("int8", marks=pytest.mark.broad)])
def test_no_quotient_of_whole_numbers_ends_the_process(kind: str) -> None:
    lowest = np.iinfo(kind).min
    a = np.array([5, 7, lowest, -7, lowest, 0, 9, -9], kind)
    b = np.array([0, 2, -1, 0, 3, 0, -1, 4], kind)
    x, z = (te.placeholder((8,), kind, name=name) for name in "xz")
    made = [topi.divide(x, z), topi.mod(x, z), topi.floor_divide(x, z), topi.floor_mod(x, z)]
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
        quotient = np.where(rest != 0, np.floor_divide(a, b) + (np.sign(a) != np.sign(b)), np.floor_divide(a, b))
        expected = [quotient, rest, np.floor_divide(a, b), np.mod(a, b)]
    found = tvm.compile(tvm.IRModule({"main": as_ieee(te.create_prim_func([x, z, *made]))}), "llvm")
    arrays = [tvm.runtime.tensor(value) for value in (a, b, *(np.full_like(a, 77) for _ in made))]
    found(*arrays)
    for got, wanted in zip(arrays[2:], expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_what_is_not_finite_does_not_vanish_beside_itself() -> None:
    """Built without TVM's simplifier, which has no part of it left."""
    x = tirx.decl_buffer((4,), "float32", name="x")
    own = tirx.BufferLoad(x, [0])
    nothing, same, other = (_beside(kind(own, own)) for kind in (tirx.Sub, tirx.EQ, tirx.NE))
    assert isinstance(nothing, tirx.Select) and "T.isnan" in str(nothing) and "inf" in str(nothing)
    assert isinstance(same, tirx.Not) and "isnan" in str(other)
    whole = tirx.BufferLoad(tirx.decl_buffer((4,), "int32", name="x"), [0])
    assert isinstance(_beside(tirx.Sub(whole, whole)), tirx.Sub)


def _beside(value: tirx.PrimExpr) -> tirx.PrimExpr:
    return as_ieee(tirx.PrimFunc([], tirx.Evaluate(value))).body.value


def test_places_are_divided_as_they_were() -> None:
    x = te.placeholder((12,), "int32", name="x")
    assert "T.Select" not in as_ieee(te.create_prim_func([x, topi.reshape(x, (3, 4))])).script()
