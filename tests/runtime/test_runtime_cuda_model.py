"""Whole models on a GPU: what is around the network is enqueued beside it, or runs on the CPU; on the emulator."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from onnx_models import model_of, node, of_16_bits, weights

import tvm_rnn as rnn
from tests.compiler.test_surroundings import speech
from tvm_rnn.errors import InputError
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime_cuda_model import _as_numpy, _by_layer


def test_the_shapes_of_a_states_layers() -> None:
    assert _by_layer([(slice(0, 24), (4, 2, 3))], 2) == [(2, 2, 3), (2, 2, 3)]
    assert _by_layer([(slice(0, 6), (1, 2, 3)), (slice(6, 10), (1, 2, 2))], 2) == [(1, 2, 3), (1, 2, 2)]


def test_an_array_of_a_gpu_is_checked_without_its_elements() -> None:
    class There:
        dtype, shape = "torch.float32", (3, 1 << 40)

    found = _as_numpy(There())
    assert found.dtype == np.float32 and found.shape == There.shape

    class Wide(There):
        dtype = "torch.quint8"

    own = Wide()
    assert _as_numpy(own) is own, "NumPy has no such dtype: who reads it says so"


@pytest.mark.slow
def test_around_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = rnn.from_onnx(speech())
    mod: Any = emulator.compile(net)
    assert all(step["attributes"]["on"] == "gpu" for step in mod.manifest["model"]["steps"] if step["op"] != "Network")
    for batch, steps in ((1, 2), (3, 21)):
        x = np.random.default_rng(steps).normal(size=(batch, 2, steps)).astype("f4")
        expected = rnn.reference(net).run({"x": x})
        for _ in range(2):
            assert_close(mod.run({"x": x}), expected, "float32", steps)
    with pytest.raises(InputError, match="x has the wrong shape"):
        mod.run({"x": np.zeros((1, 3, 4), "f4")})


@pytest.mark.slow
def test_a_part_on_the_cpu_and_states_that_the_model_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is made of what has sizes that an array's elements tell."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    own = weights("GRU", 1, 4, 3, np.random.default_rng(0))
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("Relu", ["h"], ["first"]),
        node("GRU", ["t", "W", "R", "B", "", "first"], ["y", "last"], hidden_size=3),
        node("Sigmoid", ["last"], ["p"]),
        node("Reshape", ["y", "s"], ["flat"]),
    ]
    inputs = {"x": ("f4", ["T", "B", 4]), "h": ("f4", [1, "B", 3]), "s": ("i8", [2])}
    known = {n: own[n] for n in "WRB"}
    net = rnn.from_onnx(model_of(nodes, inputs, {"p": "f4", "flat": "f4"}, known))
    mod: Any = emulator.compile(net)
    where = [step["attributes"].get("on") for step in mod.manifest["model"]["steps"]]
    assert "gpu" in where and "cpu" in where
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(5, 2, 4)).astype("f4"), "h": rng.normal(size=(1, 2, 3)).astype("f4")}
    feeds["s"] = np.array([10, 3])
    assert_close(mod.run(feeds), rnn.reference(net).run(feeds), "float32", 5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_of_16_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arrays are of float16 where the file says so; NumPy lacks bfloat16, and has float32 instead."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    net, own = rnn.from_onnx(of_16_bits(dtype)), "float16" if dtype == "float16" else "float32"
    mod: Any = emulator.compile(net)
    for batch, steps in ((1, 2), (3, 21)):
        x = np.random.default_rng(steps).normal(size=(batch, 3, steps)).astype(own)
        found, expected = mod.run({"x": x}), rnn.reference(net).run({"x": x})
        assert {value.dtype.name for value in found.values()} == {own}
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], atol=2e-2 if dtype == "bfloat16" else 2e-3)
