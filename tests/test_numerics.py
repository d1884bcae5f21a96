"""NaN, infinities and extreme values go through compiled code as they go through the oracle."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from zoo import inputs_of, network

import tvm_rnn as rnn

SPECIAL = (np.nan, np.inf, -np.inf)
CELLS = ("elman", "elman_relu", "lstm", "gru", "gru_reset_before", "lstm_layer_norm", "mlstm")


@functools.cache
def compiled(name: str) -> tuple[rnn.RNN, rnn.Module]:
    net = network(name, 5, 19)
    return net, rnn.compile(net)


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        wanted = expected.astype("float32")
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("value", SPECIAL)
def test_special_values_in_an_input_stay_in_their_row(name: str, value: float) -> None:
    net, module = compiled(name)
    x = inputs_of(net, 5, 4)
    assert isinstance(x, np.ndarray)
    x[2, 1, 3] = value
    y, state = module(x)
    expected, expected_state = rnn.reference(net)(x)
    same(y, expected)
    for key, wanted in expected_state.items():
        same(state[key], wanted)
    assert np.isfinite(y[:, [0, 2, 3]]).all() and np.isfinite(y[:2]).all()


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_special_values_in_a_state(name: str, value: float) -> None:
    net, module = compiled(name)
    x, state = inputs_of(net, 3, 4), net.initial_state(4)
    state["h"][0, 2, 5] = value
    y, final = module(x, state)
    expected, expected_final = rnn.reference(net)(x, state)
    same(y, expected)
    same(final["h"], expected_final["h"])


@pytest.mark.parametrize("value", SPECIAL)
def test_special_values_in_weights(value: float) -> None:
    net = network("lstm", 5, 19)
    net.weights["R_l0"][1, 3, 4] = value
    net.weights["b_l0"][0, 7] = value
    module = rnn.compile(net)
    x = inputs_of(net, 3, 2)
    same(module(x)[0], rnn.reference(net)(x)[0])


@pytest.mark.parametrize("scale", [1e-42, 1e-20, 1e10, 1e38])
@pytest.mark.parametrize("name", ["lstm", "gru", "elman"])
def test_tiny_and_huge_inputs(name: str, scale: float) -> None:
    net, module = compiled(name)
    x = inputs_of(net, 4, 3)
    assert isinstance(x, np.ndarray)
    with np.errstate(over="ignore"):
        x = (x * np.float32(scale)).astype("float32")
    same(module(x)[0], rnn.reference(net)(x)[0])
