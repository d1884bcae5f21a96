"""torch_autograd: gradients by torch's own check, through whatever is around the layer; copies; weights that change.

In: a compiled cell of our own with two states and two inputs, in float64.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import flags, network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, InputError, TvmRnnError, WeightError, cell, sigmoid, softmax, tanh
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime_memory import smallest
from tvm_rnn.torch_layer.autograd import each

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


@pytest.mark.broad
def test_gradients_of_constants() -> None:
    """One sum over layers, directions and steps; what made the constant gets its gradient too."""

    @cell(constants="memory bias")
    def reading(x: "I", memory: "S M", h: "H", bias: "", *, W: "H I", C: "H M", Q: "M H"):
        return tanh(W @ x + C @ (softmax(memory @ (Q @ h)) @ memory) + bias)

    net = network(reading, 2, 3, S=3, M=2, dtype="float64", num_layers=2, bidirectional=True)
    layer, rng = rnn.to_torch(net), np.random.default_rng(0)
    x, base, bias = (torch.tensor(rng.normal(size=s), requires_grad=True) for s in ((T, B, 2), (B, 3, 2), (B,)))
    gy, lengths = rng.normal(size=(T, B, 6)), [T, 0, 2]
    y, last = layer(x, memory=3.0 * base, bias=bias, lengths=lengths)
    (y * torch.tensor(gy)).sum().backward()
    given = {"memory": 3.0 * base.detach().numpy(), "bias": bias.detach().numpy()}
    gx, gstate, _ = rnn.reference(net).gradients(x.detach().numpy(), None, gy, lengths=lengths, **given)
    found = {"x": x.grad, "memory": base.grad, "bias": bias.grad}
    expected = {"x": gx, "memory": 3.0 * gstate["memory"].sum(0), "bias": gstate["bias"].sum(0)}
    assert_close(found, expected, "float64", T)
    assert last["memory"].shape == (4, B, 3, 2)
    with pytest.raises(InputError, match="the constant bias is not given"):
        layer(x, memory=base)


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


def test_what_a_transform_does_not_touch_is_only_used(layer: Any) -> None:
    x = tuple(tensors(draw(NET, T, B).x).values())

    def total(*x: Any) -> Any:
        return layer(x)[0].sum()

    with torch.autograd.forward_ad.dual_level():
        total(*x).backward()
    assert layer.W_l0.grad is not None
    layer.requires_grad_(False)
    assert torch.func.vmap(lambda scale: scale * total(*x))(torch.ones(2)).tolist() == [total(*x).item()] * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripts_are_refused(layer: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot look into compiled code[\s\S]*torch.jit.script[\s\S]*do:"):
        torch.jit.script(torch.nn.Sequential(layer))


def test_weights_that_something_makes(layer: Any) -> None:
    """As torch's parametrizations do: gradients reach what they are made of."""
    x = tensors(draw(NET, T, B).x)
    expected, _ = layer(x)
    expected.sum().backward()
    torch.nn.utils.parametrizations.weight_norm(layer, "R_l1")
    y, _ = layer(x)
    assert_close(y.detach(), expected.detach(), "float64", T)
    y.sum().backward()
    scale = layer.parametrizations.R_l1.original0
    assert scale.grad is not None
    with torch.no_grad():
        scale.mul_(2.0)
    net = network(small, 2, (3, 4), num_layers=2, dtype="float64").load(layer.weights())
    assert_close(layer(x)[0].detach(), rnn.reference(net)(draw(NET, T, B).x)[0], "float64", T)


def test_autocast_has_the_layers_dtype(layer: Any) -> None:
    case = draw(NET, T, B)
    x, state = tensors(case.x, True), tensors(case.state)
    with torch.autocast("cpu"):
        halves = {n: v.bfloat16() for n, v in x.items()}
        y, _ = layer(halves, each(state, torch.Tensor.bfloat16))
        assert y.dtype == torch.float64
        y.sum().backward()
    rounded = {n: v.bfloat16().double() for n, v in x.items()}
    expected, _ = layer(rounded, each(state, lambda part: part.bfloat16().double()))
    np.testing.assert_array_equal(y.detach(), expected.detach())
    assert all(v.grad is not None for v in x.values())


def test_a_state_is_a_dict_that_unpacks_as_torchs(layer: Any) -> None:
    x = tensors(draw(NET, T, B).x)
    for record in (True, False):
        with torch.set_grad_enabled(record):
            _, state = layer(x)
        assert list(state) == [n for n, _ in state.items()] == ["h", "c"] and state == {**state} == dict(state)
        assert list(zip(state, range(2), strict=True)) == [("h", 0), ("c", 1)]
        _, (h, c) = layer(x, state)
        assert type(h) is type(state["h"]) and type(c) is type(state["c"])
        h, *rest = state
        assert h is state["h"] is state.h is state[0] and rest[0] is state["c"] is state[-1]
    assert type(copy.deepcopy(state)) is type(pickle.loads(pickle.dumps(state))) is dict


def test_refused(layer: Any) -> None:
    case = draw(NET, T, B)
    x = tensors(case.x)
    with pytest.raises(InputError, match="wrong dtype"):
        layer({n: v.float() for n, v in x.items()})
    with pytest.raises(InputError, match="the state is not the module's"):
        layer(x, {"h": tensors(case.state["h"])})
    with pytest.raises(InputError, match=r"the inputs are not the module's"):
        layer(x["x"])
    with pytest.raises(InputError, match=r"tuple[\s\S]*dict of all states"):
        layer(x, tuple(tensors(case.state).values()))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x["x"], [T, 1, 1])
    with pytest.raises(InputError, match=r"takes tensors[\s\S]*PackedSequence[\s\S]*lengths=lengths"):
        layer({**x, "x": packed})
    with pytest.raises(TvmRnnError, match="cannot be pickled"):
        pickle.dumps(layer.compiled())
    layer.float()
    with pytest.raises(WeightError, match=r"weight W_l0 does not fit[\s\S]*float32"):
        layer(x)
