"""The tolerance table and the comparison: what counts as the same result."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tvm_rnn import ConfigError
from tvm_rnn.oracle.tolerance import TABLE, assert_close, relative_error, tolerance


def test_float32_over_200_steps_is_below_1e_5() -> None:
    assert tolerance("float32", 1) == tolerance("float32", 200) == 1e-5
    assert tolerance("float64", 200) == 1e-12


@pytest.mark.parametrize("dtype", TABLE)
def test_tolerance_grows_mildly_with_steps(dtype: str) -> None:
    limits = [tolerance(dtype, steps) for steps in (0, 200, 201, 1000, 1001, 10**6)]
    assert limits == sorted(limits)
    assert limits[-1] <= 10 * limits[0]


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"float8[\s\S]*float32, float64"):
        tolerance("float8", 10)


def test_error_is_absolute_below_one_and_relative_above() -> None:
    assert relative_error([0.001, 0.5], [0.0, 0.5]) == pytest.approx(0.001)
    assert relative_error([0.0, 1000.1], [0.0, 1000.0]) == pytest.approx(1e-4)
    # one scale for the whole array: a small element beside a large one
    assert relative_error([0.01, 100.0], [0.0, 100.0]) == pytest.approx(1e-4)


def test_special_values_must_stand_at_the_same_places() -> None:
    special = [math.nan, math.inf, -math.inf, 1.0]
    assert relative_error(special, special) == 0
    for place, other in ((0, 1.0), (1, math.nan), (2, math.inf), (3, math.inf), (3, math.nan)):
        changed = list(special)
        changed[place] = other
        assert relative_error(changed, special) == math.inf, (place, other)


def test_an_infinite_expected_value_does_not_widen_the_scale() -> None:
    assert relative_error([math.inf, 0.1], [math.inf, 0.0]) == pytest.approx(0.1)


def test_empty_arrays_and_arrays_without_finite_values_agree() -> None:
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0
    assert relative_error([math.nan], [math.nan]) == 0


def test_shapes_are_not_broadcast() -> None:
    with pytest.raises(AssertionError, match="shape"):
        relative_error(np.zeros((2, 1)), np.zeros((2, 3)))


def test_assert_close_names_the_worst_element() -> None:
    expected = np.zeros((2, 3))
    actual = expected.copy()
    actual[0, 1], actual[1, 2] = 1e-4, -2e-3
    with pytest.raises(AssertionError, match=r"(?s)y is not close.*element \[1, 2\].*0.002.*1e-05 for float32"):
        assert_close(actual, expected, "float32", 200, what="y")


def test_assert_close_names_the_first_nan() -> None:
    actual = np.zeros(4)
    actual[2] = np.nan
    with pytest.raises(AssertionError, match=r"(?s)element \[2\].*1 of 4 elements are NaN"):
        assert_close(actual, np.zeros(4), "float32", 1)


def test_assert_close_follows_results_and_states() -> None:
    result = (np.ones(3), {"h": np.ones(2), "c": [np.ones(1), np.zeros(2)]})
    near = (np.ones(3) + 5e-6, {"c": [np.ones(1), np.zeros(2)], "h": np.ones(2)})
    assert_close(near, result, "float32", 10)
    with pytest.raises(AssertionError, match=r"result\[1\]\['c'\]\[0\]"):
        assert_close((near[0], {"h": np.ones(2), "c": [np.zeros(1), np.zeros(2)]}), result, "float32", 10)
    with pytest.raises(AssertionError, match="other names"):
        assert_close((near[0], {"h": np.ones(2)}), result, "float32", 10)
    with pytest.raises(AssertionError, match="other parts"):
        assert_close(near[:1], result, "float32", 10)


def test_float32_results_are_compared_in_float64() -> None:
    actual = np.array([0.1], np.float32)
    assert 0 < relative_error(actual, np.array([0.1])) < 1e-7
    with pytest.raises(AssertionError):
        assert_close(actual, np.array([0.1]), "float64", 1)
