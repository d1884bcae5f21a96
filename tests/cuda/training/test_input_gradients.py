"""Gradients of inputs on their way: added up, and 0 where rows have ended, emulated."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import decoded, encoded, run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.training.input_gradients import InputGradient
from tvm_rnn.graph.graph import Node, make

T, B, SIZE = 4, 3, 6


@pytest.mark.parametrize("add", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_rows_that_have_ended_get_nothing(dtype: str, add: int) -> None:
    a, b = (Node("input", shape=(SIZE,), name=name) for name in "ab")
    places = {a: Place(dtype, 8), b: Place(dtype, SIZE)}
    gradient = InputGradient("give", make("mul", a, b), dtype, places.get, dtype)
    rng = np.random.default_rng(0)
    values = [encoded(rng.normal(size=(T * B, places[n].row_stride)), dtype) for n in gradient.read]
    there = encoded(rng.normal(size=(T * B, SIZE)), dtype)
    arrays = {f"r{i}": value for i, value in enumerate(values)}
    arrays |= {"into": there.copy(), "lengths": np.array([9, 11, 7])}
    scalars = {"rows": T * B, "batch": B, "start": 8, "has_lengths": 1, "add": add}
    run(gradient.kernel, arrays, scalars, 1)
    x, y = (decoded(value, dtype)[:, :SIZE].reshape(T, B, SIZE) for value in values)
    expected = x * y * (np.arange(8, 12)[:, None] < np.array([9, 11, 7]))[..., None]
    expected = expected + add * decoded(there, dtype).reshape(T, B, SIZE)
    np.testing.assert_allclose(decoded(arrays["into"], dtype).reshape(T, B, SIZE), expected, rtol=1e-2, atol=1e-2)


def test_zeros_read_nothing() -> None:
    gradient = InputGradient(
        "give", Node("const", shape=(1,), value=np.zeros(1)), "float32", lambda node: None, "float32"
    )
    assert gradient.read == []
