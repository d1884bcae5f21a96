"""Whole models on a GPU beside the oracle: networks, and what is around them as kernels, or on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module
from onnx_models import model_of, node, of_16_bits, weights

import tvm_rnn as rnn
from tests.compiler.test_surroundings import speech
from tests.runtime.test_runtime_model import WIDTH, two
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_convolutions_around_a_network(cell: str) -> None:
    net = rnn.from_onnx(speech(cell))
    mod = gpu_module(f"model_{cell}", net)
    for batch, steps in ((1, 2), (3, 101), (2, 40)):
        x = np.random.default_rng(steps).normal(size=(batch, 2, steps)).astype("f4")
        expected = rnn.reference(net).run({"x": x})
        for _ in range(3):
            assert_close(mod.run({"x": x}), expected, "float32", steps)


def test_arrays_of_the_gpu_come_back_there() -> None:
    torch: Any = pytest.importorskip("torch")
    net = rnn.from_onnx(speech())
    mod = gpu_module("model_of_torch_arrays", net)
    x = torch.randn(2, 2, 21, device="cuda")
    found = mod.run({"x": x})
    expected = rnn.reference(net).run({"x": x.cpu().numpy()})
    assert all(value.is_cuda for value in found.values())
    assert_close({name: value.cpu().numpy() for name, value in found.items()}, expected, "float32", 21)


def test_two_layers_behind_convolutions_of_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    Layer: Any = torch.nn.Module

    class Reader(Layer):
        """A CRNN: convolutions and pooling of a picture, two LSTMs in both directions over its columns."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 3, padding=1)
            self.lstm = torch.nn.LSTM(16 * 4, 24, 2, bidirectional=True)
            self.head = torch.nn.Linear(48, 11)

        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
            x = torch.nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
            y, _ = self.lstm(x.permute(3, 0, 1, 2).flatten(2))
            return self.head(y).log_softmax(-1)

    torch.manual_seed(0)
    model, x = Reader().eval(), torch.randn(2, 1, 16, 36)
    mod = gpu_module("model_reader", rnn.from_torch(model, x, axes={"x": {0: "B", 3: "W"}}))
    for shape in ((2, 1, 16, 36), (1, 1, 16, 52)):
        x = torch.randn(shape)
        with torch.no_grad():
            expected = model.double()(x.double()).numpy()
        (found,) = mod.run({"x": x}).values()
        assert_close(np.asarray(found), expected, "float32", shape[-1])


def replay_poisoned(graph: Any, found: dict[str, Any], first: dict[str, Any]) -> None:
    """20 replays of a CUDA graph write `first` to `found` again, where NaN lies before each."""
    torch: Any = pytest.importorskip("torch")
    for _ in range(20):
        for value in found.values():
            value.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(value, found[name]) for name, value in first.items())


def test_a_call_of_a_whole_model_is_captured_in_a_graph() -> None:
    """All of it is enqueued on the caller's stream; results are written again, whatever was there."""
    torch: Any = pytest.importorskip("torch")
    net = rnn.from_onnx(speech("LSTM"))
    mod = gpu_module("model_in_a_graph", net)
    x = torch.randn(3, 2, 50, device="cuda")
    first = mod.run({"x": x})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = mod.run({"x": x})
    replay_poisoned(graph, found, first)
    x.copy_(torch.randn_like(x))
    graph.replay()
    expected = rnn.reference(net).run({"x": x.cpu().numpy()})
    assert_close({name: value.cpu().numpy() for name, value in found.items()}, expected, "float32", 50)


