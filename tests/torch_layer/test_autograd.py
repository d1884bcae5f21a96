"""torch_autograd: gradients by torch's own check, through whatever is around the layer; copies; weights that change.

In: a compiled cell of our own with two states and two inputs, in float64.
"""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import flags, network

import tvm_rnn as rnn
from tvm_rnn import InputError, WeightError, cell, sigmoid, tanh
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime_memory import smallest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

T, B = 5, 3


@cell(states="h c", output="y")
def small(x: "I", h: "H", c: "2", u: "2", *, W: "H I", R: "H H", V: "2 H"):
    """States of two widths, two inputs, an output that is no state."""
    h = tanh(W @ x + R @ h)
    c = sigmoid(c) * u + V @ h
    return h, c, h * c[0]


NET = network(small, 2, (3, 4), num_layers=2, dtype="float64")


@pytest.fixture(scope="module")
def compiled() -> Any:
    return rnn.to_torch(NET)


@pytest.fixture
def layer(compiled: Any) -> Any:
    return copy.deepcopy(compiled)


def tensors(value: Any, gradient: bool = False) -> Any:
    if isinstance(value, dict):
        return {n: tensors(v, gradient) for n, v in value.items()}
    return (
        [tensors(v, gradient) for v in value]
        if isinstance(value, list)
        else torch.tensor(value, requires_grad=gradient)
    )


def test_gradients_reach_inputs_states_and_parameters(layer: Any) -> None:
    case = draw(NET, T, B, **flags(T, B))
    x, state = tensors(case.x, True), tensors(case.state, True)
    y, last = layer(x, state, **case.rows)
    loss = (torch.tensor(case.gy) * y).sum()
    for name, value in last.items():
        pairs = zip(tensors(case.gstate[name]), value, strict=True)
        loss = loss + sum((g * v).sum() for g, v in pairs)
    loss.backward()
    found = {n: v.grad for n, v in named(x, state, dict(layer.named_parameters())).items()}
    assert_close(found, oracle(NET, case), "float64", T)


def test_gradients_within_a_budget_of_memory(layer: Any) -> None:
    """Time in parts: x is read once more, and torch notices if it has changed; a copy has the budget too."""
    module: Any = layer.compiled()
    case = draw(NET, 30, B, **flags(30, B))
    layer.max_bytes = smallest(module.memory_sizes(30, B)).bytes
    again = copy.deepcopy(layer)
    assert again.max_bytes == layer.max_bytes == module.max_bytes
    expected = rnn.reference(NET).gradients(case.x, case.state, case.gy, None, **case.rows)
    for own in (layer, again):
        x, state = tensors(case.x, True), tensors(case.state)
        own(x, state, **case.rows)[0].backward(torch.tensor(case.gy))
        found = {n: v.grad for n, v in {**x, **dict(own.named_parameters())}.items()}
        assert_close(found, {**expected[0], **expected[2]}, "float64", 30)
    x = tensors(case.x)
    y, _ = layer(x, tensors(case.state))
    x["x"].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    layer.max_bytes = None
    layer(x, tensors(case.state))[0].sum().backward()


def test_torchs_own_check_of_gradients(layer: Any) -> None:
    case = draw(NET, 3, 2)
    names = list(NET.weights)

    def run(x: Any, u: Any, h: Any, *weights: Any) -> Any:
        state = {"h": [h, *tensors(case.state["h"][1:])], "c": tensors(case.state["c"])}
        y, last = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), ((x, u), state))
        return y, *last["h"], last["c"] if isinstance(last["c"], torch.Tensor) else last["c"][0]

    given = [*tensors(case.x, True).values(), *tensors(case.state["h"][:1], True)]
    given += [torch.tensor(value, requires_grad=True) for value in NET.weights.values()]
    assert torch.autograd.gradcheck(run, given, atol=1e-6, fast_mode=True)


