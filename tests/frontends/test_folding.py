"""Steps in the making: what is known before the model runs, what is zero, and how much a small file may ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import node

import tvm_rnn as rnn
from tests.frontends.test_onnx_nodes import steps_of
from tvm_rnn.budget import Spending
from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.folding import Recurrent, Steps, add_network, held_dtype_of, without_empty_rows
from tvm_rnn.network.program import NETWORK, Declared
from tvm_rnn.surroundings.evaluation import evaluated


def test_what_depends_on_constants_alone_is_made_now() -> None:
    steps = steps_of(
        node("Add", ["a", "a"], ["b"]),
        node("Split", ["b", "parts"], ["c", "d"], axis=0),
        node("Mul", ["c", "X"], ["Y"]),
        constants={"a": [1.0, 2.0, 3.0], "parts": [1, 2]},
        X=("f4", [None]),
    )
    assert [step.op for step in steps.steps] == ["Mul"]
    assert steps.constants["d"].tolist() == [4, 6] and steps.shape("c") == (1,) and steps.shape("X") is None
    assert steps.known("Y") and steps.known("d") and not steps.known("Z")


def test_zero_states_are_seen_through_what_makes_them() -> None:
    """As torch's two exporters write them, of the batch size at run time."""
    made = [
        node("Shape", ["X"], ["s"], start=1, end=2),
        node("Concat", ["one", "s", "five"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["a"]),
        node("Slice", ["a", "zero", "one"], ["b"]),
        node("Expand", ["nought", "shape"], ["c"]),
        node("Expand", ["half", "shape"], ["d"]),
        node("Mul", ["a", "X"], ["e"]),
    ]
    constants = {"one": [1], "five": [5], "zero": [0], "nought": 0.0, "half": [0.5]}
    steps = steps_of(*made, constants=constants, X=("f4", [None, None, 5]))
    assert [steps.is_zero(name) for name in ("a", "b", "c", "d", "e", "X", "nought")] == [True] * 3 + [False] * 3 + [
        True
    ]


@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("ConstantOfShape", {"s": [1 << 20, 1 << 20]}, {}),
        ("Expand", {"x": [1.0], "s": [1 << 40]}, {}),
        ("Tile", {"x": [1.0, 2.0], "s": [1 << 40]}, {}),
        ("Range", {"a": 0.0, "b": 1e18, "c": 1.0}, {}),
        ("Pad", {"x": [1.0], "s": [0, 1 << 40]}, {}),
        ("Gather", {"x": np.zeros((1, 1 << 20), "f4"), "s": np.zeros(1 << 12, "i8")}, {}),
        ("Add", {"x": np.zeros((1 << 17, 1), "f4"), "s": np.zeros((1, 1 << 17), "f4")}, {}),
        ("MatMul", {"x": np.zeros((1 << 17, 1), "f4"), "s": np.zeros((1, 1 << 17), "f4")}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_few_bytes_cannot_ask_for_all_memory(op: str, constants: dict[str, Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="asks for more than its budget"):
        steps_of(node(op, list(constants), ["y"], **attributes), constants=constants)


def test_growth_in_many_steps_is_counted() -> None:
    """x = concat(x, x), forty times."""
    nodes = [node("Concat", [f"x{i}", f"x{i}"], [f"x{i + 1}"], axis=0) for i in range(40)]
    with pytest.raises(ConfigError, match="budget"):
        steps_of(*nodes, constants={"x0": np.ones(4)})


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (node("Reshape", ["a", "s"], ["y"]), "cannot be computed"),
        (node("Range", ["z", "z", "z"], ["y"]), "cannot be computed"),
        (node("Gather", ["a", "s"], ["y"], axis=9), "cannot be computed"),
    ],
)
def test_what_cannot_be_computed(made: Any, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        steps_of(made, constants={"a": [1.0, 2.0, 3.0], "s": [2, 2], "z": 0.0})


def test_the_larger_the_file_the_more_may_be_made() -> None:
    for size, allowed in ((0, False), (1 << 22, True)):
        steps = Steps(spending=Spending(size=size))
        shape = steps.keep([1 << 24, 1])
        made = [steps.emit("ConstantOfShape", [shape], "zeros")]
        if allowed:
            assert steps.shape(steps.emit("Transpose", [made[0]], "turn")) == (1, 1 << 24)
        else:
            with pytest.raises(ConfigError, match="budget"):
                steps.emit("Transpose", [made[0]], "turn")


def test_shapes_of_what_is_declared() -> None:
    steps = Steps(
        [Declared("a", "float32", (2, 3)), Declared("b", "float32", ("T", 3)), Declared("c", "float32", None)]
    )
    assert [steps.shape(name) for name in "abc"] == [(2, 3), None, None] and steps.known("c") and not steps.known("d")


def layer(dtype: str = "float32") -> Recurrent:
    return Recurrent("the layer", rnn.cells.lstm, 3, 4, False, dtype, [{}, {}])


def test_a_layers_step() -> None:
    steps = Steps()
    y, h, c = add_network(steps, layer(), "x", "n", ["h", ""], 5)
    (step,) = steps.steps
    assert (step.op, step.inputs, step.outputs) == (NETWORK, ("x", "n", "h", ""), (y, h, c))
    assert step.attributes == {"network": 5} and step.node == "the layer" and steps.known(c) and layer().directions == 2


def test_rows_of_length_0_have_a_state_of_0() -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        steps = Steps()
        steps.dtypes["n"] = "int32"
        result = without_empty_rows(steps, layer(dtype), "h", "n")
        values = {"n": np.array([2, 0, 1], "i4"), "h": np.ones((2, 3, 4), held_dtype_of(dtype)), **steps.constants}
        for step in steps.steps:
            (values[step.outputs[0]],) = evaluated(step.op, [values[name] for name in step.inputs], step.attributes)
        assert values[result].dtype == held_dtype_of(dtype)
        np.testing.assert_array_equal(values[result].sum(axis=(0, 2)), [8, 0, 8])
