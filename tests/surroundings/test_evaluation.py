"""Operators on arrays that are known: the standard's results, what the reference lacks, and what cannot be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tvm_rnn.frontends.folding import FOLDED, MOVES
from tvm_rnn.surroundings.evaluation import Refused, evaluated, reshaped

X = np.random.default_rng(0).normal(size=(2, 3, 4))


def one(op: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    (found,) = evaluated(op, inputs, attributes)
    return found


def test_attributes_of_all_versions() -> None:
    """Axes, bounds and parts as attributes and as inputs; dtypes and values as steps have them."""
    total = X.sum(1, keepdims=True)
    for found in (one("ReduceSum", X, axes=[1]), one("ReduceSum", X, np.array([1]))):
        np.testing.assert_array_equal(found, total)
    np.testing.assert_array_equal(one("Clip", X, min="-inf", max=0.5), np.minimum(X, 0.5))
    np.testing.assert_array_equal(one("Slice", X, starts=[1], ends=[3], axes=[1]), X[:, 1:3])
    assert [part.shape for part in evaluated("Split", [X], {"axis": 2, "num_outputs": 2}, 2)] == [(2, 3, 2)] * 2
    assert one("Cast", X, dtype="float32").dtype == "float32"
    assert one("ConstantOfShape", np.array([2]), value="-inf", dtype="float32").tolist() == [-math.inf] * 2
    mean, inverse = evaluated("LayerNormalization", [X, np.ones(4)], {}, 3)[1:]
    np.testing.assert_allclose(inverse, 1 / np.sqrt(((X - mean) ** 2).mean(-1, keepdims=True) + 1e-5))


def test_elements_are_gathered_of_a_part_of_the_other_axes() -> None:
    places = np.array([[[3, -1]], [[0, 1]]])
    expected = [[[X[b, 0, p] for p in places[b, 0]]] for b in range(2)]
    np.testing.assert_array_equal(one("GatherElements", X, places, axis=2), expected)
    with pytest.raises(Refused):
        one("GatherElements", X, places + 4, axis=2)


def test_in_the_precision_of_the_dtype() -> None:
    expected = [math.erf(value) for value in X.reshape(-1)]
    np.testing.assert_allclose(one("Erf", X).reshape(-1), expected, rtol=1e-15)
    assert one("Sigmoid", np.array([-1e4, 1e4])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("shape", "to", "expected"),
    [
        ((2, 3, 4), [0, -1], (2, 12)),
        ((2, 3, 4), [4, 0, -1], (4, 3, 2)),
        ((0, 3, 2, 4), [0, 0, -1], (0, 3, 8)),  # of no steps, as torch exports what is between two layers
        ((5, 0, 4), [0, 0, -1], (5, 0, 4)),
    ],
)
def test_sizes_that_are_left_open(shape: tuple[int, ...], to: list[int], expected: tuple[int, ...]) -> None:
    """Also of empty arrays, where NumPy refuses and the standard says nothing."""
    assert reshaped(shape, to, False) == expected == one("Reshape", np.zeros(shape), np.array(to)).shape


def test_what_cannot_be() -> None:
    wrong: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("Reshape", [X, np.array([-1, -1])], {}),
        ("Reshape", [X, np.array([-2, 3])], {}),
        ("Split", [np.zeros(5), np.array([2, 2])], {}),
        ("MatMul", [X, X], {}),
        ("Strange", [X], {}),
        ("LengthsOfMask", [np.array([[False, True]])], {}),
    ]
    for op, inputs, attributes in wrong:
        with pytest.raises(Refused):
            evaluated(op, inputs, attributes)


def test_masks_as_lengths() -> None:
    mask = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
    lengths = one("LengthsOfMask", mask)
    assert lengths.dtype == np.int32 and lengths.tolist() == [3, 1, 0]
    x = np.arange(9.0).reshape(3, 3, 1)
    assert one("HoldLast", x, lengths)[..., 0].tolist() == [[0, 1, 2], [3, 3, 3], [6, 6, 6]]
    assert one("HoldLast", x[:, :0], lengths).shape == (3, 0, 1)
    turned = one("ReverseSequence", x, lengths, time_axis=1, batch_axis=0)
    assert turned[..., 0].tolist() == [[2, 1, 0], [3, 4, 5], [6, 7, 8]]


def test_moves_are_folded() -> None:
    assert MOVES < FOLDED
