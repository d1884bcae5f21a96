"""Keras's cells as ours: which are the zoo's, the equations of the others, and arrays in our order of gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from program_values import ran

import tvm_rnn as rnn
from tvm_rnn.frontends.built_cells import build_cell
from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.keras_cells import (
    ACTIVATIONS,
    GATES,
    Form,
    activate,
    activation_name,
    cell_of,
    form_of,
    parameters,
)
from tvm_rnn.network.program import Declared, Program
from tvm_rnn.oracle.tolerance import assert_close

RNG = np.random.default_rng(0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softsign(x: Any) -> Any:
    return x / (1 + np.abs(x))


def arrays(kind: str, units: int = 3, width: int = 2, *bias: int) -> list[np.ndarray]:
    shapes = [(width, GATES[kind] * units), (units, GATES[kind] * units), (*bias, GATES[kind] * units)]
    return [RNG.normal(size=shape) for shape in shapes]


def test_the_zoos_cells() -> None:
    cells = {
        "elman": Form("SimpleRNN", "tanh"),
        "elman_relu": Form("SimpleRNN", "relu"),
        "lstm": Form("LSTM", "tanh", "sigmoid"),
        "gru": Form("GRU", "tanh", "sigmoid", True),
        "gru_reset_before": Form("GRU", "tanh", "sigmoid"),
    }
    assert {name: cell_of(form).name for name, form in cells.items()} == {name: name for name in cells}
    own = cell_of(Form("LSTM", "relu", "hard_sigmoid"))
    assert own is cell_of(form_of("LSTM", {"activation": "relu", "recurrent_activation": "hard_sigmoid"}))
    assert own.doc == "LSTM of Keras with relu, hard_sigmoid." and own.name == "keras_lstm"
    assert form_of("GRU", {}) == cells["gru"] and form_of("SimpleRNN", {"activation": "linear"}).activation == "linear"


@pytest.mark.parametrize("reset_after", [True, False])
def test_a_gru_by_its_equations(reset_after: bool) -> None:
    """Keras's arrays in Keras's order of gates: z r h."""
    form = Form("GRU", "relu", "softsign", reset_after)
    kernel, recurrent, bias = arrays("GRU", 3, 2, *([2] if reset_after else []))
    given, pair = parameters(form, {"units": 3}, [kernel, recurrent, bias])
    net = rnn.RNN(cell_of(form), 2, 3, dtype="float64").load({f"{name}_l0": value for name, value in given.items()})
    assert (pair is not None) == reset_after
    x, h = RNG.normal(size=(5, 4, 2)), np.zeros((4, 3))
    for x_t in x:
        from_x, from_h = np.split(x_t @ kernel + (bias[0] if reset_after else bias), 3, -1), h @ recurrent
        from_h = np.split(from_h + (bias[1] if reset_after else 0), 3, -1)
        z, r = softsign(from_x[0] + from_h[0]), softsign(from_x[1] + from_h[1])
        inner = r * from_h[2] if reset_after else (r * h) @ recurrent[:, 6:]
        h = z * h + (1 - z) * np.maximum(from_x[2] + inner, 0)
    assert_close(rnn.reference(net)(x)[1]["h"][0], h, "float64", 5)


def test_an_lstm_by_its_equations() -> None:
    form = Form("LSTM", "softsign", "sigmoid")
    kernel, recurrent, bias = arrays("LSTM")
    given, _ = parameters(form, {"units": 3}, [kernel, recurrent, bias])
    net = rnn.RNN(cell_of(form), 2, 3, dtype="float64").load({f"{name}_l0": value for name, value in given.items()})
    x, h, c = RNG.normal(size=(5, 4, 2)), np.zeros((4, 3)), np.zeros((4, 3))
    for x_t in x:
        i, f, g, o = np.split(x_t @ kernel + h @ recurrent + bias, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * g / (1 + np.abs(g))
        h = sigmoid(o) * c / (1 + np.abs(c))
    assert_close(rnn.reference(net)(x)[1]["h"][0], h, "float64", 5)


@pytest.mark.parametrize(
    ("config", "given", "text"),
    [
        ({"units": 3}, arrays("LSTM")[:2], "expected .*12"),
        ({"units": 4}, arrays("LSTM"), "its arrays have shapes"),
        ({"units": 3, "use_bias": False}, arrays("LSTM"), "its arrays have shapes"),
        ({"units": 0}, [], "units is 0"),
        ({"units": True}, [], "units is True"),
        ({}, [], "units is None"),
        ({"units": 3}, [np.zeros((0, 12)), np.zeros((3, 12)), np.zeros(12)], "its arrays have shapes"),
    ],
)
def test_arrays_that_do_not_fit(config: dict[str, Any], given: list[np.ndarray], text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        parameters(Form("LSTM", "tanh", "sigmoid"), config, given)


X = np.linspace(-7, 7, 40).reshape(5, 2, 4)


def by_steps(name: str) -> np.ndarray:
    steps = Steps([Declared("x", "float64", None)])
    found = activate(steps, "a layer", "float64", "x", name)
    program = Program(tuple(steps.inputs), (Declared(found, "float64", None),), tuple(steps.steps), steps.constants)
    result: np.ndarray = ran(program, {"x": X})[found]
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
