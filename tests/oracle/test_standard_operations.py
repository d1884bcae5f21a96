"""The onnx package's own reference as operations of a program, in float64."""

from __future__ import annotations

import numpy as np
from onnx_models import model_of, node, weights

import tvm_rnn as rnn
from tvm_rnn.oracle.standard_operations import operations_of
from tvm_rnn.oracle.tolerance import assert_close

RNG = np.random.default_rng(0)


def test_a_convolution_and_pooling_before_a_network() -> None:
    nodes = [
        node("Conv", ["x", "k"], ["c"], strides=[2], pads=[1, 1]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2]),
        node("Transpose", ["p"], ["t"], perm=[2, 0, 1]),
        node("GRU", ["t", "W", "R", "B"], ["y", ""], hidden_size=3),
    ]
    own = weights("GRU", 1, 4, 3, RNG)
    known = {"k": RNG.uniform(-1, 1, (4, 2, 3)).astype("f4"), **{n: own[n] for n in "WRB"}}
    net = rnn.from_onnx(model_of(nodes, {"x": ("f4", ["B", 2, "T"])}, {"y": "f4"}, known))
    x = RNG.uniform(-1, 1, (3, 2, 13)).astype("f4")
    expected = rnn.reference(net).run({"x": x})["y"]
    assert expected.dtype == np.float64
    assert_close(rnn.compile(net, progress=False).run({"x": x})["y"], expected, "float32", 5)


def test_rows_of_the_table_stay() -> None:
    found = operations_of(["Add", "Tan"])
    x = np.array([0.25, np.inf])
    assert found["Add"]([x, x], {})[0] == 0.5
    np.testing.assert_allclose(found["Tan"]([x[:1]], {})[0], np.tan(x[:1]))
