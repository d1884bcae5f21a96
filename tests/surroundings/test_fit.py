"""Steps whose sizes are known to fit, and those that a run has to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_rnn.network.program import Step
from tvm_rnn.surroundings.fit import Fit


@pytest.mark.parametrize(
    ("op", "shape", "numbers", "attributes", "fits"),
    [
        ("Reshape", ["T", 6], [0, 2, 3], {}, True),
        ("Reshape", ["T", 6], [-1, 3], {}, True),
        ("Reshape", ["T", 6], [-1, 4], {}, False),
        ("Reshape", ["T"], [2, 8], {}, False),
        ("Reshape", [2, 8], [16], {}, True),
        ("Reshape", [2, 8], [0, 0, 0], {}, False),
        ("Reshape", ["T", 6], None, {}, False),
        ("Split", ["T", 6], [2, 4], {"axis": 1}, True),
        ("Split", ["T", 6], [2, 4], {}, False),
        ("Pad", ["T", 6], [0, 5, 0, 5], {"mode": "reflect"}, True),
        ("Pad", ["T", 6], [0, 6, 0, 0], {"mode": "reflect"}, False),
        ("Pad", ["T", 6], [1, 0, 0, 0], {"mode": "reflect"}, False),
        ("Pad", ["T", 6], [9, 0, 0, 0], {}, True),
        ("Gather", ["T", 6], [5, -6], {"axis": 1}, True),
        ("Gather", ["T", 6], [6], {"axis": 1}, False),
        ("Gather", ["T", 6], [0], {}, False),
        ("Add", ["T", 6], None, {}, True),
    ],
)
def test_sizes(op: str, shape: list[Any], numbers: Any, attributes: dict[str, Any], fits: bool) -> None:
    known = {"n": None if numbers is None else np.array(numbers)}
    fit = Fit({"x": shape}.get, known.get)
    assert fit(Step(op, ("x", "n"), ("y",), attributes)) == fits


def test_equal_parts_are_never_too_many() -> None:
    assert Fit({"x": ["T"]}.get, {}.get)(Step("Split", ("x",), ("y", "z"), {"num_outputs": 2}))
