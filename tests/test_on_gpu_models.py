"""Whole models on a GPU beside the oracle: the network's kernels, and what is around it on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module

import tvm_rnn as rnn
from tests.compiler.test_surroundings import speech
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
