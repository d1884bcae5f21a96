"""accelerate: which modules of a model become ours, in place, and what is said of the others. Nothing is compiled."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn import ConfigError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


class Own(torch.nn.LSTM):
    def forward(self, *given: Any) -> Any:
        return super().forward(*given)


class Plain(torch.nn.GRU):
    pass


def model() -> Any:
    shared = torch.nn.GRU(3, 4)
    parts = {
        "encoder": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LSTM(3, 4, batch_first=True)),
        "shared": shared,
        "again": shared,
        "elman": torch.nn.RNN(3, 4),
        "cell": torch.nn.LSTMCell(3, 4),
        "own": Own(3, 4),
        "plain": Plain(3, 4),
    }
    return torch.nn.ModuleDict(parts)


def test_layers_become_ours_in_place() -> None:
    net, lines = model(), list[str]()
    before, layer = [*net.named_parameters()], net["encoder"][1]
    assert rnn.accelerate(net, lines.append) is net
    assert all(a is b for (_, a), (_, b) in zip(before, net.named_parameters(), strict=True))
    assert net["encoder"][1] is layer
    assert type(layer) is rnn.nn.LSTM
    assert type(net["again"]) is rnn.nn.GRU
    assert type(net["elman"]) is rnn.nn.RNN
    assert [type(net[name]) for name in ("cell", "own", "plain")] == [torch.nn.LSTMCell, Own, Plain]
    assert lines == [
        "encoder.1: tvm_rnn.LSTM(3, 4, batch_first=True)",
        "shared: tvm_rnn.GRU(3, 4)",
        "elman: tvm_rnn.RNN(3, 4)",
        "cell: LSTMCell(3, 4) stays: it makes one step per call; a layer over time can be compiled",
        "own: Own(3, 4) stays: Own has a forward() of its own",
        "plain: Plain(3, 4) stays: Plain is a class of its own: derive it from rnn.nn.GRU, or parametrize later",
    ]


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_layers_that_torch_quantised_stay() -> None:
    net, lines = torch.nn.Sequential(torch.nn.LSTM(3, 4)), list[str]()
    net = torch.ao.quantization.quantize_dynamic(net, {torch.nn.LSTM})
    before = type(net[0])
    rnn.accelerate(net, lines.append)
    assert type(net[0]) is before
    assert lines == [f"0: DynamicQuantizedLSTM(3, 4) stays: it is of {before.__module__}, not of torch.nn"]


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_quantising_afterwards_says_that_it_does_nothing() -> None:
    net = rnn.accelerate(torch.nn.Sequential(torch.nn.LSTM(3, 4)), progress=False)
    with pytest.warns(UserWarning, match="(?s)not quantised.*before rnn.accelerate"):
        after = torch.ao.quantization.quantize_dynamic(net, {torch.nn.LSTM})
    assert type(after[0]) is rnn.nn.LSTM


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    layer = rnn.accelerate(torch.nn.LSTM(3, 4))
    assert type(layer) is rnn.nn.LSTM
    assert capsys.readouterr().err == "accelerate: the model: tvm_rnn.LSTM(3, 4)\n"
    rnn.accelerate(torch.nn.Linear(3, 4))
    assert capsys.readouterr().err == "accelerate: nothing recurrent was found\n"
    assert rnn.accelerate(copy.deepcopy(layer), progress=False).weight_ih_l0 is not layer.weight_ih_l0
    assert capsys.readouterr().err == ""


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"accelerate needs a torch module[\s\S]*got: +'model'"):
        rnn.accelerate("model")
    model = torch.nn.LSTM(3, 4)  # which imports torch itself
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="torch is not installed"):
        rnn.accelerate(model)
