"""The largest and smallest elements in order, beside NumPy: ties, NaN, sizes that have names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, InputError


def model(kind: str, shape: list[Any], k: int | None, **how: Any) -> Any:
    """TopK of an array; k: None for the size of the axis, as a sort has it."""
    own, constants = [node("TopK", ["x", "k"], ["v", "i"], **how)], {}
    if k is None:
        axis = how.get("axis", -1) % len(shape)
        own = [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "at"], ["n"], axis=0),
            node("Reshape", ["n", "one"], ["k"]),
            *own,
        ]
        constants = {"at": np.array(axis), "one": np.array([1])}
    else:
        constants = {"k": np.array([k])}
    return model_of(own, {"x": (kind, shape)}, {"v": kind, "i": "i8"}, constants, 17)


def expected(x: np.ndarray, k: int, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """By Python's sort, which is stable; NaN is above all numbers."""
    rows = np.moveaxis(x, axis, -1)
    places = np.zeros((*rows.shape[:-1], k), "i8")
    for at in np.ndindex(*rows.shape[:-1]):
        keys = [(bool(np.isnan(value)), 0 if np.isnan(value) else value) for value in rows[at].tolist()]
        signed = [(not nan, -value) if largest else (nan, value) for nan, value in keys]
        places[at] = sorted(range(len(signed)), key=signed.__getitem__)[:k]
    return np.moveaxis(np.take_along_axis(rows, places, -1), -1, axis), np.moveaxis(places, -1, axis)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["f4", "i8"])
def test_of_random_arrays(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(2, 12, rng.integers(1, 4))]
    axis, largest = int(rng.integers(-len(shape), len(shape))), bool(rng.integers(2))
    k = None if seed % 3 == 0 else int(rng.integers(1, shape[axis] + 1))
    x = rng.integers(-4, 5, shape).astype(kind)
    if kind == "f4":
        x[rng.random(shape) < 0.2] = np.nan
    net = rnn.from_onnx(model(kind, [f"n{i}" for i in range(len(shape))], k, axis=axis, largest=int(largest)))
    values, places = expected(x, k or shape[axis], axis, largest)
    for found in (rnn.compile(net, progress=False).run({"x": x}), rnn.reference(net).run({"x": x})):
        np.testing.assert_array_equal(found["v"], values)
        np.testing.assert_array_equal(found["i"], places)


def test_more_than_there_are() -> None:
    mod = rnn.compile(rnn.from_onnx(model("f4", ["n"], 4)))
    with pytest.raises(InputError, match="4 <= n"):
        mod.run({"x": np.zeros(3, "f4")})
    for k in (4, 0):
        with pytest.raises(ConfigError, match=r"4 <= 3|0 > 0"):
            rnn.compile(rnn.from_onnx(model("f4", [3], k)))
