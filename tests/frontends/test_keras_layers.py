"""Keras's other layers as steps, beside NumPy: what test_keras.py compares with Keras where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from program_values import ran

from tvm_rnn.frontends.fields import Unreadable
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.keras_layers import HANDLERS, WRAPPED, apply_layer
from tvm_rnn.frontends.keras_recurrent import Call, Model, Part, Value
from tvm_rnn.network.program import Declared, Program

X = np.random.default_rng(0).normal(size=(2, 3, 4))
W, V = np.random.default_rng(1).normal(size=(4, 5)), np.random.default_rng(2).uniform(0.5, 1.5, 4)


def applied(kind: str, config: dict[str, Any], *arrays: Any, inputs: Any = (X,), mask: str = "") -> Any:
    """What a layer gives for these inputs, and the mask it gives."""
    names = [f"x{i}" for i in range(len(inputs))]
    steps = Steps([Declared(name, "float64", None) for name in names])
    steps.dtypes |= {name: np.asarray(value).dtype.name for name, value in zip(names, inputs, strict=True)}
    model = Model(steps, "float64")
    values = [Value(name, mask) for name in names]
    (value,) = apply_layer(Call(model, Part("p", kind, config, [np.asarray(a) for a in arrays]), values))
    outputs = [Declared(n, "float64", None) for n in (value.name, value.mask) if n and n != mask]
    program = Program(tuple(steps.inputs), tuple(outputs), tuple(steps.steps), steps.constants)
    found = ran(program, dict(zip(names, inputs, strict=True)))
    return found[value.name], found.get(value.mask, value.mask)


@pytest.mark.parametrize(
    ("kind", "config", "arrays", "expected"),
    [
        ("Dense", {"activation": "relu"}, (W, np.ones(5)), np.maximum(X @ W + 1, 0)),
        ("Dense", {"use_bias": False}, (W,), X @ W),
        ("TimeDistributed", {"layer": {"class_name": "Dense", "config": {"use_bias": False}}}, (W,), X @ W),
        ("Activation", {"activation": "tanh"}, (), np.tanh(X)),
        ("Dropout", {"rate": 0.5}, (), X),
        ("LeakyReLU", {"negative_slope": 0.1}, (), np.where(X >= 0, X, 0.1 * X)),
        ("ELU", {}, (), np.where(X >= 0, X, np.exp(X) - 1)),
        ("BatchNormalization", {"epsilon": 0.0}, (V, V, V, V), (X - V) / np.sqrt(V) * V + V),
        ("BatchNormalization", {"scale": False, "center": False, "epsilon": 0.0}, (V, V), (X - V) / np.sqrt(V)),
        ("Reshape", {"target_shape": [-1, 2]}, (), X.reshape(2, 6, 2)),
        ("Permute", {"dims": [2, 1]}, (), X.transpose(0, 2, 1)),
        ("Flatten", {}, (), X.reshape(2, 12)),
        ("GlobalMaxPooling1D", {"keepdims": True}, (), X.max(1, keepdims=True)),
        ("GlobalAveragePooling1D", {}, (), X.mean(1)),
    ],
)
def test_layers_of_one_input(kind: str, config: dict[str, Any], arrays: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(applied(kind, config, *arrays)[0], expected, atol=1e-12)


def test_normalisation_of_the_last_axis() -> None:
    found, _ = applied("LayerNormalization", {"epsilon": 1e-3}, V, V)
    centred = X - X.mean(-1, keepdims=True)
    np.testing.assert_allclose(found, centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * V + V)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Add", 3 * X),
        ("Multiply", 2 * X * X),
        ("Maximum", np.maximum(X, 2 * X)),
        ("Minimum", np.minimum(X, 2 * X)),
        ("Average", 1.5 * X),
        ("Subtract", -X),
        ("Concatenate", np.concatenate([X, 2 * X], -1)),
    ],
)
def test_layers_that_merge(kind: str, expected: np.ndarray) -> None:
    np.testing.assert_allclose(applied(kind, {}, inputs=(X, 2 * X))[0], expected)


def test_masks_begin_and_go_on() -> None:
    x = X.copy()
    x[0, 2] = x[1, 1:] = 7.0
    found, mask = applied("Masking", {"mask_value": 7.0}, inputs=(x,))
    assert mask.tolist() == [[True, True, False], [True, False, False]] and mask.dtype == bool
    assert not found[0, 2].any() and (found[0, 0] == x[0, 0]).all()
    other, _ = applied("NotEqual", {}, inputs=(x, np.array(7.0)))
    assert applied("Any", {"axis": -1}, inputs=(other.astype("f8"),))[0].tolist() == mask.tolist()
    words = np.array([[1, 2, 0]], "i4")
    found, mask = applied("Embedding", {"mask_zero": True}, W, inputs=(words,))
    assert mask.tolist() == [[True, True, False]] and (found[0, 0] == W[1]).all()
    floats, mask = applied("Embedding", {"mask_zero": True}, W, inputs=(words.astype("f8"),))
    assert mask.tolist() == [[True, True, False]] and (floats == found).all()
    assert applied("Dense", {"use_bias": False}, W, mask="m")[1] == "m"
    assert applied("Flatten", {}, mask="m")[1] == ""
    assert applied("Add", {}, inputs=(X, X), mask="m")[1] == "m"


@pytest.mark.parametrize(
    ("kind", "config", "arrays", "text"),
    [
        ("Lambda", {}, (), "layers of class Lambda are not supported"),
        ("Dense", {}, (W,), "expected number 1"),
        ("Dense", {}, (W.astype(int), np.ones(5)), "expected number 0"),
        ("BatchNormalization", {"axis": 1}, (V, V, V, V), "axis 1"),
        ("BatchNormalization", {}, (V, V, V), "its arrays have shapes"),
        ("LayerNormalization", {}, (W, W), "other axes than the last"),
        ("LayerNormalization", {"rms_scaling": True}, (V,), "rms_scaling"),
        ("TimeDistributed", {"layer": {"class_name": "LSTM", "config": {}}}, (), "it wraps 'LSTM'"),
        ("Reshape", {"target_shape": ["a"]}, (), "target_shape is"),
        ("RepeatVector", {"n": 0}, (), "n is 0"),
        ("ReLU", {"max_value": 6.0}, (), "slope, threshold or limit"),
        ("Any", {"axis": [1]}, (), "one axis that goes"),
        ("Any", {"axis": 1, "keepdims": True}, (), "one axis that goes"),
        ("Softmax", {"axis": [1]}, (), "axis"),
        ("Concatenate", {"axis": None}, (), "axis"),
    ],
)
def test_what_is_refused(kind: str, config: dict[str, Any], arrays: Any, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        applied(kind, config, *arrays)
    with pytest.raises(Unreadable, match="called with nothing"):
        apply_layer(Call(Model(Steps()), Part("p", "Dense", {}, []), []))
    assert set(HANDLERS) >= WRAPPED
