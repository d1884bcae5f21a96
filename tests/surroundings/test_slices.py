"""Slices to places that sizes tell, as NumPy has them: the first T rows of a table, the last T, every second."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn

TABLE = np.random.default_rng(0).normal(size=(9, 4)).astype("f4")
AXES: dict[str, tuple[Any, Any, Any]] = {  # starts, ends and steps, of which "T" is the number of steps of x
    "the first T": (0, "T", 1),
    "the last T": ("-T", 100, 1),
    "behind the first T": ("T", 2**31 - 1, 1),
    "every second of T": (1, "T", 2),
    "all but T": (0, "-T", 1),
}


def model(start: Any, end: Any, step: int) -> Any:
    """A slice of the table by the number of steps of x."""
    named = {"T": "T", "-T": "minus"}
    nodes = [
        node("Shape", ["x"], ["T"], start=0, end=1),
        node("Neg", ["T"], ["minus"]),
        node("Slice", ["table", named.get(start, "start"), named.get(end, "end"), "axis", "step"], ["y"]),
    ]
    known = {"start": start, "end": end, "axis": 0, "step": step}
    constants = {name: np.array([value]) for name, value in known.items() if isinstance(value, int)}
    return model_of(nodes, {"x": ("f4", ["T"])}, {"y": "f4"}, {**constants, "table": TABLE}, 18)


@pytest.mark.parametrize("name", AXES)
def test_slices(name: str) -> None:
    start, end, step = AXES[name]
    module = rnn.compile(rnn.from_onnx(model(start, end, step)), progress=False)
    for steps in (0, 1, 4, 9, 12):
        at = {"T": steps, "-T": -steps}
        expected = TABLE[at.get(start, start) : at.get(end, end) : step]
        np.testing.assert_array_equal(module.run({"x": np.zeros(steps, "f4")})["y"], expected)
