"""RNN, LSTM and GRU nodes: the standard's own tests, and random ones against ONNX Runtime with every attribute."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx_models import Case, meets, model_of, node, random_case, standard_cases, weights

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.oracle.tolerance import assert_close

LSTM = {"X": ("f4", ["T", "B", 3]), "n": ("i4", ["B"]), "h": ("f4", [1, "B", 2])}


@pytest.mark.filterwarnings("ignore")
def test_the_standards_own_tests() -> None:
    """All of them, by the oracle; weights are inputs of these models."""
    cases = standard_cases("RNN", "LSTM", "GRU")
    assert len(cases) >= 18
    for case in cases:
        meets(case, rnn.reference(rnn.from_onnx(case.model)).run)


COMPILED = ("test_gru_batchwise", "test_lstm_with_peepholes", "test_simple_rnn_reverse")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", [COMPILED[2:], pytest.param((), marks=pytest.mark.slow)], ids=["one", "all"])
def test_the_standards_own_tests_compiled(names: tuple[str, ...]) -> None:
    for case in standard_cases("RNN", "LSTM", "GRU"):
        if case.name in names or not names:
            meets(case, rnn.compile(rnn.from_onnx(case.model)).run)


def agrees(case: Case, compiled: bool) -> None:
    net, expected = rnn.from_onnx(case.model), case.expected()
    assert_close(rnn.reference(net).run(case.feeds), expected, "float32", case.steps, str(case.attributes))
    if compiled:
        assert_close(rnn.compile(net).run(case.feeds), expected, "float32", case.steps, str(case.attributes))


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("seed", range(20))
def test_random_nodes(seed: int) -> None:
    """Of one the module as well: to compile takes a hundred times as long as all the rest."""
    agrees(random_case(seed), compiled=seed == 3)


@pytest.mark.slow
def test_a_thousand_random_nodes() -> None:
    """By the oracle; every tenth compiled as well."""
    for seed in range(1000, 2000):
        agrees(random_case(seed), compiled=seed % 10 == 0)


@pytest.mark.parametrize("dtype", ["f8", "f2"])
def test_other_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(0)
    own = weights("GRU", 1, 3, 4, rng, dtype)
    made = node("GRU", ["X", "W", "R", "B"], ["Y"], linear_before_reset=1)
    net = rnn.from_onnx(model_of([made], {"X": (dtype, [None, None, 3])}, {"Y": dtype}, {n: own[n] for n in "WRB"}))
    assert net.dtype == {"f8": "float64", "f2": "float16"}[dtype] and net.hidden_size == 4
    x = rng.normal(size=(5, 2, 3)).astype(dtype)
    y = rnn.reference(net).run({"X": x})["Y"]
    assert y.shape == (5, 1, 2, 4) and np.isfinite(y).all()
    assert_close(y[:, 0], rnn.reference(net)(x)[0], "float64", 5)


def test_bfloat16() -> None:
    """As float32 arrays of the same values, which is how networks hold it."""
    own = weights("RNN", 1, 3, 4, np.random.default_rng(0))
    made = model_of([node("RNN", ["X", "W", "R"], ["Y"])], {"X": ("f4", [None, None, 3])}, {"Y": "f4"}, opset=22)
    for name in "WR":
        tensor = onnx.numpy_helper.from_array(own[name].astype(ml_dtypes.bfloat16), name)
        made.graph.initializer.append(tensor)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    net = rnn.from_onnx(made)
    assert net.dtype == "bfloat16"
    np.testing.assert_allclose(net.weights["W_l0"], own["W"][0], rtol=1 / 128)
    assert rnn.reference(net).run({"X": np.ones((2, 1, 3), "f4")})["Y"].shape == (2, 1, 1, 4)


def broken(**changes: Any) -> str:
    """What is said of an LSTM of hidden size 2 with such changes: attributes, or arrays by their names."""
    own = weights("LSTM", 1, 3, 2, np.random.default_rng(0))
    arrays = own | {name: changes.pop(name) for name in list(changes) if name in own}
    inputs = {**LSTM, **{name: changes.pop(name) for name in list(changes) if name in LSTM}}
    made = node("LSTM", ["X", "W", "R", "B", "n", "h", "", "P"], ["Y"], "l", **changes)
    with pytest.raises(ConfigError) as error:
        rnn.from_onnx(model_of([made], inputs, {"Y": "f4"}, arrays))
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"direction": "both"}, ["direction 'both'", "forward, reverse, bidirectional"]),
        ({"clip": -1.0}, ["clip -1"]),
        ({"clip": float("nan")}, ["clip nan"]),
        ({"layout": 2}, ["layout 2"]),
        ({"hidden_size": 3}, ["hidden_size is 3, R is for 2"]),
        ({"activations": ["Sigmoid", "Swish", "Tanh"]}, ["activation 'Swish'", "HardSigmoid"]),
        ({"activations": ["Sigmoid"]}, ["1 activations", "has 3"]),
        ({"activations": ["Affine", "Tanh", "Tanh"]}, ["Affine needs activation_alpha", "activation_beta"]),
        ({"activations": ["Elu", "Tanh", "Tanh"], "activation_alpha": [float("inf")]}, ["finite"]),
        ({"W": np.zeros((1, 8, 3, 1), "f4")}, ["W has shape [1, 8, 3, 1]"]),
        ({"W": np.zeros((2, 8, 3), "f4")}, ["W has shape [2, 8, 3], expected [1, 8, 3]"]),
        ({"R": np.zeros((1, 8, 3), "f4"), "clip": 0.0}, ["W has shape [1, 8, 3], expected [1, 12, 3]", "clip 0"]),
        ({"B": np.zeros((1, 8), "f4"), "P": np.zeros((1, 8), "f4")}, ["B has shape [1, 8]", "P has shape [1, 8]"]),
        ({"W": np.zeros((1, 8, 0), "f4")}, ["is empty"]),
        ({"B": np.zeros((1, 16))}, ["not all of one of", "B float64"]),
        ({"X": ("f8", [None, None, 3])}, ["X is float64, expected float32"]),
        ({"X": ("f4", [None, None, 4])}, ["X has shape [None, None, 4]", "the last of 3"]),
        ({"X": ("f4", [None, 3])}, ["expected 3 axes"]),
        ({"n": ("f4", [None])}, ["sequence_lens is float32, expected int32"]),
        ({"h": ("i4", [None, None, None])}, ["initial_h is int32"]),
        ({"linear_before_reset": 1}, ["attribute 'linear_before_reset' is not one of LSTM's"]),
    ],
    ids=lambda value: None if isinstance(value, list) else ", ".join(value),
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], texts: list[str]) -> None:
    said = broken(**changes)
    assert "LSTM 'l':" in said and all(text in said for text in texts), said


def test_parameters_of_activations_are_taken_in_order() -> None:
    """The second function with an alpha takes the second alpha; defaults are the standard's."""
    own = weights("GRU", 2, 3, 2, np.random.default_rng(0))
    names = ["LeakyRelu", "Tanh", "HardSigmoid", "elu"]

    def doc(**more: Any) -> str:
        made = node("GRU", ["X", "W", "R"], ["Y"], direction="bidirectional", activations=names, **more)
        return rnn.from_onnx(model_of([made], {"X": ("f4", None)}, {"Y": "f4"}, {n: own[n] for n in "WR"})).cell.doc

    assert "LeakyRelu(x, 0.01), Tanh(x) | HardSigmoid(x, 0.2, 0.5), Elu(x, 1)." in doc()
    found = doc(activation_alpha=[0.125, 0.25], activation_beta=[0.75])
    assert "LeakyRelu(x, 0.125), Tanh(x) | HardSigmoid(x, 0.25, 0.75), Elu(x, 1)." in found


def test_weights_that_are_inputs_have_known_shapes_and_sizes() -> None:
    made = node("RNN", ["X", "W", "R"], ["Y"])
    for shape, text in (([1, "H", 3], "no shape that is known"), ([1, 1 << 20, 1 << 20], "at most")):
        inputs = {"X": ("f4", None), "W": ("f4", shape), "R": ("f4", [1, 1 << 20, 1 << 20])}
        with pytest.raises(ConfigError, match=text):
            rnn.from_onnx(model_of([made], inputs, {"Y": "f4"}))
