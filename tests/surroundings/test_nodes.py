"""Steps as nodes of one operator set: lists and bounds are inputs, whatever version they came from."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_rnn.network.program import Program, Step
from tvm_rnn.surroundings.nodes import Values, as_inferred, node_of, opset_of, renamed


def made(op: str, *inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> tuple[Any, Values]:
    values = Values(Program((), (), (), {}))
    return node_of(values, Step(op, inputs or ("x",), outputs, attributes), "float32"), values


def test_lists_and_bounds_become_inputs() -> None:
    node, values = made("Slice", starts=[1], ends=[5])
    assert [values.constant(name).tolist() for name in node.input[1:]] == [[1], [5]]
    assert all(values.constant(name).dtype == np.int64 for name in node.input[1:])
    node, values = made("Clip", max=6.0)
    assert node.input[1] == "" and values.constant(node.input[2]) == np.float32(6)
    assert made("ReduceSum", "x", "axes", keepdims=0)[0].input == ["x", "axes"]


def test_what_has_another_form() -> None:
    assert made("Cast", dtype="int32")[0].attribute[0].i == 6
    assert made("ConstantOfShape", value=2.0, dtype="float64")[0].attribute[0].t.data_type == 11
    assert made("Dropout", "x", "ratio", outputs=("y", ""))[0].input == ["x"]


def test_what_has_none() -> None:
    assert made("Network")[0] is None


def test_what_is_not_of_the_standard_has_the_type_of_others() -> None:
    kinds = [[own.op_type for own in as_inferred(made(op)[0])] for op in ("HoldLast", "LengthsOfMask", "Abs")]
    assert kinds == [["Identity"], ["Constant", "Cast", "ReduceSum"], ["Abs"]]


def test_other_names() -> None:
    node = renamed(made("Add", "a", "b")[0], {"a": "v0", "y": "v1"})
    assert node.input == ["v0", ""] and node.output == ["v1"]


def test_the_oldest_set_that_has_all_operators() -> None:
    assert opset_of(["Add", "Conv"]) == 21 and opset_of(["Add", "RMSNormalization"]) == 23
