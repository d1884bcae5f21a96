"""Cells of images on a GPU without one: every pixel a row, convolutions as products, in both passes.

In: cells that convolve, of one layer and of several, one way and both, in every precision; frames and channels of odd
sizes. Out: the oracle's outputs, last states and gradients, with lengths, resets and states given.
"""

from __future__ import annotations

from typing import Any

import convolutions
import emulator
import pytest
from networks import arguments, flags, network

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import LIMITS, error
from tests.runtime.test_runtime_cuda_training import check as check_training

Case = tuple[Any, int, int, dict[str, Any]]


CASES: dict[str, Case] = {
    "lstm-float32": ("conv_lstm", 3, 5, {"Y": 4, "X": 5}),
    "lstm-bfloat16-whole": ("conv_lstm", 8, 16, {"Y": 17, "X": 16, "dtype": "bfloat16"}),
    "lstm-float16-both": ("conv_lstm", 4, 8, {"Y": 3, "X": 5, "dtype": "float16", "bidirectional": True}),
    "peephole-float32": ("conv_lstm_peephole", 3, 5, {"Y": 4, "X": 5}),
    "peephole-bfloat16-whole": ("conv_lstm_peephole", 8, 16, {"Y": 17, "X": 16, "dtype": "bfloat16"}),
    "gru-float16": ("conv_gru", 7, 9, {"Y": 5, "X": 3, "dtype": "float16", "num_layers": 2}),
    "gru-float64": ("conv_gru", 2, 3, {"Y": 1, "X": 6, "dtype": "float64"}),
    "gru-tf32": ("conv_gru", 5, 8, {"Y": 6, "X": 7, "precision": "tf32"}),
    "separable-float32": ("conv_gru_separable", 5, 8, {"Y": 6, "X": 7}),
    "images-float32": (convolutions.images, 2, 4, {"Y": 5, "X": 4, "U": 3, "V": 2}),
    "line-bfloat16": (convolutions.line, 3, 8, {"L": 11, "dtype": "bfloat16"}),
    "joined-float32": (convolutions.joined, 3, 4, {"Y": 4, "X": 4}),
    "mapped-tf32": (convolutions.mapped, 3, 8, {"Y": 5, "X": 4, "precision": "tf32"}),
    "reverse-float32": ("conv_gru", 3, 4, {"Y": 3, "X": 4, "reverse": True}),
}
TRAINED: dict[str, Case] = {
    "lstm-float32": ("conv_lstm", 3, 5, {"Y": 4, "X": 5}),
    "lstm-bfloat16": ("conv_lstm", 8, 64, {"Y": 5, "X": 6, "dtype": "bfloat16"}),
    "lstm-tf32": ("conv_lstm", 3, 8, {"Y": 5, "X": 4, "precision": "tf32", "num_layers": 2}),
    "gru-float16": ("conv_gru", 5, 8, {"Y": 3, "X": 4, "dtype": "float16"}),
    "separable-float64": ("conv_gru_separable", 2, 3, {"Y": 4, "X": 3, "dtype": "float64"}),
    "line-float32": (convolutions.line, 3, 4, {"L": 9}),
    "joined-float32": (convolutions.joined, 3, 4, {"Y": 3, "X": 4}),
    "mapped-float32": (convolutions.mapped, 3, 4, {"Y": 3, "X": 4}),
    "peephole-bfloat16": ("conv_lstm_peephole", 5, 8, {"Y": 3, "X": 4, "dtype": "bfloat16"}),
}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


def made(case: Case, **how: Any) -> tuple[rnn.RNN, Any]:
    own, inputs, hidden, options = case
    precision = {"precision": options["precision"]} if "precision" in options else {}
    sizes = {name: value for name, value in options.items() if name != "precision"}
    net = network(own, inputs, hidden, **{"dtype": "float32", **sizes})
    return net, emulator.compile(net, **precision, **how)


def products(module: Any, way: str = "templates") -> list[str]:
    """What each launch of a step does."""
    variant = module.manifest["variants"][0]
    rows = variant[way] if way == "templates" else variant[way]["templates"]
    return [row["unit"].split()[1] for row in rows if row["unit"].startswith("step ")]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_calls(name: str) -> None:
    net, module = made(CASES[name], batch=(2,))
    assert "gemm" in products(module) and "reduce" not in products(module)
    limit = LIMITS[CASES[name][3].get("precision", net.dtype)]
    for steps, batch, rows in ((3, 2, {}), (4, 3, flags(4, 3))):
        x, state = arguments(net, steps, batch)
        (y, last), (expected, states) = module(x, state, **rows), rnn.reference(net)(x, state, **rows)
        assert error(y, expected) < limit and all(error(last[key], value) < limit for key, value in states.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_training(name: str) -> None:
    net, module = made(TRAINED[name], training=True)
    assert all("gemm" in products(module, way) for way in ("forward_train", "backward"))
    own = TRAINED[name][3]
    check_training(net, module, own.get("precision") or own.get("dtype", "float32"), 4, 2)
