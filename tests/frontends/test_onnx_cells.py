"""Cells of ONNX's operators: the zoo's where that has them, else new ones; what the equations are in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_cells import DEFAULTS, FUNCTIONS, Activation, Form, cell_of, doc_of, form_of
from tvm_rnn.oracle.tolerance import assert_close

A = Activation
STANDARD = {
    "elman": Form("RNN"),
    "elman_relu": Form("RNN", ((A("Relu"),),)),
    "lstm": Form("LSTM"),
    "lstm_peephole": Form("LSTM", peepholes=True),
    "gru": Form("GRU", reset_after=True),
    "gru_reset_before": Form("GRU"),
}
PLAIN: dict[str, Any] = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * (np.exp(x) - 1)),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.log(1 + np.exp(x)),
}


@pytest.mark.parametrize("name", STANDARD)
def test_the_zoo_has_the_standard_cells(name: str) -> None:
    assert cell_of(STANDARD[name]) is rnn.cells.get(name) and form_of(rnn.cells.get(name)) == STANDARD[name]


def test_other_cells_have_no_form() -> None:
    assert {name for name in rnn.cells.names() if form_of(rnn.cells.get(name))} == set(STANDARD)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_activation(name: str) -> None:
    """Of a cell without weights worth mentioning: h' = f(x)."""
    form = Form("RNN", ((A(name, 0.3, 0.2),),))
    net = rnn.RNN(cell_of(form), 1, 1, dtype="float64")
    net.load({"W_l0": [[1]], "R_l0": [[0]], "b_l0": [0]})
    x = np.linspace(-3, 3, 61).reshape(61, 1, 1)
    assert_close(rnn.reference(net)(x)[0], PLAIN[name](x, 0.3, 0.2), "float64", 61)
    assert PLAIN.keys() == FUNCTIONS.keys()


def test_one_form_is_one_cell_and_says_what_it_is() -> None:
    form = Form("LSTM", ((A("HardSigmoid", 0.2, 0.5), A("Tanh"), A("Elu", 1.0)),), 0.5, True, peepholes=True)
    assert cell_of(form) is cell_of(Form("LSTM", form.activations * 2, 0.5, True, peepholes=True))
    assert form_of(cell_of(form)) == form and cell_of(form).name == "onnx_lstm"
    assert doc_of(form) == (
        "LSTM of ONNX with HardSigmoid(x, 0.2, 0.5), Tanh(x), Elu(x, 1), clip 0.5, input_forget, peepholes."
    )


def test_the_clip_holds_what_gates_read_and_not_the_memory() -> None:
    relu = ((A("Relu"), A("Relu"), A("Relu")),)
    net = rnn.RNN(cell_of(Form("LSTM", relu, clip=0.5)), 1, 1, dtype="float64")
    net.load({"W_l0": np.full((4, 1, 1), 9), "R_l0": np.zeros((4, 1, 1)), "b_l0": np.zeros((4, 1))})
    y, state = rnn.reference(net)(np.ones((3, 1, 1)), {"h": np.zeros((1, 1, 1)), "c": np.full((1, 1, 1), 8.0)})
    # i = f = g = o = 0.5: c' = 0.5 c + 0.25
    assert state["c"].item() == 0.5 * (0.5 * (0.5 * 8 + 0.25) + 0.25) + 0.25 and y[-1].item() == state["c"].item() / 2


def test_a_coupled_forget_gate_reads_no_weights_of_its_own() -> None:
    net = rnn.RNN(cell_of(Form("LSTM", input_forget=True)), 2, 3, dtype="float64").init(1)
    x, state = np.random.default_rng(0).normal(size=(5, 2, 2)), {n: np.ones((1, 2, 3)) for n in "hc"}
    before = rnn.reference(net)(x, state)
    changed = {name: np.array(value) for name, value in net.weights.items()}
    for value in changed.values():
        value[1] += 1  # the second of i f g o
    assert_close(rnn.reference(net.load(changed))(x, state), before, "float64", 5)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_directions_with_functions_of_their_own(kind: str) -> None:
    """The two directions are what each would be alone, in one network."""
    own = {"RNN": (A("Relu"),), "LSTM": (A("Sigmoid"), A("Softsign"), A("Tanh")), "GRU": (A("Sigmoid"), A("Relu"))}[
        kind
    ]
    forms = [Form(kind), Form(kind, (own,))]
    both = rnn.RNN(cell_of(Form(kind, (DEFAULTS[kind], own))), 3, 4, bidirectional=True, dtype="float64").init(2)
    weights = dict(both.weights)
    assert {"backward_l0", "backward_l0_reverse"} <= weights.keys()
    both.load(weights | {"backward_l0": 0.0, "backward_l0_reverse": 1.0})
    x = np.random.default_rng(0).normal(size=(5, 2, 3))
    y, _ = rnn.reference(both)(x)
    for form, suffix, part in ((forms[0], "_l0", y[..., :4]), (forms[1], "_l0_reverse", y[..., 4:])):
        alone = rnn.RNN(cell_of(form), 3, 4, dtype="float64", reverse="reverse" in suffix)
        names = [p.name for p in alone.cell.params]
        alone.load({f"{name}_l0": weights[name + suffix] for name in names})
        assert_close(rnn.reference(alone)(x)[0], part, "float64", 5)
