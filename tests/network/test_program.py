"""Programs and models as data: what a manifest says of them, what JSON can hold, and the same in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_module import Tiny

from tvm_rnn.errors import BuildError
from tvm_rnn.module_file.manifest import validate
from tvm_rnn.network.program import NETWORK, Declared, Program, Step, with_float32_inside

STEPS = (
    Step("Cast", ("X",), ("x",), {"dtype": "float32"}, "a cast"),
    Step(NETWORK, ("x", "", ""), ("y", "h"), {"network": 0}, "GRU 'g'"),
    Step("Clip", ("y",), ("Y",), {"min": -np.inf, "max": 2.0, "axes": (1, 2)}, ""),
)
CONSTANTS = {"w": np.arange(3, dtype="f4"), "n": np.array([1, 2])}
INPUTS = (Declared("X", "float16", ("T", None, 3)), Declared("n", "int32", None))
PROGRAM = Program(INPUTS, (Declared("Y", "float32", None),), STEPS, CONSTANTS)


def test_facts_are_json_and_a_valid_part_of_a_manifest() -> None:
    facts = PROGRAM.facts()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["steps"][2]["attributes"] == {"min": "-inf", "max": 2.0, "axes": [1, 2]}
    assert facts["inputs"][0]["shape"] == ["T", None, 3] and facts["inputs"][1]["shape"] is None
    names = [item["array"] for item in facts["constants"]]
    assert names == list(PROGRAM.arrays()) == ["constant.model.0", "constant.model.1"]
    around, network, _ = facts["steps"]
    validate(Tiny().manifest(model={**facts, "steps": [network]}))
    for wrong in (around, {**network, "op": "Conv"}, {**network, "inputs": "x"}):  # what is around is compiled
        with pytest.raises(BuildError, match=r"model\.steps"):
            validate(Tiny().manifest(model={**facts, "steps": [wrong]}))


def test_in_other_dtypes() -> None:
    wide = PROGRAM.in_dtype("float64")
    assert [d.dtype for d in wide.inputs] == ["float64", "int32"] and wide.outputs[0].dtype == "float64"
    assert wide.steps[0].attributes["dtype"] == "float64" and wide.steps[1:] == STEPS[1:]
    assert wide.constants["w"].dtype == np.float64 and wide.constants["n"].dtype == np.int64
    assert PROGRAM.steps[0].attributes["dtype"] == "float32"
    assert PROGRAM.dtypes == {"float16", "float32", "int32", "int64"}
    single = PROGRAM.in_dtype("float32")
    assert single.dtypes == {"float32", "int32", "int64"} and single.steps == STEPS


def test_weights_that_are_values() -> None:
    given = Step(NETWORK, ("x", "", "", "w"), ("y", "h"), {"network": 0, "weights": ["W_l0"]})
    assert not PROGRAM.brings_weights
    assert Program(INPUTS, PROGRAM.outputs, (given,), CONSTANTS).brings_weights


def test_float32_inside() -> None:
    """A result that is an input, too."""
    ends = (Declared("x", "float16", None),), (Declared("y", "float16", None), Declared("x", "float16", None))
    steps = (Step("Add", ("x", "w"), ("y",)), Step("Cast", ("y",), ("z",), {"dtype": "float16"}))
    made = with_float32_inside(Program(*ends, steps, {"w": np.float16([1])}))
    assert (made.inputs, made.outputs) == ends and made.constants["w"].dtype == "f4"
    before, add, cast, after = made.steps
    assert before.inputs == ("x",) and before.attributes == {"dtype": "float32"}
    assert add.inputs == (*before.outputs, "w") and cast.attributes == {"dtype": "float32"}
    assert after.inputs == add.outputs and after.outputs == ("y",) and after.attributes == {"dtype": "float16"}


def test_a_result_that_is_a_constant() -> None:
    made = with_float32_inside(Program((), (Declared("k", "float16", None),), (), {"k": np.float16([1])}))
    (cast,) = made.steps
    assert cast.outputs == ("k",) and made.constants[cast.inputs[0]].dtype == "f4"
