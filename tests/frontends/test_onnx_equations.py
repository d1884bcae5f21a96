"""Every operator that the body of a Scan may have, against ONNX Runtime; and what such a body may not have."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import node
from onnx_scans import MORE, agrees, body, model

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.onnx_equations import MOVES, OTHERS, POINTWISE

UNARY = [
    *("Abs", "Cos", "Elu", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid"),
    *("HardSwish", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh"),
]
SEVERAL = {
    "Add": [("Add", "b row")],
    "Sub": [("Sub", "half a")],
    "Mul": [("Mul", "a row")],
    "Div": [("Div", "b p")],
    "Pow": [("Pow", "p half")],
    "Pow of values": [("Pow", "p b")],
    "Max": [("Max", "b s row")],
    "Min": [("Min", "b s half")],
    "Sum": [("Sum", "b s row")],
    "Floor": [("Floor", "b"), ("Add", "_ b")],
    "Mod": [("Mod", "b half", {"fmod": 1})],
    "Slice with a step": [("Slice", "b axis0 end axis1 axis2")],
    "Where": [("Greater", "b half"), ("Where", "_ s b")],
    "Less": [("Less", "b s"), ("Not", "_"), ("Cast", "_", {"to": 1})],
    "Equal": [("Equal", "b b"), ("Where", "_ b half")],
    "LessOrEqual": [("LessOrEqual", "row b"), ("Where", "_ s b")],
    "GreaterOrEqual": [("GreaterOrEqual", "b half"), ("Where", "_ b half")],
    "Clip": [("Clip", "b minus half")],
    "Clip above": [("Clip", "b - half")],
    "Transpose of a weight": [("Transpose", "V"), ("MatMul", "b _")],
    "ReduceSum": [("ReduceSum", "a axis2")],
    "ReduceMax": [("ReduceMax", "a", {"axes": [1], "keepdims": 0})],
    "ReduceMin": [("ReduceMin", "a", {"axes": [-1], "keepdims": 0})],
    "ReduceMean": [("ReduceMean", "a", {"axes": [1, 2]})],
    "Softmax": [("Softmax", "a", {"axis": 1})],
    "LogSoftmax": [("LogSoftmax", "a", {"axis": -1})],
    "LayerNormalization": [("LayerNormalization", "b row bias3", {"epsilon": 1e-3})],
    "LayerNormalization of two axes": [("LayerNormalization", "a gain", {"axis": 1})],
    "MatMul": [("MatMul", "b W")],
    "MatMul of matrices": [("MatMul", "a W")],
    "MatMul of values": [("Transpose", "a", {"perm": [0, 2, 1]}), ("MatMul", "a _")],
    "MatMul, weight first": [("Transpose", "a", {"perm": [0, 2, 1]}), ("MatMul", "V _")],
    "Gemm": [("Gemm", "b W bias", {"alpha": 0.5, "beta": 2.0})],
    "Gemm, transposed": [("Transpose", "W"), ("Gemm", "b _", {"transB": 1})],
    "Einsum": [("Einsum", "b W", {"equation": "bi,ij->bj"})],
    "Einsum of values": [("Einsum", "a s", {"equation": "bij,bj->bi"})],
    "Conv of lines": [("Conv", "a taps bias", {"pads": [1, 2], "strides": [2]})],
    "Conv of wide windows": [("Conv", "a taps", {"dilations": [2], "kernel_shape": [2]})],
    "Conv of groups": [("Conv", "a group", {"group": 2, "auto_pad": "SAME_LOWER"})],
    "Conv of images": [
        ("Unsqueeze", "a axis1"),
        ("Conv", "_ square bias3", {"auto_pad": "SAME_UPPER", "strides": [1, 2]}),
    ],
    "Cast": [("Cast", "b", {"to": 1})],
}
BODIES = {**{op: [(op, "p" if op in ("Log", "Sqrt", "Reciprocal") else "a")] for op in UNARY}, **SEVERAL}


@pytest.mark.broad_after(len(SEVERAL))
@pytest.mark.parametrize("name", [*SEVERAL, *(name for name in BODIES if name not in SEVERAL)])
def test_every_operator(name: str) -> None:
    agrees(model(body(*BODIES[name])))


def test_no_operator_is_without_a_test() -> None:
    tested = {step[0] for steps in BODIES.values() for step in steps}
    assert (POINTWISE.keys() | OTHERS.keys()) - MOVES.keys() <= tested | {"And", "Or", "Gelu"}


def test_several_outputs_and_truth_values() -> None:
    nodes = [
        node("Split", ["b", "parts"], ["left", "right"], axis=1),
        node("Split", ["a"], ["top", "rest"], axis=1),
        node("Greater", ["left", "half"], ["big"]),
        node("Less", ["left", "zero.f"], ["small"]),
        node("Or", ["big", "small"], ["far"]),
        node("Not", ["far"], ["near"]),
        node("And", ["near", "near"], ["both"]),
        node("Squeeze", ["top", "axis1"], ["level"]),
        node("Where", ["both", "level", "right.sum"], ["y"]),
    ]
    nodes.insert(1, node("ReduceSum", ["right", "axis1"], ["right.sum"]))
    agrees(model(nodes, inner={"zero.f": np.array(0, "f4")}))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    """Of operator set 20."""
    agrees(model(body(("Gelu", "a", {"approximate": approximate})), opset=20))


def test_versions_of_operators() -> None:
    """Attributes in place of inputs, and softmax as it was."""
    agrees(model(body(("Clip", "b", {"min": -0.5, "max": 0.25})), opset=9))
    agrees(model(body(("ReduceSum", "a", {"axes": [1], "keepdims": 0})), opset=9))
    with pytest.raises(ConfigError, match="Softmax 'y' in its body: softmax as before operator set 13"):
        rnn.from_onnx(model(body(("Softmax", "a")), opset=11))


REFUSED = {
    "is the batch's, or none": [("ReduceSum", "a axis0")],
    "over all axes": [("ReduceSum", "a")],
    "meets a value of one step of a row": [("Add", "b V")],
    "with the batch in different places": [("Add", "a b")],
    "a MatMul of shapes": [("MatMul", "a b")],
    "a Gemm that is not of rows": [("Gemm", "b W", {"transA": 1})],
    "a Conv of shapes": [("Conv", "a W")],
    "pads": [("Conv", "a taps", {"pads": [-1, 2]})],
    "zeros": [("Conv", "a taps", {"pads": [0, 1 << 40]})],
    "3 groups of 4 channels": [("Conv", "a group", {"group": 3})],
    "whose batch is not the first axis": [("Einsum", "a V", {"equation": "bij,jk->ibk"})],
    "not supported on values of a step": [("Tile", "a wide")],
    "operator Det is not supported": [("Det", "a")],
    "its operands do not fit": [("MatMul", "b bias2")],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_step_of_rows(reason: str) -> None:
    steps = REFUSED[reason]
    with pytest.raises(ConfigError, match=reason) as caught:
        rnn.from_onnx(model(body(*steps), inner=MORE))
    assert f"{steps[-1][0]} 'y' in its body" in str(caught.value) or len(steps) > 1


MOVED = {
    "Identity": [("Identity", "a")],
    "Transpose": [("Transpose", "a", {"perm": [0, 2, 1]})],
    "Reshape": [("Reshape", "a flat")],
    "Reshape, the batch left over": [("Reshape", "a open")],
    "Reshape to the batch": [
        ("Shape", "a"),
        ("Slice", "_ axis0 axis1 axis0"),
        ("Concat", "_ few", {"axis": 0}),
        ("Reshape", "b _"),
    ],
    "Unsqueeze": [("Unsqueeze", "b axis1"), ("Mul", "_ a")],
    "Squeeze": [("Unsqueeze", "b last"), ("Squeeze", "_ last")],
    "Slice": [("Slice", "a start end axis2")],
    "Gather": [("Gather", "b places", {"axis": 1})],
    "Gather one": [("Gather", "a zero", {"axis": 1})],
    "Concat": [("Concat", "b s", {"axis": -1})],
    "Expand": [("Unsqueeze", "b axis1"), ("Expand", "_ wide")],
    "Expand to the batch": [("Shape", "b"), ("Expand", "row _")],
    "ConstantOfShape": [("Shape", "b"), ("ConstantOfShape", "_")],
}


@pytest.mark.parametrize("name", MOVED)
def test_every_move(name: str) -> None:
    agrees(model(body(*MOVED[name])))


def test_no_move_is_without_a_test() -> None:
    assert MOVES.keys() <= {step[0] for steps in MOVED.values() for step in steps} | {"Split"}


def test_split() -> None:
    for given, options in (("b parts", {"axis": 1}), ("b parts", {"axis": -1})):
        nodes = [
            node("Split", given.split(), ["left", "right"], **options),
            node("ReduceSum", ["right", "axis1"], ["sum"]),
            node("Sub", ["left", "sum"], ["y"]),
        ]
        agrees(model(nodes))


@pytest.mark.parametrize("name", ["Squeeze", "Slice"])
def test_attributes_in_place_of_inputs(name: str) -> None:
    """As older versions have them."""
    old = {
        "Squeeze": [("Unsqueeze", "b", {"axes": [2]}), ("Squeeze", "_", {"axes": [2]})],
        "Slice": [("Slice", "a", {"starts": [1], "ends": [3], "axes": [2]})],
    }
    agrees(model(body(*old[name]), opset=9))


NO_MOVES = {
    "moves the batch": [("Transpose", "a", {"perm": [1, 0, 2]})],
    "does not keep the batch": [("Reshape", "a places")],
    "a new axis before the batch": [("Unsqueeze", "a axis0")],
    "a squeeze of whatever is 1": [("Squeeze", "a")],
    "Mul 'v1' in its body: it computes with the batch size": [("Shape", "a"), ("Mul", "_ places"), ("Reshape", "a _")],
    "the batch is not the first axis": [("Shape", "b"), ("Concat", "few _", {"axis": 0}), ("ConstantOfShape", "_")],
    "depends on the step": [("Reshape", "a b")],
    "not known, or have several axes": [("Gather", "a wide.2", {"axis": 2})],
    "with and without the batch": [("Concat", "b row", {"axis": 1})],
    "elements in one step of a row": [("Expand", "b huge")],
    "so many parts": [("Split", "b many", {"axis": 1})],
    "a Gather of so many parts": [("Gather", "b scattered", {"axis": 1})],
    "a Gather of place 3 of 3": [("Gather", "b few", {"axis": 1})],
    "it computes with the batch size": [("Shape", "b"), ("Slice", "b axis0 _ axis1")],
    "a reshape to nothing": [("Reshape", "b flat", {"allowzero": 1})],
}


@pytest.mark.parametrize("reason", NO_MOVES)
def test_what_moves_the_batch(reason: str) -> None:
    steps = NO_MOVES[reason]
    with pytest.raises(ConfigError, match=reason) as caught:
        rnn.from_onnx(model(body(*steps), inner=MORE))
    assert f"{steps[-1][0]} 'y' in its body" in str(caught.value) or len(steps) > 1
