"""Operators on quantised numbers: what they become, and compiled models against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, onnx_runtime

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_file import read_model
from tvm_rnn.frontends.onnx_integers import as_others
from tvm_rnn.frontends.onnx_nodes import GraphSteps

RNG = np.random.default_rng(0)
FILTERS = RNG.integers(-128, 128, (6, 4, 3)).astype("i1")
TWO = {"s": np.float32(0.02), "z": np.uint8(120), "t": np.float32(0.3), "v": np.int8(0)}


def quantised(*nodes: Any, of: Any, outputs: Any = None, **constants: Any) -> Any:
    """A model of a float x, whose first node gives q in 8 bits."""
    first = node("QuantizeLinear", ["x", "s", "z"], ["q"])
    return model_of([first, *nodes], {"x": ("f4", of)}, outputs or {"y": "f4"}, {**TWO, **constants})


def last(name: str = "r") -> Any:
    return node("DequantizeLinear", [name, "t", "z"], ["y"])


def test_a_convolution_of_integers_is_one_of_shifted_numbers() -> None:
    one = node("ConvInteger", ["q", "w", "z", "v"], ["y"], pads=[1, 1])
    made = quantised(one, of=["B", 4, "T"], outputs={"y": "i4"}, w=FILTERS)
    nodes = as_others(GraphSteps(read_model(made)), one)
    assert [own.op_type for own in nodes] == ["Cast", "Cast", "Sub", "Cast", "Cast", "Sub", "Conv", "Cast"]
    assert nodes[-1].output == ["y"] and nodes[-2].attribute[0].ints == [1, 1]


def test_sums_that_float32_has_not_are_in_int32() -> None:
    """Filters of 127 with 1020 taps: 255 * 127 * 1020 is above 2 ** 24, a quarter of it is not."""
    one, kinds = node("ConvInteger", ["q", "w", "z"], ["y"]), list[set[int]]()
    for taps in (85, 340):
        filters = np.full((2, taps, 3), 127, "i1")
        made = quantised(one, of=["B", taps, "T"], outputs={"y": "i4"}, w=filters)
        nodes = as_others(GraphSteps(read_model(made)), one)
        kinds.append({own.attribute[0].i for own in nodes[:4] if own.op_type == "Cast"})
    assert kinds == [{1}, {6}]


def test_a_product_of_integers_whose_rows_may_have_zero_points_stays() -> None:
    one = node("MatMulInteger", ["q", "w", "zs"], ["y"])
    bytes_of = onnx.TensorProto.UINT8
    shapes = {"q": ["B", 4], "zs": ["B"]}
    inputs = [onnx.helper.make_tensor_value_info(name, bytes_of, shape) for name, shape in shapes.items()]
    made = model_of([one], {}, {"y": "i4"}, {"w": FILTERS[:4, :, 0]})
    made.graph.input.extend(inputs)
    assert as_others(GraphSteps(read_model(made)), one) == []


CASES = {
    "ConvInteger": quantised(
        node("ConvInteger", ["q", "w", "z", "v"], ["y"], pads=[1, 1], strides=[2]),
        of=["B", 4, "T"],
        outputs={"y": "i4"},
        w=FILTERS,
    ),
    "QLinearConv": quantised(
        node("QLinearConv", ["q", "s", "z", "w", "t", "v", "t", "z", "b"], ["r"]),
        last(),
        of=["B", 4, "T"],
        w=FILTERS,
        b=RNG.integers(-99, 99, 6).astype("i4"),
    ),
    "QLinearMatMul": quantised(
        node("QLinearMatMul", ["q", "s", "z", "w", "t", "v", "t", "z"], ["r"]), last(), of=["B", 4], w=FILTERS[:4, :, 0]
    ),
    "MatMulInteger": model_of(
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            node("MatMulInteger", ["q", "w", "z"], ["i"]),
            node("Cast", ["i"], ["f"], to=1),
            node("Mul", ["f", "s"], ["y"]),
        ],
        {"x": ("f4", ["B", 4])},
        {"y": "f4"},
        {"w": FILTERS[:4, :, 0]},
    ),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    made = CASES[name]
    mod, axes = rnn.compile(rnn.from_onnx(made)), made.graph.input[0].type.tensor_type.shape.dim
    assert [step["op"] for step in mod.manifest["model"]["steps"]] == ["Compiled"]
    for sizes in ({"B": 1, "T": 5}, {"B": 3, "T": 18}):
        shape = [sizes.get(d.dim_param, d.dim_value) for d in axes]
        feeds = {"x": RNG.normal(size=shape).astype("f4")}
        np.testing.assert_allclose(mod.run(feeds)["y"], onnx_runtime(made, feeds)["y"], rtol=1e-5, atol=1e-5)


def test_a_form_that_is_not_standard() -> None:
    made = quantised(node("ConvInteger", ["q"], ["y"]), of=["B", 4, "T"], outputs={"y": "i4"})
    with pytest.raises(rnn.errors.ConfigError, match="it has 1 inputs, ConvInteger has 2 to 4"):
        rnn.from_onnx(made)
    assert onnx.defs.get_schema("ConvInteger").since_version == 10
