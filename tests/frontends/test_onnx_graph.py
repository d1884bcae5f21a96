"""Values of a graph: what is known before the model runs, what is zero, and how much a small file may ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_models import model_of, node

from tvm_rnn.frontends.onnx_file import Source
from tvm_rnn.frontends.onnx_graph import GraphSteps, label
from tvm_rnn.frontends.onnx_nodes import add_node


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
