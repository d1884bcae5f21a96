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
# Of 7 bits: ONNX Runtime adds pairs of products up in 16 bits on CPUs without instructions for bytes, where more
# saturate.
FILTERS = RNG.integers(-64, 64, (6, 4, 3)).astype("i1")
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
    """The same bits, whatever is drawn: sums are whole numbers, and what scales and rounds them is the same."""
    made = CASES[name]
    mod, axes = rnn.compile(rnn.from_onnx(made)), made.graph.input[0].type.tensor_type.shape.dim
    assert [step["op"] for step in mod.manifest["model"]["steps"]] == ["Compiled"]
    for sizes in ({"B": 1, "T": 5}, {"B": 3, "T": 18}):
        shape = [sizes.get(d.dim_param, d.dim_value) for d in axes]
        feeds = {"x": RNG.normal(size=shape).astype("f4")}
        np.testing.assert_array_equal(mod.run(feeds)["y"], onnx_runtime(made, feeds)["y"])


@pytest.mark.broad
def test_rounding_is_once_and_of_a_whole_number() -> None:
    """Sums whose products with 0.25 * 0.5 / 0.25 are ties, with filters of 8 bits and scales of their own; the same in
    whole numbers."""
    filters, scales = RNG.integers(-128, 128, (5, 3, 1)).astype("i1"), np.float32([0.5, 0.25, 0.3, 1.7, 0.02])
    own = {"w": filters, "f": scales, "b": RNG.integers(-9, 9, 5).astype("i4"), "s": np.float32(0.25)}
    one = node("QLinearConv", ["q", "s", "z", "w", "f", "v", "u", "z", "b"], ["r"])
    made = quantised(one, last(), of=["B", 3, "T"], u=np.float32(0.25), v=np.zeros(5, "i1"), **own)
    x = RNG.integers(-20, 20, (2, 3, 40)).astype("f4")
    total = np.einsum("oi,bit->bot", filters[..., 0].astype("i8"), (x * 4).astype("i8")) + own["b"][:, None]
    factor = (np.float32(0.25) * scales / np.float32(0.25))[:, None]
    levels = np.clip(np.rint(total.astype("f4") * factor) + 120, 0, 255)
    found = rnn.compile(rnn.from_onnx(made)).run({"x": x})["y"]
    np.testing.assert_array_equal(found, (levels - 120).astype("f4") * TWO["t"])


def test_zeros_have_a_scale() -> None:
    nodes = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), node("Cast", ["q"], ["y"], to=6)]
    made = model_of([*nodes, node("Identity", ["s"], ["scale"])], {"x": ("f4", [3])}, {"y": "i4", "scale": "f4"})
    found = rnn.compile(rnn.from_onnx(made)).run({"x": np.zeros(3, "f4")})
    assert found["scale"] == 1 and not found["y"].any()


def test_results_with_scales_for_each_row_are_refused() -> None:
    one = node("QLinearMatMul", ["q", "s", "z", "w", "t", "v", "t2", "z"], ["r"])
    made = quantised(one, last(), of=["B", 4], w=FILTERS[:4, :, 0], t2=np.ones(6, "f4"))
    with pytest.raises(rnn.errors.ConfigError, match="rows of the result with scales and zero points of their own"):
        rnn.from_onnx(made)


def test_a_form_that_is_not_standard() -> None:
    made = quantised(node("ConvInteger", ["q"], ["y"]), of=["B", 4, "T"], outputs={"y": "i4"})
    with pytest.raises(rnn.errors.ConfigError, match="it has 1 inputs, ConvInteger has 2 to 4"):
        rnn.from_onnx(made)
    assert onnx.defs.get_schema("ConvInteger").since_version == 10


def test_what_is_rounded_to_levels_has_the_bits_of_onnx_runtime() -> None:
    """A product, a sum of another operator, and sigmoid: none of them may differ in its last bit."""
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Add", ["a", "x"], ["b"]),
        node("Sigmoid", ["b"], ["c"]),
        node("Mul", ["b", "c"], ["d"]),
        node("Sub", ["d", "a"], ["e"]),
        node("DynamicQuantizeLinear", ["e"], ["levels", "scale", "zero"]),
        node("Cast", ["levels"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    outputs = {"y": "f4", "scale": "f4", "e": "f4"}
    made = model_of(nodes, {"x": ("f4", ["N"])}, outputs, {"w": np.float32(1 / 3)})
    mod = rnn.compile(rnn.from_onnx(made), progress=False)
    for size in (5, 1003):
        feeds = {"x": (RNG.standard_normal(size) * 4).astype("f4")}
        found, expected = mod.run(feeds), onnx_runtime(made, feeds)
        for name in outputs:
            np.testing.assert_array_equal(found[name], expected[name])
