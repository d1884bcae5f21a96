"""Keras's functions, once as equations and once as steps: the same numbers, and names that are no functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.frontends.built_cells import build_cell
from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.keras_activations import ACTIVATIONS, activate, activation_name
from tvm_rnn.network.program import Declared, Program
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime_model import Plan

X = np.linspace(-7, 7, 40).reshape(5, 2, 4)


def by_steps(name: str) -> np.ndarray:
    steps = Steps([Declared("x", "float64", None)])
    found = activate(steps, "a layer", "float64", "x", name)
    program = Program(tuple(steps.inputs), (Declared(found, "float64", None),), tuple(steps.steps), steps.constants)
    result: np.ndarray = Plan(program.facts(), program.arrays()).run({"x": X}, lambda values, a: [])[found]
    return result


def by_equations(name: str) -> np.ndarray:
    def equations(v: Any) -> tuple[Any, ...]:
        return (ACTIVATIONS[name](v["x"]),)

    net = rnn.RNN(build_cell("f", "", {"x": "I"}, {"h": "I"}, {}, equations), 4, dtype="float64")
    result: np.ndarray = rnn.reference(net)(X)[0]
    return result


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_both_forms_are_one_function(name: str) -> None:
    assert_close(by_steps(name), by_equations(name), "float64", 1)


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("hard_sigmoid", [-4.0, 0.0, 1.5], [0.0, 0.5, 0.75]),
        ("leaky_relu", [-1.0, 2.0], [-0.2, 2.0]),
        ("relu6", [-1.0, 3.0, 9.0], [0.0, 3.0, 6.0]),
        ("sparse_plus", [-2.0, 0.0, 3.0], [0.0, 0.25, 3.0]),
        ("soft_shrink", [-2.0, 0.25, 2.0], [-1.5, 0.0, 1.5]),
        ("hard_shrink", [-2.0, 0.25, 2.0], [-2.0, 0.0, 2.0]),
    ],
)
def test_some_values(name: str, x: list[float], y: list[float]) -> None:
    np.testing.assert_allclose(ACTIVATIONS[name](np.array(x)), y, atol=1e-12)


def test_names() -> None:
    assert activation_name(None) == "linear" and activation_name("swish") == "swish"
    assert activation_name({"class_name": "function", "config": "tanh", "module": "builtins"}) == "tanh"
    for config in ("mine", 3, {"class_name": "Mine"}, {"class_name": "function", "config": "mine"}, ["tanh"]):
        with pytest.raises(Unreadable, match="is none of linear, tanh"):
            activation_name(config)
