"""Weights that a module keeps between calls: used as long as the parameters are what they were, however they change."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

import tvm_rnn as rnn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
own_nn = importlib.import_module("tvm_rnn.torch_layer.nn")
holds = importlib.import_module("tvm_rnn.torch_layer.kept").holds

X, H, B, T = 5, 7, 3, 9
Layer: TypeAlias = Any


def _no_grad(layer: Layer) -> None:
    with torch.no_grad():
        layer.weight_hh_l0.mul_(1.5)


def _data(layer: Layer) -> None:
    layer.weight_ih_l0.data.copy_(layer.weight_ih_l0.data * 0.5)  # no version counts this


def _view(layer: Layer) -> None:
    layer.bias_hh_l0.detach().numpy()[1] += 0.25


def _optimizer(layer: Layer) -> None:
    with torch.no_grad():  # as optimisers do
        torch._foreach_add_([*layer.parameters()], 0.125)


def _loaded(layer: Layer) -> None:
    layer.load_state_dict({name: value + 0.125 for name, value in layer.state_dict().items()})


def _another(layer: Layer) -> None:
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.detach().flip(0))


def _turned(layer: Layer) -> None:
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.flip(1).T.contiguous().T  # in another order in memory


def _swapped(layer: Layer) -> None:
    """The same numbers in all, in other places."""
    layer.weight_hh_l0.data[[0, 1]] = layer.weight_hh_l0.data[[1, 0]]


@pytest.fixture(scope="module")
def code(kept_code: object) -> Layer:
    """A layer that has been compiled; while it lives, others of its equations and sizes share the code."""
    layer = own_nn.GRU(X, H)
    layer(torch.zeros(T, B, X))
    return layer


def ours_of(theirs: Layer) -> Layer:
    """The same layer of ours, which has code for both passes."""
    layer = rnn.accelerate(copy.deepcopy(theirs), progress=False)
    layer(torch.zeros(T, B, X))
    return layer


CHANGES = [_no_grad, _data, _view, _optimizer, _loaded, _another, _turned, _swapped]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps", [1, T])
@pytest.mark.usefixtures("code")
def test_results_follow_every_change_in_place(change: Callable[[Layer], None], steps: int) -> None:
    theirs = torch.nn.GRU(X, H)
    ours, x = ours_of(theirs), torch.randn(steps, B, X)
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-5)
    for layer in (ours, theirs):
        change(layer)
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-5)
    gradients = []
    for layer in (ours, theirs):
        layer.zero_grad()
        layer(x)[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*gradients, strict=True))


@pytest.mark.usefixtures("code")
def test_a_call_with_other_weights_is_for_that_call_alone() -> None:
    theirs = torch.nn.GRU(X, H)
    ours, x = ours_of(theirs), torch.randn(T, B, X)
    others = {name: value.detach() * 0.5 for name, value in theirs.named_parameters()}
    with torch.no_grad():
        for weights in ({}, others, {}, others):
            found, expected = (torch.func.functional_call(one, weights, (x,))[0] for one in (ours, theirs))
            assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.usefixtures("code")
def test_equal_parameters_are_not_made_weights_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = ours_of(torch.nn.GRU(X, H)), torch.randn(T, B, X)
    with torch.no_grad():
        expected = layer(x)[0]
    monkeypatch.setattr(own_nn, "net_weights", lambda *_: pytest.fail("weights were made again"))
    with torch.no_grad():
        assert torch.equal(layer(x)[0], expected)
        assert torch.equal(layer(x, torch.zeros(1, B, H))[0], expected)


@pytest.mark.usefixtures("code")
def test_a_module_that_was_given_other_weights_is_given_the_layers() -> None:
    layer, x = own_nn.Cell(rnn.cells.gru, X, H), torch.randn(T, B, X)
    with torch.no_grad():
        expected = layer(x)[0]
        module, parameters = layer.compiled(), [*layer.parameters()]
        assert holds(module, parameters)
        module.load_weights({name: value * 2 for name, value in module.weights.items()})
        assert not holds(module, parameters)
        assert torch.equal(layer(x)[0], expected) and holds(module, parameters)
        parameters[0].data[0] += 1
        assert not torch.equal(layer(x)[0], expected)


@pytest.mark.usefixtures("code")
def test_few_steps_with_gradients_are_torchs_own() -> None:
    """They take less time there; nothing is compiled for them, and nothing is said."""
    layer = own_nn.GRU(X, H)
    y, _ = layer(torch.randn(1, B, X))
    y.sum().backward()
    assert layer not in own_nn._own
    layer(torch.randn(T, B, X))
    assert layer in own_nn._own
