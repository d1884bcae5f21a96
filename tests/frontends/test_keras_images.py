"""Keras's layers that look at neighbours, beside NumPy: every padding, strides, sizes that only a run shows.

Beside Keras itself: tests/frontends/test_keras.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_files import cell_arrays, weights_file, write
from numpy.lib.stride_tricks import sliding_window_view

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError

RNG = np.random.default_rng(0)
Layer = tuple[str, dict[str, Any], dict[str, Any]]


def behind(shape: list[int | None], layer: Layer, tmp_path: Path) -> Any:
    """A model of the layer, and of a network behind it that keeps nothing of it: the layer is an output as well."""
    last = ("SimpleRNN", {"units": 2, "name": "r"}, cell_arrays(1, 3, 2))
    kind, config, arrays = layer
    first = {"name": "x", "batch_shape": [None, *shape], "dtype": "float32"}
    beside = {"name": "z", "batch_shape": [None, None, 3], "dtype": "float32"}
    own: list[dict[str, Any]] = [
        {"class_name": "InputLayer", "name": "x", "config": first, "inbound_nodes": []},
        {"class_name": "InputLayer", "name": "z", "config": beside, "inbound_nodes": []},
        {"class_name": kind, "name": "y", "config": {"name": "y", **config}, "inbound_nodes": [called("x")]},
        {"class_name": last[0], "name": "r", "config": last[1], "inbound_nodes": [called("z")]},
    ]
    ends = {"input_layers": [["x", 0, 0], ["z", 0, 0]], "output_layers": [["y", 0, 0], ["r", 0, 0]]}
    whole = {"class_name": "Functional", "config": {"name": "m", "layers": own, **ends}}
    return rnn.from_keras(write(tmp_path / "m.keras", whole, weights_file((kind, {}, arrays), last)))


def called(name: str) -> dict[str, Any]:
    value = {
        "class_name": "__keras_tensor__",
        "config": {"shape": [], "dtype": "float32", "keras_history": [name, 0, 0]},
    }
    return {"args": [value], "kwargs": {}}


def padded(x: np.ndarray, wide: list[int], strides: list[int], how: str, filler: float) -> np.ndarray:
    """Axes from the second one on, as TensorFlow's documentation says."""
    sides = [(0, 0)]
    for n, k, s in zip(x.shape[1:-1], wide, strides, strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0) if how == "same" else k - 1 if how == "causal" else 0
        sides.append((total, 0) if how == "causal" else (total // 2, total - total // 2))
    return np.pad(x, [*sides, (0, 0)], constant_values=filler)


def windows(x: np.ndarray, wide: list[int], strides: list[int], apart: int = 1) -> np.ndarray:
    """[B, places..., channels, window...]."""
    reach = [(k - 1) * apart + 1 for k in wide]
    found = sliding_window_view(x, reach, axis=tuple(range(1, x.ndim - 1)))
    steps = tuple(slice(None, None, s) for s in strides)
    return np.asarray(found[(slice(None), *steps, slice(None), *(slice(None, None, apart) for _ in wide))])


def check(net: Any, x: np.ndarray, expected: np.ndarray) -> None:
    feeds = {"x": x, "z": np.zeros((len(x), 2, 3), "f4")}
    for found in (rnn.compile(net, progress=False).run(feeds)["y"], rnn.reference(net).run(feeds)["y"]):
        assert np.shape(found) == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.broad_after(3)
@pytest.mark.parametrize(
    ("how", "stride", "apart", "groups"),
    [("same", 1, 1, 1), ("same", 3, 1, 1), ("causal", 1, 2, 1), ("causal", 2, 1, 2), ("valid", 1, 2, 1)],
)
def test_convolutions_over_time(how: str, stride: int, apart: int, groups: int, tmp_path: Path) -> None:
    kernel, bias = RNG.normal(size=(4, 6 // groups, 8)).astype("f4"), RNG.normal(size=8).astype("f4")
    config = {"strides": [stride], "padding": how, "dilation_rate": [apart], "groups": groups, "activation": "relu"}
    net = behind([None, 6], ("Conv1D", config, {"vars/0": kernel, "vars/1": bias}), tmp_path)
    for steps in (13, 12):
        x = RNG.normal(size=(2, steps, 6)).astype("f4")
        w = windows(padded(x, [3 * apart + 1], [stride], how, 0), [4], [stride], apart)
        each = [
            np.einsum("btck,kco->bto", a, b)
            for a, b in zip(np.split(w, groups, 2), np.split(kernel, groups, 2), strict=True)
        ]
        check(net, x, np.maximum(np.concatenate(each, -1) + bias, 0))


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("kind", ["Conv2D", "DepthwiseConv2D", "SeparableConv2D"])
@pytest.mark.parametrize(("how", "stride"), [("same", 2), ("valid", 1)])
def test_convolutions_of_pictures(kind: str, how: str, stride: int, tmp_path: Path) -> None:
    depth = RNG.normal(size=(3, 2, 4, 2)).astype("f4")
    kernel = RNG.normal(size=(3, 2, 4, 5)).astype("f4")
    over = RNG.normal(size=(1, 1, 8, 5)).astype("f4")
    own = {"Conv2D": [kernel], "DepthwiseConv2D": [depth], "SeparableConv2D": [depth, over]}[kind]
    arrays = {f"vars/{i}": value for i, value in enumerate(own)}
    net = behind([7, None, 4], (kind, {"strides": stride, "padding": how, "use_bias": False}, arrays), tmp_path)
    x = RNG.normal(size=(2, 7, 10, 4)).astype("f4")
    w = windows(padded(x, [3, 2], [stride] * 2, how, 0), [3, 2], [stride] * 2)
    if kind == "Conv2D":
        check(net, x, np.einsum("bhwcij,ijco->bhwo", w, kernel))
        return
    y = np.einsum("bhwcij,ijcm->bhwcm", w, depth).reshape(*w.shape[:3], 8)
    check(net, x, y if kind == "DepthwiseConv2D" else y @ over[0, 0])


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("kind", ["MaxPooling1D", "AveragePooling1D"])
@pytest.mark.parametrize(("how", "stride"), [("same", 2), ("same", 1), ("valid", None)])
def test_pooling(kind: str, how: str, stride: int | None, tmp_path: Path) -> None:
    config = {"pool_size": [3], "strides": stride, "padding": how}
    net = behind([None, 4], (kind, config, {}), tmp_path)
    for steps in (9, 8):
        x = RNG.normal(size=(2, steps, 4)).astype("f4")
        x[1, 4, 2] = np.inf
        w = windows(padded(x, [3], [stride or 3], how, np.nan), [3], [stride or 3])
        check(net, x, (np.nanmax if kind[0] == "M" else np.nanmean)(w, -1))


@pytest.mark.broad_after(2)
@pytest.mark.parametrize(
    ("kind", "config", "made"),
    [
        ("GlobalMaxPooling2D", {"keepdims": True}, lambda x: x.max((1, 2), keepdims=True)),
        ("GlobalAveragePooling2D", {}, lambda x: x.mean((1, 2))),
        ("ZeroPadding2D", {"padding": [[1, 2], [0, 3]]}, lambda x: np.pad(x, [(0, 0), (1, 2), (0, 3), (0, 0)])),
        ("Cropping2D", {"cropping": [[1, 0], [2, 1]]}, lambda x: x[:, 1:, 2:-1]),
        ("UpSampling2D", {"size": [2, 3]}, lambda x: x.repeat(2, 1).repeat(3, 2)),
    ],
)
def test_shapes(kind: str, config: dict[str, Any], made: Any, tmp_path: Path) -> None:
    x = RNG.normal(size=(2, 5, 6, 3)).astype("f4")
    check(behind([5, None, 3], (kind, config, {}), tmp_path), x, made(x))


def test_each_step_of_a_film(tmp_path: Path) -> None:
    kernel = RNG.normal(size=(3, 2, 3, 5)).astype("f4")
    inner = {"class_name": "Conv2D", "config": {"name": "c", "use_bias": False, "padding": "valid"}}
    net = behind([None, 6, 5, 3], ("TimeDistributed", {"layer": inner}, {"layer/vars/0": kernel}), tmp_path)
    x = RNG.normal(size=(2, 4, 6, 5, 3)).astype("f4")
    rows = x.reshape(8, 6, 5, 3)
    check(net, x, np.einsum("bhwcij,ijco->bhwo", windows(rows, [3, 2], [1, 1]), kernel).reshape(2, 4, 4, 4, 5))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (("Conv1D", {"padding": "wrong"}, {"vars/0": np.zeros((2, 3, 4), "f4"), "vars/1": np.zeros(4)}), "'wrong'"),
        (("Conv1D", {}, {"vars/0": np.zeros((2, 3), "f4")}), "its arrays have shapes"),
        (("MaxPooling1D", {"pool_size": [2, 2]}, {}), "pool_size has 2 numbers, expected 1"),
        (("UpSampling2D", {"size": 2, "interpolation": "bilinear"}, {}), "'bilinear'"),
        (("ZeroPadding1D", {"padding": "all"}, {}), "padding is 'all'"),
        (("MaxPooling1D", {"pool_size": 0}, {}), "below 1"),
    ],
)
def test_what_is_refused(layer: Layer, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        behind([None, 3], layer, tmp_path)
