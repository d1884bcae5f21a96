"""Sums and products of all elements so far, beside NumPy: both directions, with their own element and without."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("without", [0, 1])
@pytest.mark.parametrize(("kind", "axis"), [("f4", 1), ("i8", -3)])
def test_of_sizes_that_have_names(back: int, without: int, kind: str, axis: int) -> None:
    own = [node("CumSum", ["x", "a"], ["y"], reverse=back, exclusive=without)]
    net = rnn.from_onnx(model_of(own, {"x": (kind, ["B", "T", 3])}, {"y": kind}, {"a": np.array(axis)}, 17))
    mod = rnn.compile(net, progress=False)
    for shape in ((2, 7, 3), (4, 1, 3), (3, 0, 3)):
        x = np.random.default_rng(0).integers(-9, 9, shape).astype(kind)
        turned = np.flip(x, axis) if back else x
        sums = np.cumsum(turned, axis, dtype=kind)
        sums = sums - turned if without else sums
        np.testing.assert_array_equal(mod.run({"x": x})["y"], np.flip(sums, axis) if back else sums)


def test_products_of_sizes_that_have_names() -> None:
    own = [node("CumProd", ["x", "a"], ["y"], reverse=1, exclusive=1)]
    net = rnn.from_onnx(model_of(own, {"x": ("f4", ["B", "T"])}, {"y": "f4"}, {"a": np.array(1)}, 26))
    mod = rnn.compile(net, progress=False)
    for shape in ((2, 7), (4, 1), (3, 0)):
        x = np.random.default_rng(0).uniform(0.5, 2, shape).astype("f4")
        found = np.concatenate([np.cumprod(x[:, ::-1], 1)[:, ::-1][:, 1:], np.ones((shape[0], 1), "f4")], 1)
        np.testing.assert_allclose(mod.run({"x": x})["y"], found[:, : shape[1]], rtol=1e-6)
