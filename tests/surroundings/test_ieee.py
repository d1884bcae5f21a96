"""Extrema of floats as IEEE has them; those of whole numbers stay."""

from __future__ import annotations

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
