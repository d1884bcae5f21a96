"""Models of old operator sets."""

from __future__ import annotations

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
