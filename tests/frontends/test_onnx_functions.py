"""Functions of a file and of the standard, as what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_file import Source
from tvm_rnn.frontends.onnx_functions import without_functions

helper = onnx.helper


def of_functions(*functions: tuple[str, list[Any]]) -> Any:
    """A model that calls the first of its functions. functions: names, and nodes from x to y."""
    call = helper.make_node(functions[0][0], ["x"], ["y"], domain="own")
    model = model_of([call], {"x": ("f4", ["B", 3])}, {"y": "f4"}, opset=18)
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model.opset_import.append(sets[1])
    model.functions.extend(helper.make_function("own", name, ["x"], ["y"], nodes, sets) for name, nodes in functions)
    return model


def test_functions_of_the_file() -> None:
    inner = helper.make_node("Inner", ["x"], ["h"], domain="own")
    model = of_functions(("Outer", [inner, node("Neg", ["h"], ["y"])]), ("Inner", [node("Tanh", ["x"], ["y"])]))
    found = without_functions(Source(model)).model
    assert [own.op_type for own in found.graph.node] == ["Tanh", "Neg"] and not found.functions


def test_a_function_that_calls_itself_is_refused() -> None:
    call = helper.make_node("Outer", ["x"], ["y"], domain="own")
    with pytest.raises(rnn.TvmRnnError, match=r"calls itself(.|\n)*own.Outer calls own.Outer"):
        rnn.from_onnx(of_functions(("Outer", [call])))


def test_what_functions_come_to_is_counted() -> None:
    """Each calls the next one four times: 4 ** 14 nodes."""
    functions = []
    for i in range(14):
        calls = [
            helper.make_node(f"F{i + 1}", ["x" if not j else f"h{j}"], [f"h{j + 1}"], domain="own") for j in range(4)
        ]
        functions.append((f"F{i}", [*calls, node("Neg", ["h4"], ["y"])]))
    functions.append(("F14", [node("Neg", ["x"], ["y"])]))
    with pytest.raises(rnn.TvmRnnError, match="more than its budget"):
        rnn.from_onnx(of_functions(*functions))


def test_functions_of_the_standard() -> None:
    """What we lack, and constants whose type it depends on."""
    model = model_of(
        [node("Celu", ["x"], ["h"], alpha=0.5), node("CastLike", ["h", "like"], ["y"])],
        {"x": ("f4", ["B", 3])},
        {"y": "f8"},
        {"like": np.zeros(1)},
        opset=18,
    )
    found = without_functions(Source(model)).model
    assert {own.op_type for own in found.graph.node} >= {"Elu", "CastLike"}
    assert "Celu" not in {own.op_type for own in found.graph.node}


def test_functions_of_the_standard_of_which_inputs_or_attributes_are_not_given() -> None:
    """Attention without a mask but with what came before; SwiGLU without its factor."""
    if onnx.defs.onnx_opset_version() < 24:
        pytest.skip("this onnx has no Attention")
    shape = ("f4", [1, 2, 3, 4])
    model = model_of(
        [node("Attention", ["q", "q", "q", "", "k", "v"], ["y", "keys", "values"])],
        {"q": shape, "k": shape, "v": shape},
        {"y": "f4"},
        {},
        opset=24,
    )
    found = without_functions(Source(model)).model
    assert "Attention" not in {own.op_type for own in found.graph.node}
    assert {name for own in found.graph.node for name in own.input} >= {"q", "k", "v"}
    constants = [own for own in found.graph.node if own.op_type == "Constant"]
    assert all(own.attribute for own in constants)
