"""dtypes: names, what holds which values, and rounding to 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_rnn import ConfigError, WeightError
from tvm_rnn.dtypes import (
    DTYPES,
    INFINITE,
    ITEM_BYTES,
    PRECISIONS,
    check_fit,
    dtype_name,
    held_dtype,
    precision_name,
    rounded,
    stored_name,
    summed,
)
from tvm_rnn.runtime import runtime


def test_every_dtype_is_in_every_table() -> None:
    assert {*DTYPES} == {*ITEM_BYTES} == {*PRECISIONS}
    assert all(np.dtype(held_dtype(name)).itemsize in (4, 8) for name in DTYPES)


@pytest.mark.parametrize("given", ["float32", np.float32, np.dtype("float32"), ">f4"])
def test_names(given: object) -> None:
    assert dtype_name(given) == "float32"


def test_torch_has_names_too() -> None:
    torch = pytest.importorskip("torch")
    assert [dtype_name(d) for d in (torch.bfloat16, torch.float16)] == ["bfloat16", "float16"]


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ConfigError, match="bfloat16, float16"):
        dtype_name("bfloat15")


def test_float16_is_rounded_as_numpy_does() -> None:
    given = np.array([1 / 3, -0.0, np.nan, 6e-8, 65519.0])
    np.testing.assert_array_equal(rounded(given, "float16"), given.astype("f2").astype("f4"))
    assert rounded(1e9, "float16") == np.inf  # and without a warning


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    one, step = 1.0, 2.0**-7
    given = np.array([one + step / 2, one + 1.5 * step, one + 0.51 * step, -one - step / 2, 0.0, np.inf, 3.4e38], "f4")
    expected = [one, one + 2 * step, one + step, -one, 0.0, np.inf, np.inf]
    np.testing.assert_array_equal(rounded(given, "bfloat16"), np.array(expected, "f4"))
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view("f4")
    assert np.isnan(rounded(nan, "bfloat16")).all()


def test_bfloat16_is_rounded_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    given = np.random.default_rng(0).standard_normal(1000).astype("f4") * 1e3
    np.testing.assert_array_equal(rounded(given, "bfloat16"), torch.from_numpy(given).bfloat16().float().numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_dtypes_are_cast_only(dtype: str) -> None:
    result = rounded(2.5, dtype)
    assert result.dtype == dtype and result.shape == () and result == 2.5


def test_precisions() -> None:
    assert precision_name("float32", None) == "float32" and precision_name("float32", "tf32") == "tf32"
    with pytest.raises(ConfigError, match="cannot be computed in 'tf32'"):
        precision_name("float64", "tf32")
    with pytest.raises(ConfigError, match="dtype='bfloat16'"):
        precision_name("float32", "bfloat16")
    with pytest.raises(ConfigError, match="no such precision"):
        precision_name("float32", "tf23")


def test_dtypes_of_weights() -> None:
    for name in ("float8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn"):
        assert stored_name("bfloat16", True, name) == "float8_e4m3"
    for name in (None, "", "float16"):
        assert stored_name("float16", True, name) == "" and stored_name("float32", False, None) == ""
    with pytest.raises(ConfigError, match="did you mean 'float8_e4m3'"):
        stored_name("float16", True, "float8_e5m2")
    for name in ("bfloat16", "torch.float16", "int8"):
        assert stored_name("float32", False, name) == name.removeprefix("torch.")
    for gpu, name in ((False, "float8_e4m3"), (True, "int8"), (True, "bfloat16")):
        with pytest.raises(ConfigError, match="weights are not for this target"):
            stored_name("float32", gpu, name)
    for precision in ("float32", "tf32", "float64"):
        with pytest.raises(ConfigError, match="need another precision"):
            stored_name(precision, True, "float8_e4m3")
    with pytest.raises(ConfigError, match="dtype='float32'"):
        stored_name("float64", False, "int8")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_finite_numbers_that_would_be_infinite_are_named(dtype: str) -> None:
    least = INFINITE[dtype]
    with np.errstate(over="ignore"):
        below = np.nextafter(np.float32(least), np.float32(0)).astype(np.float64)
    assert np.isfinite(rounded(np.array([below]), dtype)).all()
    check_fit({"a": np.array([below, np.inf, -np.inf, np.nan])}, dtype)
    with np.errstate(over="ignore"):
        assert np.isinf(rounded(np.array([least]), dtype)).all()
    with pytest.raises(WeightError, match=rf"(?s)infinite in {dtype}.*b: 2 of 3 numbers"):
        check_fit({"a": np.zeros(2), "b": np.array([least, -least, 1])}, dtype)


def test_biases_whose_sum_would_be_infinite() -> None:
    half = np.full(3, 40_000, np.float16)
    assert np.array_equal(summed(half, -half, "float16"), np.zeros(3))
    with pytest.raises(WeightError, match="the sum of two biases"):
        summed(half, half, "float16")


def test_the_runtime_knows_the_same_numbers() -> None:
    assert {name: INFINITE[name] for name in runtime.INFINITE} == runtime.INFINITE
