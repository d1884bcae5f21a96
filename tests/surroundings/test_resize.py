"""Resize: what is not known is refused; the standard's own tests are in tests/frontends/test_onnx_backend.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError


def model_of(size: int | str, scales: list[float] | None, **attributes: Any) -> Any:
    given = [helper.make_tensor_value_info("x", 1, [2, size])]
    fixed = [] if scales is None else [onnx.numpy_helper.from_array(np.array(scales, "f4"), "s")]
    given += [] if fixed else [helper.make_tensor_value_info("s", 1, [2])]
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", 1, None)], fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_rows_of_any_number_are_resized_along_the_other_axis() -> None:
    model = model_of(3, [1.0, 2.0], mode="linear", coordinate_transformation_mode="align_corners")
    x = np.array([[0, 1, 5], [2, np.nan, 4]], "f4")
    found = rnn.compile(rnn.from_onnx(model)).run({"x": x})["y"]
    expected = np.stack([np.interp(np.linspace(0, 2, 6), np.arange(3), row) for row in x])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    assert np.isnan(found[1]).tolist() == [False, True, True, True, True, False]


@pytest.mark.parametrize(("size", "scales", "why"), (("n", [1.0, 2.0], "only a run shows"), (3, None, "not known")))
def test_what_is_not_known_is_refused(size: int | str, scales: list[float] | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        rnn.compile(rnn.from_onnx(model_of(size, scales)))
