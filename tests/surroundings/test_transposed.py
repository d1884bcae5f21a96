"""Transposed convolutions whose result has a shape that the file says, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.surroundings.regions import Unsupported, read_graph

RNG = np.random.default_rng(0)
CASES: list[dict[str, Any]] = [
    {"output_shape": [7, 9], "strides": [2, 2]},
    {"output_shape": [8, 10], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"output_shape": [8, 10], "strides": [2, 2], "auto_pad": "SAME_LOWER", "dilations": [2, 1]},
]


def transposed(shape: list[Any], attributes: dict[str, Any]) -> Any:
    w = RNG.normal(size=(2, 3, 3, 4)).astype("f4")
    return model_of(
        [node("ConvTranspose", ["x", "w"], ["y"], **attributes)], {"x": ("f4", shape)}, {"y": "f4"}, {"w": w}
    )


@pytest.mark.broad
@pytest.mark.parametrize("attributes", CASES, ids=[str(own) for own in CASES])
def test_shapes_that_are_asked_for(attributes: dict[str, Any]) -> None:
    made, x = transposed([1, 2, 4, 5], attributes), RNG.normal(size=(1, 2, 4, 5)).astype("f4")
    (expected,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    found = rnn.compile(rnn.from_onnx(made), progress=False).run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_sizes_that_a_run_shows_are_an_error() -> None:
    with pytest.raises(Unsupported, match="output_shape of sizes"):
        read_graph(transposed([1, 2, "h", 5], CASES[0]), "x")
