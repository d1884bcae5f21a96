"""Models of old operator sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_file import Source
from tvm_rnn.frontends.onnx_versions import OLDEST, with_known_operators


def test_an_old_operator_set_is_written_anew() -> None:
    model = model_of([node("Relu", ["x"], ["y"])], {"x": ("f4", ["B", 3])}, {"y": "f4"}, opset=6)
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "B"
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 3
    assert with_known_operators(Source(model)).opset == OLDEST
    assert [step.op for step in rnn.from_onnx(model).program.steps] == ["Relu"]


def test_what_onnx_cannot_write_anew_is_refused() -> None:
    model = model_of([node("Relu", ["x"], ["y"], nonsense=1)], {"x": ("f4", ["B", 3])}, {"y": "f4"}, opset=6)
    assert with_known_operators(Source(model)).opset == 6
    with pytest.raises(rnn.TvmRnnError, match="operator set 6"):
        rnn.from_onnx(model)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("old", "constants", "attributes"),
    [
        (("Upsample", "x", "scales"), {"scales": np.array([1, 1, 2, 3], "f4")}, {"mode": "nearest"}),
        (("Upsample", "x", "scales"), {"scales": np.array([1, 1, 2, 2], "f4")}, {"mode": "linear"}),
        (
            ("Scatter", "x", "i", "new"),
            {"i": np.ones((1, 2, 1, 3), "i8"), "new": np.ones((1, 2, 1, 3), "f4")},
            {"axis": 2},
        ),
    ],
)
def test_operators_that_others_replaced(old: Any, constants: Any, attributes: Any) -> None:
    op, *inputs = old
    model = model_of([node(op, inputs, ["y"], **attributes)], {"x": ("f4", [1, 2, 3, 4])}, {"y": "f4"}, constants, 9)
    for name in "ABCD":  # which onnx's checker asks for
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = name
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype("f4")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = rnn.compile(rnn.from_onnx(model), progress=False).run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
