"""Steps as program.c takes them: functions of the module's file, and what has no form in C."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_rnn.bundle.encoding import MOST_AXES, Impossible, encode
from tvm_rnn.module_file.schema import ModelStep

COMPILED = {
    "function": "around_0",
    "constants": 1,
    "axes": [2, 1],
    "dtypes": ["float32", "int64"],
    "memory": ["float32"],
}


def step(op: str = "Compiled", inputs: int = 2, **attributes: Any) -> ModelStep:
    names = [f"x{i}" for i in range(inputs)]
    return ModelStep(op=op, inputs=names, outputs=["y", "z"], attributes={**COMPILED, **attributes}, node="a")


def test_a_function_of_the_file() -> None:
    """Inputs that are no constants, axes and dtypes of results, how much memory and of which dtypes."""
    found = encode(step(), ())
    assert found.function == "around_0" and found.ints == (1, 2, 1, 3, 2, 1, 3)


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (step(dtypes=["uint32", "int64"]), "dtype uint32"),
        (step(memory=["uint16"]), "dtype uint16"),
        (step(axes=[MOST_AXES + 1, 1]), "a result of 9 axes"),
        (step(inputs=257), "more than 256"),
        (step("Add"), "compile the model again"),
    ],
)
def test_what_has_no_form(own: ModelStep, text: str) -> None:
    with pytest.raises(Impossible, match=text):
        encode(own, ())
