"""Normalisations of our own beside NumPy's: by a norm, of layers with their mean, by the root of squares."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.surroundings.regions import Unsupported, read_graph

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("f4")


@pytest.mark.broad
@pytest.mark.parametrize("axis", [0, -3, 1, 2])
def test_by_the_root_of_squares(axis: int) -> None:
    """Over all axes, too."""
    own = X.shape[axis % 3 :]
    scale = np.arange(1, 1 + np.prod(own), dtype="f4").reshape(own)
    nodes = [node("RMSNormalization", ["x", "scale"], ["y"], axis=axis, epsilon=0.1)]
    made = model_of(nodes, {"x": ("f4", ["B", 5, 4] if axis % 3 else [3, 5, 4])}, {"y": "f4"}, {"scale": scale}, 23)
    found = rnn.compile(rnn.from_onnx(made), progress=False).run({"x": X})["y"]
    axes = tuple(range(axis % 3, 3))
    expected = X / np.sqrt((X.astype("f8") ** 2).mean(axes, keepdims=True) + 0.1) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_norm_that_is_not_there_is_an_error() -> None:
    made = model_of([node("LpNormalization", ["x"], ["y"], p=3)], {"x": ("f4", [3, 4])}, {"y": "f4"}, {}, 21)
    with pytest.raises(Unsupported, match="norm 3"):
        read_graph(made, "x")
