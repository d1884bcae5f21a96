"""Every operator in the body of a Scan that moves elements, against ONNX Runtime; and what would move the batch."""

from __future__ import annotations

import pytest
from onnx_models import node
from onnx_scans import MORE, agrees, body, model

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.onnx_moves import MOVES

BODIES = {
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


@pytest.mark.parametrize("name", BODIES)
def test_every_move(name: str) -> None:
    agrees(model(body(*BODIES[name])))


def test_no_move_is_without_a_test() -> None:
    assert MOVES.keys() <= {step[0] for steps in BODIES.values() for step in steps} | {"Split"}


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


REFUSED = {
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
    "a slice with a step": [("Slice", "b axis0 end axis1 axis2")],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_step_of_rows(reason: str) -> None:
    steps = REFUSED[reason]
    with pytest.raises(ConfigError, match=reason) as caught:
        rnn.from_onnx(model(body(*steps), inner=MORE))
    assert f"{steps[-1][0]} 'y' in its body" in str(caught.value) or len(steps) > 1