def test_a_part_of_the_results_is_enough(layer: Any) -> None:
    """Gradients of states alone, of y alone, of parameters alone; none where nothing asks for any."""
    case = draw(NET, T, B)
    x, state = tensors(case.x), tensors(case.state)
    y, last = layer(x, state)
    last["h"][1].sum().backward(retain_graph=True)
    first = {n: p.grad.clone() for n, p in layer.named_parameters()}
    layer.zero_grad()
    y.sum().backward()
    assert any((first[n] != p.grad).any() for n, p in layer.named_parameters())
    case.gy[:] = 1.0
    zero = {n: [0 * p for p in v] if isinstance(v, list) else 0 * v for n, v in case.gstate.items()}
    expected = rnn.reference(NET).gradients(case.x, case.state, case.gy, zero)[2]
    assert_close({n: p.grad for n, p in layer.named_parameters()}, expected, "float64", T)
    with torch.no_grad():
        y, last = layer(x, state)
    assert not y.requires_grad and not last["h"][0].requires_grad
    layer.requires_grad_(False)
    assert not layer(x)[0].requires_grad


def test_memory_goes_when_backward_has_run(layer: Any) -> None:
    """The tape is freed as torch's own saved tensors are; a second backward is torch's error."""
    case = draw(NET, T, B)
    y, _ = layer(tensors(case.x))
    array = weakref.ref(y.grad_fn.saved_tensors[0].untyped_storage())
    y.sum().backward()
    gc.collect()
    assert array() is None
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_what_torch_cannot_do_is_torchs_error(layer: Any) -> None:
    case = draw(NET, T, B)
    x = tensors(case.x, True)
    y, _ = layer(x)
    (g,) = torch.autograd.grad(y.sum(), x["x"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiate twice|does not require grad"):
        g.sum().backward()
    y, _ = layer(x)
    with torch.no_grad():
        layer.W_l0.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_weights_that_change_in_any_way_are_seen(layer: Any) -> None:
    case = draw(NET, T, B)
    x = tensors(case.x)
    for change in (lambda p: p.data.mul_(0.5), lambda p: setattr(p, "data", p.data * 0.5)):
        before, _ = layer(x)
        change(layer.R_l1)
        after, _ = layer(x)
        assert not torch.equal(before, after)
        assert_close(after.detach(), rnn.reference(_net_of(layer))(case.x)[0], "float64", T)


def _net_of(layer: Any) -> rnn.RNN:
    return network(small, 2, (3, 4), num_layers=2, dtype="float64").load(layer.weights())


def test_two_sets_of_weights_at_once(layer: Any) -> None:
    """A tape knows the weights that it was written with: what is loaded before backward runs does not matter."""
    case = draw(NET, T, B)
    x = tensors(case.x, True)
    half = {n: (0.5 * p).detach().requires_grad_() for n, p in layer.named_parameters()}
    y, _ = layer(x)
    other, _ = torch.func.functional_call(layer, half, (x,))
    y.sum().backward()
    expected = rnn.reference(NET).gradients(case.x, None, np.ones(y.shape))
    assert_close({n: p.grad for n, p in layer.named_parameters()}, expected[2], "float64", T)
    other.sum().backward()
    net = network(small, 2, (3, 4), num_layers=2, dtype="float64").load(half)
    expected = rnn.reference(net).gradients(case.x, None, np.ones(y.shape))
    assert_close({n: p.grad for n, p in half.items()}, expected[2], "float64", T)


def test_copies_have_weights_of_their_own(compiled: Any) -> None:
    x = tensors(draw(NET, T, B).x)
    first = copy.deepcopy(compiled)
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.V_l0.zero_()
    assert not torch.equal(first(x)[0], second(x)[0])
    del first
    gc.collect()
    assert torch.equal(copy.deepcopy(second)(x)[0], second(x)[0])


def test_in_a_larger_model(layer: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2, dtype=torch.float64), layer

        def forward(self, x: Any) -> Any:
            return self.second((self.first(x["x"]), x["u"]))[0].relu()

    model = Model()
    model(tensors(draw(NET, T, B).x)).sum().backward()
    assert model.first.weight.grad.abs().sum() > 0 and "second.W_l0" in model.state_dict()
    assert "small" in repr(model)


def test_refused(layer: Any) -> None:
    case = draw(NET, T, B)
    x = tensors(case.x)
    with pytest.raises(InputError, match="wrong dtype"):
        layer({n: v.float() for n, v in x.items()})
    with pytest.raises(InputError, match="the state is not the module's"):
        layer(x, {"h": tensors(case.state["h"])})
    with pytest.raises(InputError, match=r"the inputs are not the module's"):
        layer(x["x"])
    layer.float()
    with pytest.raises(WeightError, match=r"weight W_l0 does not fit[\s\S]*float32"):
        layer(x)
