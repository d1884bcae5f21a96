"""Inputs of an ONNX model that are fixed to a value or to sizes: they are inputs no longer, or have these sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, weights

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError

RNG = np.random.default_rng(0)


def scaled() -> Any:
    """x [T, B, 2] times s, n rows; a GRU."""
    own = weights("GRU", 1, 2, 3, RNG)
    nodes = [
        node("Mul", ["x", "s"], ["m"]),
        node("GRU", ["m", "W", "R", "B"], ["y", "last"], hidden_size=3),
    ]
    inputs = {"x": ("f4", ["T", "B", 2]), "s": ("f4", [1]), "flag": ("?", [])}
    return model_of(nodes, inputs, {"last": "f4"}, {n: own[n] for n in "WRB"})


def test_a_value() -> None:
    net = rnn.from_onnx(scaled(), given={"s": 0.5, "flag": True})
    assert [d.name for d in net.program.inputs] == ["x"]
    (own,) = net.program.constants.values()
    assert own.dtype == np.float32 and own.tolist() == [0.5]


def test_sizes() -> None:
    made = scaled()
    net = rnn.from_onnx(made, shapes={"x": [7, None, 2], "s": ["S"]})
    assert net.program.inputs[0].shape == (7, "B", 2) and net.program.inputs[1].shape == (1,)
    assert made.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "T"


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"given": {"z": 1}}, "no such input"),
        ({"given": {"W": 1}}, "no such input"),
        ({"given": {"s": [1.0, 2.0]}}, r"float64, \[2\]\)\n  expected: float32 of shape \[1\]"),
        ({"given": {"s": "a"}}, "does not fit input 's'"),
        ({"given": {"flag": 2}}, "bool of shape"),
        ({"shapes": {"x": [1, 2]}}, "this shape does not fit input 'x'"),
        ({"shapes": {"x": [1, 2, 3]}}, "expected: .'T', 'B', 2."),
        ({"shapes": {"x": [-1, 2, 2]}}, "this shape does not fit"),
    ],
)
def test_what_does_not_fit(fixed: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rnn.from_onnx(scaled(), **fixed)
