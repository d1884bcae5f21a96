"""Dtypes and sizes of a program's values: of what networks make, and behind steps that no file has."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_models import model_of, node, weights

import tvm_rnn as rnn
from tvm_rnn.network.program import Program
from tvm_rnn.surroundings.nodes import Values
from tvm_rnn.surroundings.types import Types


def types_of(made: Any) -> tuple[Types, Program]:
    net = rnn.from_onnx(made)
    return Types(Values(net.program), getattr(net, "networks", [net])), net.program


def test_a_network_hands_its_sizes_on() -> None:
    own = weights("LSTM", 1, 4, 3, np.random.default_rng(0))
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("LSTM", ["t", "W", "R", "B"], ["y", "h"], hidden_size=3),
        node("Cast", ["h"], ["z"], to=11),
    ]
    made = model_of(nodes, {"x": ("f4", ["B", "T", 4])}, {"y": "f4", "z": "f8"}, {n: own[n] for n in "WRB"})
    types, program = types_of(made)
    (network,) = (step for step in program.steps if step.op == "Network")
    x, y, h = network.inputs[0], *network.outputs[:2]
    (T, B, width), seen = types.shape(x) or (), types.shape(y)
    assert width == 4 and isinstance(T, str) and isinstance(B, str) and T != B
    assert seen == [T, B, 3] and types.shape(h) == [1, B, 3] and types.shape("y") == [T, 1, B, 3]
    assert types.dtype(h) == "float32" and types.dtype("z") == "float64"


def test_what_is_not_known() -> None:
    types, _ = types_of(model_of([node("Abs", ["x"], ["y"])], {"x": ("f4", [2])}, {"y": "f4"}))
    assert types.shape("y") == [2] and types.shape("nothing") is None and types.dtype("nothing") == ""


def test_bounds_have_the_dtype_of_what_they_bound() -> None:
    """Those of old operator sets are attributes, and what they bound was made of nothing typed yet."""
    nodes = [node("Add", ["x", "x"], ["a"]), node("Clip", ["a"], ["y"], min=0.0, max=1.0)]
    types, _ = types_of(model_of(nodes, {"x": ("f8", [2])}, {"y": "f8"}, opset=7))
    assert [types.dtype(name) for name in types.nodes["y"].input] == ["float64"] * 3
