"""to_torch: layers that torch trains: the loss curves of torch.nn's, optimisers, state_dict, and what is refused.

In: one compiled LSTM in float64. The curves are those of two runs that differ in the recurrent layer alone.
"""

from __future__ import annotations

import copy
import io
import sys
from typing import Any

import numpy as np
import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, InputError, TvmRnnError, WeightError, cells
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.torch_layer import to_torch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

X, H, T, B = 10, 5, 8, 4  # X = 2 H: both layers share their code
STACK = {"num_layers": 2, "bidirectional": True, "dtype": "float64"}


@pytest.fixture(scope="module")
def compiled() -> Any:
    """A layer with torch's names; each test works on a copy, which shares the code."""
    return rnn.to_torch(network("lstm", X, H, **STACK), names="torch")


@pytest.fixture
def layer(compiled: Any) -> Any:
    return copy.deepcopy(compiled)


def torch_lstm(layer: Any) -> Any:
    own = torch.nn.LSTM(X, H, num_layers=2, bidirectional=True, dtype=torch.float64)
    own.load_state_dict(layer.state_dict())
    return own


def curve(layer: Any, optimiser: str, steps: int, **options: Any) -> list[float]:
    """Losses of a small task: the last output predicts a sum over time."""
    torch.manual_seed(0)
    x = torch.randn(T, B, X, dtype=torch.float64)
    wanted = x.sum((0, 2))
    readout = torch.nn.Linear(2 * H, 1, dtype=torch.float64)
    parameters = [*layer.parameters(), *readout.parameters()]
    updates, losses = getattr(torch.optim, optimiser)(parameters, **options), []
    for _ in range(steps):
        updates.zero_grad()
        loss = ((readout(layer(x)[0].mean(0))[:, 0] - wanted) ** 2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        updates.step()
        losses.append(loss.item())
    return losses


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("optimiser", "options"), [("SGD", {"lr": 0.05, "momentum": 0.9}), ("Adam", {"lr": 0.01})], ids=str
)
def test_the_loss_curve_is_torchs(layer: Any, optimiser: str, options: dict[str, Any]) -> None:
    theirs = curve(torch_lstm(layer), optimiser, 200, **options)
    ours = curve(layer, optimiser, 200, **options)
    assert ours[-1] < 0.1 * ours[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_parameters_have_torchs_names_and_shapes(layer: Any) -> None:
    own = torch_lstm(layer)
    assert list(layer.state_dict()) == list(own.state_dict())
    x = torch.randn(T, B, X, dtype=torch.float64)
    assert_close(layer(x)[0].detach(), own(x)[0].detach(), "float64", T)


@pytest.mark.parametrize("name", ["gru", "lstm_projection", "elman"])
def test_weights_by_torchs_names_are_the_net_s(name: str) -> None:
    from tvm_rnn.frontends.torch import form_of, state_arrays
    from tvm_rnn.torch_layer.autograd import net_weights

    net = network(name, X, H, num_layers=2, bidirectional=True, dtype="float64")
    there = {n: torch.tensor(v) for n, v in state_arrays(net).items()}
    kind = {"gru": "GRU", "lstm_projection": "LSTM", "elman": "RNN"}[name]
    more = {"proj_size": 3} if name == "lstm_projection" else {}
    own = getattr(torch.nn, kind)(X, H, num_layers=2, bidirectional=True, dtype=torch.float64, **more)
    own.load_state_dict(there)
    back = net_weights(net.weight_shapes, form_of(net), there)
    assert list(back) == list(net.weight_shapes)
    for key, value in net.weights.items():
        np.testing.assert_array_equal(back[key].numpy(), value)
    x = np.random.default_rng(0).normal(size=(T, B, X))
    assert_close(own(torch.tensor(x))[0].detach(), rnn.reference(net)(x)[0], "float64", T)


def test_with_the_batch_first(layer: Any) -> None:
    """Results and gradients of torch's layer; the module that it gives has the batch first too."""
    own = torch.nn.LSTM(X, H, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
    own.load_state_dict(layer.state_dict())
    layer.batch_first = True
    assert ", batch_first=True" in repr(layer)
    x = torch.randn(B, T, X, dtype=torch.float64, requires_grad=True)
    (y, (h, _)), (expected, (wanted, _)) = layer(x), own(x)
    assert_close((y.detach(), h.detach()), (expected.detach(), wanted.detach()), "float64", T)
    pair = [torch.autograd.grad(each.square().sum(), x)[0].numpy() for each in (y, expected)]
    assert_close(*pair, "float64", T)
    reset = torch.rand(B, T) < 0.3
    module = layer.compiled()
    assert module.batch_first
    assert_close(module(x.detach(), reset=reset)[0], layer(x, reset=reset)[0].detach(), "float64", T)
    for wrong in (x.detach().numpy(), x[0, 0]):
        with pytest.raises(InputError, match=r"batch first[\s\S]*\[B, T, \.\.\.\]"):
            layer(wrong)


@pytest.mark.broad
def test_a_layer_of_torch_and_back() -> None:
    """One without biases has none here either; the net's, which are zeros, take no gradient from it."""
    own = torch.nn.GRU(X, H, bias=False, dtype=torch.float64)
    layer = rnn.to_torch(rnn.from_torch(own), names="torch")
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in own.state_dict().items())
    assert layer.state_dict().keys() == own.state_dict().keys()
    x = torch.randn(T, B, X, dtype=torch.float64)
    for each in (layer, own):
        each(x)[0].square().sum().backward()
    ours, theirs = ({n: p.grad.numpy() for n, p in each.named_parameters()} for each in (layer, own))
    assert_close(ours, theirs, "float64", T)


@pytest.mark.broad
def test_dropout_of_a_layer_of_torch_acts_in_training() -> None:
    own = torch.nn.LSTM(X, H, 2, dropout=0.5)
    layer, x = rnn.to_torch(rnn.from_torch(own), names="torch"), torch.randn(T, B, X)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    assert_close(layer.eval()(x)[0].detach(), own.eval()(x)[0].detach(), "float32", T)


@pytest.mark.broad
def test_state_dict_round_trip(layer: Any, compiled: Any) -> None:
    x = torch.randn(T, B, X, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.5)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    again = copy.deepcopy(compiled)
    assert not torch.equal(again(x)[0], layer(x)[0])
    again.load_state_dict(torch.load(file))
    assert torch.equal(again(x)[0], layer(x)[0])


def test_weights_go_back_to_the_net_and_into_files(layer: Any, tmp_path: Any) -> None:
    with torch.no_grad():
        layer.bias_hh_l1.add_(0.25)
    net = network("lstm", X, H, **STACK)
    net.load(layer.weights())
    x = np.random.default_rng(0).normal(size=(T, B, X))
    expected, _ = rnn.reference(net)(x)
    assert_close(layer(torch.tensor(x))[0].detach(), expected, "float64", T)
    layer.compiled().export(tmp_path / "m.so")
    assert_close(rnn.load(tmp_path / "m.so")(x)[0], expected, "float64", T)


def test_tensors_of_another_dtype_or_without_memory(layer: Any) -> None:
    x = torch.zeros(T, B, X, dtype=torch.float64)
    with pytest.raises(InputError, match=r"does not run there[\s\S]*got: +meta[\s\S]*x\.to\('cpu'\)"):
        layer(x.to("meta"))
    expected = r"does not fit this layer[\s\S]*got: +torch\.bfloat16 on cpu[\s\S]*layer\.to\(torch\.float64\)"
    with pytest.raises(WeightError, match=expected):
        copy.deepcopy(layer).bfloat16()(x)
    with pytest.raises(WeightError, match=r"got: +torch\.float64 on meta[\s\S]*to_empty[\s\S]*load_state_dict"):
        copy.deepcopy(layer).to("meta")(x)
    assert torch.isfinite(copy.deepcopy(layer).float().double()(x)[0]).all()


def test_refused(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("lstm", X, H)
    with pytest.raises(ConfigError, match="to_torch needs an RNN"):
        rnn.to_torch(cells.lstm)
    with pytest.raises(ConfigError, match=r"no such names of parameters[\s\S]*did you mean 'torch'"):
        rnn.to_torch(net, names="troch")
    for other in (network("mlstm", X, H), rnn.RNN(cells.lstm, X, H, reverse=True).init(1)):
        with pytest.raises(ConfigError, match=r"torch has no such layer[\s\S]*torch.nn has no[\s\S]*names=\"torch\""):
            rnn.to_torch(other, names="torch")
    with pytest.raises(WeightError, match=r"no weights[\s\S]*net.init"):
        rnn.to_torch(rnn.RNN(cells.lstm, X, H))
    with pytest.raises(ConfigError, match=r"needs an RNN[\s\S]*rnn\.to_torch\(rnn\.from_torch\(layer\)\)"):
        rnn.to_torch(torch.nn.LSTM(X, H))
    with pytest.raises(TvmRnnError, match=r"cannot be pickled[\s\S]*state_dict"):
        torch.save(layer, io.BytesIO())
    with pytest.raises(InputError, match=r"takes tensors[\s\S]*got: +ndarray"):
        layer(np.zeros((T, B, X)))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "tvm_rnn.torch_layer.autograd")
    with pytest.raises(ConfigError, match=r"torch is not installed[\s\S]*pip install torch"):
        to_torch.to_torch(net)
