"""Ordinary nodes: attributes by the standard's tables, what old versions come to, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node

from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.onnx_file import Source
from tvm_rnn.frontends.onnx_nodes import GraphSteps, add_node, label
from tvm_rnn.surroundings.evaluation import evaluated


def added(made: Any, opset: int = 17, constants: dict[str, Any] | None = None) -> GraphSteps:
    known = {name: np.asarray(value) for name, value in (constants or {}).items()}
    inputs = {name: ("f4", None) for name in made.input if name and name not in known}
    steps = GraphSteps(Source(model_of([made], inputs, {}, known, opset)))
    add_node(steps, made)
    return steps


@pytest.mark.parametrize(
    ("made", "opset", "expected"),
    [
        (node("Softmax", ["x"], ["y"]), 13, {}),
        (node("LogSoftmax", ["x"], ["y"], axis=2), 13, {"axis": 2}),
        (node("Squeeze", ["x"], ["y"], axes=[1]), 11, {"axes": [1]}),
        (node("Split", ["x"], ["a", "b"], axis=1), 13, {"num_outputs": 2, "axis": 1}),
        (node("Split", ["x"], ["a", "b"], axis=1, split=[1, 2]), 11, {"axis": 1, "split": [1, 2]}),
        (node("Cast", ["x"], ["y"], to=7), 13, {"dtype": "int64"}),
        (node("CastLike", ["x", "z"], ["y"]), 15, {"dtype": "float32"}),
        (node("ConstantOfShape", ["x"], ["y"]), 9, {"value": 0.0, "dtype": "float32"}),
        (node("Dropout", ["x"], ["y"], ratio=0.5), 10, {}),
        (node("Dropout", ["x"], ["y"], ratio=0.5), 7, {}),
        (node("Elu", ["x"], ["y"], alpha=0.5), 20, {"alpha": 0.5}),
        (node("Clip", ["x"], ["y"], min=0.0, max=1.0), 6, {"min": 0.0, "max": 1.0}),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else None,
)
def test_versions_and_options(made: Any, opset: int, expected: dict[str, Any]) -> None:
    (step,) = added(made, opset).steps
    assert dict(step.attributes) == expected


@pytest.mark.parametrize(("op", "opset", "axis"), [("Softmax", 11, 1), ("LogSoftmax", 7, 2)])
def test_softmax_of_old_versions_works_on_everything_from_an_axis_on(op: str, opset: int, axis: int) -> None:
    steps = added(node(op, ["x"], ["y"], **({} if axis == 1 else {"axis": axis})), opset)
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    values = {"x": x, **steps.constants}
    for step in steps.steps:
        (values[step.outputs[0]],) = evaluated(step.op, [values[name] for name in step.inputs], step.attributes)
    rows = np.exp(x.reshape(int(np.prod(x.shape[:axis])), -1))
    expected = rows / rows.sum(1, keepdims=True)
    np.testing.assert_allclose(values["y"].reshape(rows.shape), np.log(expected) if "Log" in op else expected)


def test_constants_of_every_form() -> None:
    tensor = onnx.numpy_helper.from_array(np.array([1, 2], "i4"))
    found = [
        added(node("Constant", [], ["y"], **{name: value})).constants["y"]
        for name, value in (("value", tensor), ("value_float", 2.5), ("value_ints", [3, 4]))
    ]
    assert [(v.dtype.name, v.tolist()) for v in found] == [("int32", [1, 2]), ("float32", 2.5), ("int64", [3, 4])]
    shape = onnx.numpy_helper.from_array(np.array([7], "i8"))
    (step,) = added(node("ConstantOfShape", ["x"], ["y"], value=shape)).steps
    assert dict(step.attributes) == {"value": 7, "dtype": "int64"}


REFUSED: list[tuple[Any, str]] = [
    (node("Det", ["x"], ["y"]), "operator Det is not supported"),
    (node("Loop", ["x", "x"], ["y"]), "operator Loop is not supported"),
    (node("Add", ["x"], ["y"]), "it has 1 inputs, Add has 2 to 2"),
    (node("Add", ["x", "x"], ["y", "z"]), "2 outputs"),
    (node("CastLike", ["x"], ["y"]), "it has 1 inputs"),
    (node("Transpose", ["x"], ["y"], order=[1]), "attribute 'order' is not one of Transpose's"),
    (node("Transpose", ["x"], ["y"], perm=1.5), "attribute 'perm' is not one of Transpose's"),
    (node("Softmax", ["x"], ["y"], axis="one"), "attribute 'axis'"),
    (node("Cast", ["x"], ["y"], to=16), "bfloat16"),
    (node("Cast", ["x"], ["y"], to=8), "element type 8"),
    (node("Dropout", ["x", "", "t"], ["y"]), "training mode"),
    (node("BatchNormalization", ["x"] * 5, ["y"], training_mode=1), "training mode"),
    (node("BatchNormalization", ["x"] * 5, ["y", "m", "v"]), "output 'm' is for training"),
    (node("Pad", ["x", "t"], ["y"], mode="wrap"), "mode 'wrap'"),
    (node("Constant", [], ["y"]), "no value, or several"),
    (node("Constant", [], ["y"], value_string="a"), "'value_string'"),
    (node("Constant", [], ["y"], value_int=1, value_float=1.0), "no value, or several"),
]


@pytest.mark.parametrize(("made", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_refused(made: Any, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        added(made, 19 if text.startswith("mode") else 17)


def test_domains_and_twofold_or_odd_attributes() -> None:
    made = node("Relu", ["x"], ["y"])
    made.domain = "com.example"
    with pytest.raises(Unreadable, match=r"com\.example\.Relu is not of the standard set"):
        added(made)
    made = node("Transpose", ["x"], ["y"], perm=[1, 0])
    made.attribute.append(made.attribute[0])
    with pytest.raises(Unreadable, match="there twice"):
        added(made)
    made = node("Gelu", ["x"], ["y"], approximate=b"\xff")
    with pytest.raises(Unreadable, match="is no text"):
        added(made, 20)
    made = node("Transpose", ["x"], ["y"])
    made.attribute.add(name="perm", type=7, ref_attr_name="outer")
    with pytest.raises(Unreadable, match="'perm'"):
        added(made)
    with pytest.raises(Unreadable, match="operator set 14 has no LayerNormalization"):
        added(node("LayerNormalization", ["x", "x"], ["y"]), 14)


def steps_of(*nodes: Any, constants: dict[str, Any] | None = None, **inputs: Any) -> GraphSteps:
    steps = GraphSteps(Source(model_of(nodes, inputs, {}, {k: np.asarray(v) for k, v in (constants or {}).items()})))
    for made in nodes:
        add_node(steps, made)
    return steps


def test_names_of_ours_are_nobody_elses() -> None:
    steps = steps_of(node("Add", ["constant#1", "X"], ["constant#2"]), constants={"constant#1": [1.0]}, X=("f4", None))
    assert steps.keep([1]) == "constant#3"
    assert steps.keep([2]) == "constant#4"


def test_declared_values() -> None:
    model = model_of(
        [], {"a": ("f4", ["T", None, 3]), "b": ("i8", None), "w": ("f4", [1])}, {}, {"w": np.ones(1, "f4")}
    )
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    model.graph.input.add(name="s").type.sequence_type.elem_type.tensor_type.elem_type = 1
    steps = GraphSteps(Source(model))
    assert [(d.name, d.shape) for d in steps.inputs] == [("a", ("T", None, None)), ("b", None)]
    assert steps.problems == ["value 's': it is no tensor"]


def test_labels() -> None:
    assert label(node("Add", ["a"], ["", "b"])) == "Add 'b'"
    assert label(node("Add", ["a"], ["b"], "sum")) == "Add 'sum'"
