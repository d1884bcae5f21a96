"""Whole torch models with an example of their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError

torch = pytest.importorskip("torch")
Module: Any = torch.nn.Module


class Reader(Module):
    """Convolution, pooling, two layers in both directions, a product: as models that read text are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 6, 3, padding=1)
        self.rnn = torch.nn.LSTM(6 * 4, 11, 2, bidirectional=True, batch_first=True)
        self.out = torch.nn.Linear(22, 5)

    def forward(self, image: Any) -> Any:
        y = torch.nn.functional.max_pool2d(self.conv(image).relu(), 2)
        B, C, H, W = y.shape
        y, (h, _) = self.rnn(y.permute(0, 3, 1, 2).reshape(B, W, C * H))
        return self.out(y).log_softmax(-1), h


def test_a_model_of_a_product_alone() -> None:
    model = torch.nn.Linear(3, 2).train()
    net = rnn.from_torch(model, torch.zeros(4, 3), axes={"input": {0: "n"}})
    assert model.training and [d.name for d in net.program.outputs] == ["y0"]
    assert net.program.inputs[0].shape == ("n", 3)


@pytest.mark.broad
def test_whole_models_run_as_torch_runs_them() -> None:
    torch.manual_seed(0)
    model = Reader()
    net = rnn.from_torch(model, torch.zeros(2, 1, 8, 14), axes={"image": {0: "B", 3: "W"}})
    mod, exact = rnn.compile(net), Reader().double().eval()
    exact.load_state_dict(model.state_dict())
    for shape in ((2, 1, 8, 14), (3, 1, 8, 22)):
        x = torch.randn(shape)
        found = mod.run({"image": x.numpy()})
        with torch.no_grad():
            expected = exact(x.double())
        for name, value in zip(("y0", "y1"), expected, strict=True):
            np.testing.assert_allclose(found[name], value.numpy(), atol=2e-6)


class Branching(Module):
    def forward(self, x: Any) -> Any:
        raise RuntimeError("no way")


@pytest.mark.parametrize(
    ("model", "axes", "text"),
    [
        (Branching(), {}, "no way"),
        (torch.nn.Linear(3, 2), {"x": {0: "n"}}, "no such input"),
        (3, {}, "no model"),
        (torch.nn.FractionalMaxPool2d(2, output_size=2), {}, "cannot"),
    ],
)
def test_what_cannot_be_is_said(model: Any, axes: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        rnn.from_torch(model, torch.zeros(1, 3, 4, 4) if axes == {} else torch.zeros(1, 3), axes=axes)


def test_names_of_axes_are_for_whole_models() -> None:
    with pytest.raises(ConfigError, match="give an example"):
        rnn.from_torch(torch.nn.GRU(2, 3), axes={"x": {0: "T"}})
    with pytest.raises(ConfigError, match=r"from_torch\(model, x\)"):
        rnn.from_torch(Reader())


class Remembering(Module):
    """Keeps its state from call to call, as a plain attribute, and counts in place in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.GRU(3, 4, batch_first=True)
        self.h = torch.full((1, 1, 4), 0.25)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y, self.h = self.rnn(x, self.h)
        return y


def test_what_a_model_keeps_from_call_to_call_stays_as_it_was() -> None:
    torch.manual_seed(0)
    model, x = Remembering(), torch.randn(1, 5, 3)
    net = rnn.from_torch(model, x)
    assert model.h.eq(0.25).all() and not model.calls.any()
    found = rnn.reference(net).run({"x": x.numpy()})["y0"]
    with torch.no_grad():
        np.testing.assert_allclose(found, model(x), atol=1e-6)
    assert model.calls == 1 and not model.h.eq(0.25).any()