def test_an_embedding_and_the_largest_of_each_step() -> None:
    """Indices of the CPU are looked at; those of a GPU beyond the table take its ends."""
    torch: Any = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    own = weights("GRU", 1, 4, 3, rng)
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        node("GRU", ["x", "W", "R", "B", "", "h"], ["y", "last"], hidden_size=3),
        node("ArgMax", ["y"], ["best"], axis=3),
    ]
    known = {n: own[n] for n in "WRB"} | {"table": rng.normal(size=(9, 4)).astype("f4")}
    inputs = {"ids": ("i8", ["T", "B"]), "h": ("f4", [1, "B", 3])}
    net = rnn.from_onnx(model_of(nodes, inputs, {"y": "f4", "best": "i8", "last": "f4"}, known))
    mod = gpu_module("model_embedding", net)
    steps = mod.manifest["model"]["steps"]
    assert [step["attributes"].get("on") for step in steps if step["op"] == "Compiled"] == ["gpu", "gpu"]
    feeds = {"ids": rng.integers(0, 9, (7, 2)), "h": rng.normal(size=(1, 2, 3)).astype("f4")}
    expected = rnn.reference(net).run(feeds)
    for place in ("cpu", "cuda"):
        found = mod.run({name: torch.from_numpy(value).to(place) for name, value in feeds.items()})
        arrays = {name: value.cpu().numpy() for name, value in found.items()}
        np.testing.assert_array_equal(arrays.pop("best"), expected["best"])
        assert_close(arrays, {name: expected[name] for name in arrays}, "float32", 7)
    beyond = {**feeds, "ids": feeds["ids"] + 9}
    with pytest.raises(rnn.InputError, match="as many places as there are"):
        mod.run(beyond)
    found = mod.run({name: torch.from_numpy(value).cuda() for name, value in beyond.items()})
    expected = rnn.reference(net).run({**feeds, "ids": np.full((7, 2), 8)})
    assert_close(found["y"].cpu().numpy(), expected["y"], "float32", 7)


def test_a_step_on_the_host() -> None:
    """What has sizes that an array's elements tell has no kernel."""
    torch: Any = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    own = weights("GRU", 1, 4, 3, rng)
    nodes = [
        node("GRU", ["x", "W", "R", "B"], ["y", "last"], hidden_size=3),
        node("Reshape", ["last", "s"], ["p"]),
    ]
    inputs = {"x": ("f4", ["T", "B", 4]), "s": ("i8", [2])}
    net = rnn.from_onnx(model_of(nodes, inputs, {"y": "f4", "p": "f4"}, {n: own[n] for n in "WRB"}))
    mod = gpu_module("model_on_the_host", net)
    steps = mod.manifest["model"]["steps"]
    assert [step["attributes"].get("on") for step in steps if step["op"] == "Compiled"] == ["cpu"]
    feeds = {"x": rng.normal(size=(7, 2, 4)).astype("f4"), "s": np.array([1, 6])}
    for place in ("cpu", "cuda"):
        found = mod.run({name: torch.from_numpy(value).to(place) for name, value in feeds.items()})
        arrays = {name: value.cpu().numpy() for name, value in found.items()}
        assert_close(arrays, rnn.reference(net).run(feeds), "float32", 7)


def test_two_networks() -> None:
    model = two()
    mod = gpu_module("model_of_two", model)
    x = np.random.default_rng(0).normal(size=(7, 3, WIDTH)).astype("f4")
    expected = rnn.reference(model).run({"X": x})
    for _ in range(3):
        assert_close(mod.run({"X": x}), expected, "float32", 7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_of_16_bits(dtype: str) -> None:
    """All of it is kernels, which read and write the network's own arrays: a call waits for nothing."""
    torch: Any = pytest.importorskip("torch")
    net, own = rnn.from_onnx(of_16_bits(dtype)), "float16" if dtype == "float16" else "float32"
    mod = gpu_module(f"model_of_{dtype}", net)
    x = np.random.default_rng(0).normal(size=(3, 3, 50)).astype(own)
    expected, limit = rnn.reference(net).run({"x": x}), 2e-2 if dtype == "bfloat16" else 2e-3
    there = torch.from_numpy(x).cuda()
    for given in (x, torch.from_numpy(x), there):
        for name, value in mod.run({"x": given}).items():
            array = value.cpu().numpy() if isinstance(value, torch.Tensor) else value
            assert array.dtype == own
            np.testing.assert_allclose(array, expected[name], atol=limit)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = mod.run({"x": there})
    first = {name: value.clone() for name, value in mod.run({"x": there}).items()}
    replay_poisoned(graph, found, first)
