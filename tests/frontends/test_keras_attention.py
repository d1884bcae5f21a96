"""Keras's attention layers, beside NumPy; beside Keras itself: tests/frontends/test_keras.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_files import cell_arrays, weights_file, write

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError

RNG = np.random.default_rng(0)
Q, V, K = (RNG.normal(size=(2, steps, 5)).astype("f4") for steps in (4, 7, 7))


def model(kind: str, config: dict[str, Any], arrays: list[np.ndarray], tmp_path: Path, **options: Any) -> Any:
    """Attention of three inputs, beside a network."""
    names = "qvkz"
    own: list[dict[str, Any]] = [
        {
            "class_name": "InputLayer",
            "name": name,
            "config": {"name": name, "batch_shape": [None, None, 5], "dtype": "float32"},
            "inbound_nodes": [],
        }
        for name in names
    ]
    values = [
        {"class_name": "__keras_tensor__", "config": {"shape": [], "dtype": "float32", "keras_history": [name, 0, 0]}}
        for name in names
    ]
    given = {"args": [values[:3]] if kind != "MultiHeadAttention" else values[:2], "kwargs": dict(options)}
    if kind == "MultiHeadAttention":
        given["kwargs"]["key"] = values[2]
    own += [
        {"class_name": kind, "name": "y", "config": {"name": "y", **config}, "inbound_nodes": [given]},
        {
            "class_name": "SimpleRNN",
            "name": "r",
            "config": {"name": "r", "units": 2},
            "inbound_nodes": [{"args": [values[3]], "kwargs": {}}],
        },
    ]
    ends = {"input_layers": [[name, 0, 0] for name in names], "output_layers": [["y", 0, 0], ["r", 0, 0]]}
    whole = {"class_name": "Functional", "config": {"name": "m", "layers": own, **ends}}
    places = [f"vars/{i}" for i in range(len(arrays))]
    if kind == "MultiHeadAttention":
        numbers = range(1 + config.get("use_bias", True))
        places = [f"{part}_dense/vars/{i}" for part in ("query", "key", "value", "output") for i in numbers]
    stored = dict(zip(places, arrays, strict=False))
    weights = weights_file((kind, {}, stored), ("SimpleRNN", {}, cell_arrays(1, 5, 2)))
    return rnn.from_keras(write(tmp_path / "m.keras", whole, weights))


def softmax(x: np.ndarray) -> np.ndarray:
    found = np.exp(x - x.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


def check(net: Any, expected: np.ndarray) -> None:
    feeds = {"q": Q, "v": V, "k": K, "z": np.zeros((2, 3, 5), "f4")}
    for found in (rnn.compile(net, progress=False).run(feeds)["y"], rnn.reference(net).run(feeds)["y"]):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_of_products(tmp_path: Path) -> None:
    net = model("Attention", {"use_scale": True, "score_mode": "dot"}, [np.array(0.3, "f4")], tmp_path)
    check(net, softmax(0.3 * Q @ K.transpose(0, 2, 1)) @ V)


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["Attention", "AdditiveAttention"])
def test_of_sums(kind: str, tmp_path: Path) -> None:
    sums = Q[:, :, None] + K[:, None]
    if kind == "Attention":
        one, two = np.array(0.7, "f4"), np.array(-1.3, "f4")
        net = model(kind, {"use_scale": True, "score_mode": "concat"}, [one, two], tmp_path)
        check(net, softmax(two * np.tanh(one * sums).sum(-1)) @ V)
        return
    scale = RNG.normal(size=5).astype("f4")
    check(model(kind, {"use_scale": True}, [scale], tmp_path), softmax((scale * np.tanh(sums)).sum(-1)) @ V)


@pytest.mark.broad
@pytest.mark.parametrize("biased", [True, False])
def test_with_heads(biased: bool, tmp_path: Path) -> None:
    shapes = [(5, 3, 4), (3, 4), (5, 3, 4), (3, 4), (5, 3, 6), (3, 6), (3, 6, 5), (5,)]
    arrays = [RNG.normal(size=shape).astype("f4") for shape in shapes]
    q, k, v = (
        np.einsum("btd,dnk->bntk", x, arrays[2 * i]) + biased * arrays[2 * i + 1][:, None]
        for i, x in enumerate((Q, K, V))
    )
    chosen = softmax(q @ k.transpose(0, 1, 3, 2) / 2) @ v
    expected = np.einsum("bntv,nvo->bto", chosen, arrays[6]) + biased * arrays[7]
    own = arrays if biased else arrays[::2]
    config = {"num_heads": 3, "key_dim": 4, "value_dim": 6, "use_bias": biased}
    check(model("MultiHeadAttention", config, own, tmp_path), expected)


def test_what_is_refused(tmp_path: Path) -> None:
    for kind, config, arrays, options, text in (
        ("Attention", {"use_scale": True}, [], {}, "it has 0 arrays"),
        ("Attention", {}, [], {"use_causal_mask": True}, "called with use_causal_mask"),
        ("MultiHeadAttention", {"num_heads": 2, "key_dim": 2}, [], {}, "its arrays have shapes"),
        ("MultiHeadAttention", {"num_heads": 2, "key_dim": 2, "attention_axes": [2]}, [], {}, "other axes"),
    ):
        with pytest.raises(ConfigError, match=text):
            model(kind, config, arrays, tmp_path, **options)
