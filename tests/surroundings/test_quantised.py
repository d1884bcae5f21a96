"""Numbers with a scale for each block of an axis, as NumPy has them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.surroundings.regions import Unsupported, read_graph

RNG = np.random.default_rng(0)


@pytest.mark.broad
@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 7)), (0, (5, 4))])
def test_blocks(axis: int, shape: tuple[int, int]) -> None:
    """The last block may be shorter."""
    x = RNG.normal(0, 90, shape).astype("f4")
    count = [-(-n // 3) if i == axis else n for i, n in enumerate(shape)]
    constants = {"scale": RNG.uniform(0.5, 2, count).astype("f4"), "zero": RNG.integers(-9, 9, count).astype("i1")}
    blocks = {"axis": axis, "block_size": 3}
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **blocks),
        node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **blocks),
        node("Cast", ["q"], ["whole"], to=6),
    ]
    made = model_of(nodes, {"x": ("f4", [*shape])}, {"y": "f4", "whole": "i4"}, constants, 21)
    found = rnn.compile(rnn.from_onnx(made), progress=False).run({"x": x})
    places = [np.arange(n) // 3 if i == axis else np.arange(n) for i, n in enumerate(shape)]
    scale, zero = (constants[name][np.ix_(*places)] for name in ("scale", "zero"))
    whole = np.clip(np.rint(x / scale) + zero, -128, 127).astype("i4")
    np.testing.assert_array_equal(found["whole"], whole)
    np.testing.assert_allclose(found["y"], (whole - zero) * scale, rtol=1e-6)


def test_scales_of_float16_are_an_error() -> None:
    nodes = [node("QuantizeLinear", ["x", "s"], ["y"], block_size=2)]
    with pytest.raises(Unsupported, match="scales of float16"):
        read_graph(model_of(nodes, {"x": ("f4", [3, 4])}, {"y": "f4"}, {"s": np.ones((3, 2), "f2")}, 21), "x")
