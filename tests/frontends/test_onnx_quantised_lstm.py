"""DynamicQuantizeLSTM: its weights and the state in 8 bits, and compiled models against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, onnx_runtime

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_cells import Form, cell_of, products_of_bytes

RNG = np.random.default_rng(0)
# ONNX Runtime adds pairs of products of uint8 and int8 up in 16 bits on CPUs without instructions for bytes, where they
# saturate: with weights of 7 bits they do not (2 * 255 * 64 < 2 ** 15).
LEAST, MOST = -64, 64


def quantised(inputs: int = 3, width: int = 5, count: int = 1, **changed: Any) -> Any:
    """A model of one node. changed: constants in the place of the usual ones, attributes of the node, or `last`: how
    many of its inputs it has."""
    constants = {
        "W": RNG.integers(LEAST, MOST, (count, inputs, 4 * width)).astype("i1"),
        "R": RNG.integers(LEAST, MOST, (count, width, 4 * width)).astype("i1"),
        "b": RNG.normal(size=(count, 8 * width)).astype("f4"),
        "W_s": RNG.uniform(0.006, 0.012, (count, 4 * width)).astype("f4"),
        "W_z": np.zeros((count, 4 * width), "i1"),
        "R_s": RNG.uniform(0.006, 0.012, count).astype("f4"),
        "R_z": RNG.integers(-20, 20, count).astype("i1"),
    }
    attributes = {"hidden_size": width, "direction": "bidirectional" if count == 2 else "forward"}
    last = changed.pop("last", 12)
    held = {name: changed.pop(name) for name in constants.keys() & changed.keys()}
    names = ["x", "W", "R", "b", "", "h", "c", "", "W_s", "W_z", "R_s", "R_z"][:last]
    one = node("DynamicQuantizeLSTM", names, ["Y", "Y_h", "Y_c"], domain="com.microsoft", **{**attributes, **changed})
    given = {"x": ("f4", ["T", "B", inputs]), "h": ("f4", [count, "B", width]), "c": ("f4", [count, "B", width])}
    made = model_of([one], given, dict.fromkeys(("Y", "Y_h", "Y_c"), "f4"), constants | held)
    made.opset_import.add(domain="com.microsoft", version=1)
    return made


@pytest.mark.broad
@pytest.mark.parametrize(("inputs", "width", "count"), [(3, 5, 1), (37, 22, 2), (70, 96, 1)])
@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_one_row_is_onnx_runtimes(inputs: int, width: int, count: int, kind: str) -> None:
    """To the last bit: sums of bytes, scales, zero points, sigmoid, tanh, and the order of sums. With another bit a
    state at a tie of its levels would become another level."""
    more = {}
    if kind == "u1":
        sizes = {"W": inputs, "R": width}
        more = {n: RNG.integers(0, 256, (count, size, 4 * width)).astype("u1") for n, size in sizes.items()}
        more |= {"W_z": np.full((count, 4 * width), 128, "u1"), "R_z": RNG.integers(100, 150, count).astype("u1")}
        more |= {"R_s": RNG.uniform(0.003, 0.006, count).astype("f4")}
    made = quantised(inputs, width, count, **more)
    mod = rnn.compile(rnn.from_onnx(made))
    for steps in (1, 23, 60):
        feeds = {
            "x": RNG.normal(size=(steps, 1, inputs)).astype("f4"),
            "h": RNG.normal(size=(count, 1, width)).astype("f4"),
            "c": RNG.normal(size=(count, 1, width)).astype("f4"),
        }
        got, expected = mod.run(feeds), onnx_runtime(made, feeds)
        for name in ("Y", "Y_h", "Y_c"):
            np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def test_weights_are_whole_numbers_with_scales_and_zero_points() -> None:
    made = quantised()
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    own = rnn.from_onnx(made).weights  # gates i f g o of ours, i o f c of theirs
    expected = held["R"].reshape(5, 4, 5).transpose(1, 2, 0)[[0, 2, 3, 1]]
    np.testing.assert_array_equal(own["R_l0"], expected)
    assert own["W_l0"].shape == (4, 5, 5) and not own["W_l0"][..., 3:].any()
    np.testing.assert_array_equal(own["W_scale_l0"], held["W_s"].reshape(4, 5)[[0, 2, 3, 1]])
    assert (own["R_zero_l0"] == held["R_z"]).all() and not own["W_zero_l0"].any()


def test_a_state_of_256_values() -> None:
    """As the standard's DynamicQuantizeLinear, row by row; a row of zeros, of one sign, and of ties."""
    rows = np.float64([[0, 0, 0, 0], [1, 2, 3, 255], [-0.5, -1.25, -2, 0], [-1.5, 2.5, 253.5, 3.5]])
    low, high = np.minimum(rows.min(-1, keepdims=True), 0), np.maximum(rows.max(-1, keepdims=True), 0)
    scale = np.where(high == low, 1, (high - low) / 255)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    weights = RNG.integers(-128, 128, (3, 4)).astype("f4")
    expected = ((np.clip(np.rint(rows / scale) + zero, 0, 255) - zero) * scale) @ (weights - 7).T * 0.5

    @rnn.cell(states="s h")
    def read(x: "I", s: "H", h: "I", *, R: "H I"):
        values = {"x": x, "h": x, "W": 0.0 * R, "R": R, "W_scale": 0.5, "R_scale": 0.5, "W_zero": 0.0, "R_zero": 7.0}
        return products_of_bytes(True, values), h

    y, _ = rnn.reference(rnn.RNN(read, 4, 3).load({"R_l0": weights}))(rows[None])
    np.testing.assert_allclose(y[0], expected, rtol=1e-12)


def test_it_is_a_cell_of_its_own() -> None:
    plain, own = Form("LSTM"), Form("LSTM", quantised=True)
    assert cell_of(plain) is rnn.cells.lstm and cell_of(own) is cell_of(own) is not rnn.cells.lstm
    assert "quantised" in (cell_of(own).doc or "")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"W": np.zeros((1, 3, 20), "f4")}, "W is float32 .1, 3, 20., expected int8 or uint8 with three axes"),
        ({"R_s": np.ones((1, 3), "f4")}, "R_scale has shape .1, 3., expected .1. or .1, 20."),
        ({"R_z": np.zeros(1, "u1")}, "R_zero_point is uint8, R is int8"),
        ({"last": 11}, "it has 11 inputs, DynamicQuantizeLSTM has 12"),
        ({"hidden_size": 6}, "hidden_size is 6, R is for 5"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], expected: str) -> None:
    with pytest.raises(rnn.errors.ConfigError, match=expected):
        rnn.from_onnx(quantised(**changed))
