"""in_torch: gradients of gradients of any cell, and what torch looks into: torch's transforms and forward mode.

In: compiled networks in float64. Second derivatives are compared with differences of the compiled first ones, with
torch's own check, and with those of a loop over time that a user of torch would write.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
from derivatives import draw
from networks import flags, network

import tvm_rnn as rnn
from tvm_rnn import InputError, cell, sigmoid, softmax, tanh
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:.*torch.jit")]  # which torch.func uses

T, B, X, H = 4, 3, 2, 3
REGULARISED = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
RECURRENT = ["lstm", "gru", "elman", "lstm_projection", "lstm_peephole", "ligru"]
LINEAR = ["min_gru", "lru", "mlstm", "gated_delta_net"]


@cell(states="h c", output="y")
def small(x: "I", h: "H", c: "2", u: "2", *, W: "H I", R: "H H", V: "2 H"):
    """States of two widths, two inputs, an output that is no state."""
    h = tanh(W @ x + R @ h)
    c = sigmoid(c) * u + V @ h
    return h, c, h * c[0]


def by_hand(x: Any, u: Any, W: Any, R: Any, V: Any) -> Any:
    """The same as a user of torch writes it."""
    h, c, y = x.new_zeros(B, H), x.new_zeros(B, 2), []
    for t in range(T):
        h = torch.tanh(x[t] @ W.T + h @ R.T)
        c = torch.sigmoid(c) * u[t] + h @ V.T
        y.append(h * c[:, :1])
    return torch.stack(y)


@pytest.fixture(scope="module")
def layer() -> Any:
    return rnn.to_torch(network(small, X, H, dtype="float64"))


@pytest.fixture
def x() -> Any:
    rng = np.random.default_rng(0)
    return tuple(torch.tensor(rng.normal(size=(T, B, 2)), requires_grad=True) for _ in range(2))


@pytest.fixture
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch's own operations ran this layer")
        yield


def penalty(y: Any, inputs: Any) -> Any:
    """A loss that has gradients in it, as WGAN-GP's."""
    slopes = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
    return sum((slope.square().sum((0, 2)) - 1.0).square().sum() for slope in slopes)


@pytest.mark.broad
def test_a_gradient_penalty_is_that_of_a_loop_by_hand(layer: Any, x: Any) -> None:
    leaves = [*x, *layer.parameters()]
    ours = torch.autograd.grad(penalty(layer(x)[0], x), leaves)
    theirs = torch.autograd.grad(penalty(by_hand(*leaves), x), leaves)
    assert_close([g.numpy() for g in ours], [g.numpy() for g in theirs], "float64", T)


@pytest.mark.broad
def test_rows_states_and_many_gradients_at_once(layer: Any, x: Any) -> None:
    """torch's own check of second derivatives; arrays that change after the call change nothing."""
    case = draw(layer.net, T, B, **flags(T, B))
    states = {n: torch.tensor(v, requires_grad=True) for n, v in case.state.items()}
    names = [name for name, _ in layer.named_parameters()]
    rows = {"lengths": case.rows["lengths"].copy(), "reset": torch.tensor(case.rows["reset"])}
    y, last = layer(x, states, **rows)
    expected = torch.autograd.grad(y.square().sum() + last["c"].sum(), x[0], retain_graph=True)[0]
    rows["lengths"][:] = T
    rows["reset"].fill_(False)
    found = torch.autograd.grad(y.square().sum() + last["c"].sum(), x[0], create_graph=True)[0]
    assert_close(found.detach(), expected, "float64", T)

    def run(first: Any, second: Any, h: Any, c: Any, *weights: Any) -> Any:
        given = dict(zip(names, weights, strict=True))
        y, last = torch.func.functional_call(layer, given, ((first, second), {"h": h, "c": c}), case.rows)
        return y, last["h"], last["c"]

    given = (*x, *states.values(), *(p.detach().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True)
    rows_of = torch.autograd.functional.jacobian(lambda value: layer((value, x[1]))[0], x[0])
    whole = torch.autograd.functional.jacobian(lambda value: layer((value, x[1]))[0], x[0], vectorize=True)
    assert_close(whole, rows_of, "float64", T)


@pytest.mark.broad
def test_masks_of_regularisers_are_the_same_ones() -> None:
    layer = rnn.to_torch(network("elman", X, H, num_layers=2, dtype="float64", **REGULARISED))
    value = torch.tensor(np.random.default_rng(1).normal(size=(T, B, X)), requires_grad=True)
    leaves = [value, *layer.parameters()]
    found = []
    for create in (False, True):
        y, last = layer(value, seed=5, first_step=2)
        loss = y.square().sum() + last["h"].sum()
        found.append([g.detach().numpy() for g in torch.autograd.grad(loss, leaves, create_graph=create)])
    assert_close(*found, "float64", T)
    assert torch.autograd.gradgradcheck(lambda v: layer(v, seed=5)[0], (value,), fast_mode=True)


def test_what_changed_in_place_is_torchs_error(layer: Any, x: Any) -> None:
    values = [value.detach().clone() for value in x]
    y, _ = layer(tuple(values))
    values[0].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), [*layer.parameters()], create_graph=True)


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", [*RECURRENT, *LINEAR, "gru_attention", "conv_lstm"])
def test_second_derivatives_are_differences_of_the_compiled_first_ones(name: str) -> None:
    """Along one random direction of everything; first derivatives are the same in both ways."""
    net = network(name, X, H, num_layers=2, dtype="float64")
    layer, case, rng = rnn.to_torch(net), draw(net, T, B, **flags(T, B)), np.random.default_rng(7)
    names = [name for name, _ in layer.named_parameters()]
    start = [*case.x.values(), *(v for value in case.state.values() for v in _listed(value))]
    leaves = [torch.tensor(v, requires_grad=True) for v in (*start, *(p.detach().numpy() for p in layer.parameters()))]
    ways = [torch.tensor(rng.choice([-1.0, 1.0], size=leaf.shape)) for leaf in leaves]

    def gradients(values: Any, create: bool) -> Any:
        rest = iter(values)
        inputs = {n: next(rest) for n in case.x}
        state = {n: [next(rest) for _ in v] if isinstance(v, list) else next(rest) for n, v in case.state.items()}
        y, last = torch.func.functional_call(layer, dict(zip(names, rest, strict=True)), (inputs, state), case.rows)
        loss = y.square().sum() + sum(v.square().sum() for value in last.values() for v in _listed(value))
        return torch.autograd.grad(loss, values, create_graph=create)

    once, twice = gradients(leaves, False), gradients(leaves, True)
    assert_close([g.detach().numpy() for g in twice], [g.numpy() for g in once], "float64", T)
    products = torch.autograd.grad(sum((g * w).sum() for g, w in zip(twice, ways, strict=True)), leaves)
    step = 1e-5
    ends = [
        gradients([(v + s * w).detach().requires_grad_() for v, w in zip(leaves, ways, strict=True)], False)
        for s in (step, -step)
    ]
    scale = max(float(g.abs().max()) for g in (*ends[0], *products))
    for product, up, down in zip(products, *ends, strict=True):
        assert float((product - (up - down) / (2 * step)).abs().max()) < 1e-6 * max(1.0, scale), name


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


@pytest.mark.broad
def test_a_constant_has_second_derivatives() -> None:
    @cell(constants="memory")
    def reading(x: "I", memory: "S M", h: "H", *, W: "H I", C: "H M", Q: "M H"):
        return tanh(W @ x + C @ (softmax(memory @ (Q @ h)) @ memory))

    layer = rnn.to_torch(network(reading, X, H, S=3, M=2, dtype="float64", num_layers=2, bidirectional=True))
    rng = np.random.default_rng(0)
    given = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in ((T, B, X), (B, 3, 2))]
    assert torch.autograd.gradgradcheck(lambda v, m: layer(v, memory=m, lengths=[T, 0, 2])[0], given, fast_mode=True)


# --- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.broad
def test_transforms_of_functions(layer: Any, x: Any, quiet: None) -> None:
    """grad, jvp, vmap and per-sample gradients of torch.func, and forward mode."""
    first, second = (value.detach() for value in x)
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def of_weights(given: Any, x: Any, u: Any) -> Any:
        return torch.func.functional_call(layer, given, ((x, u),))[0].square().sum()

    expected = torch.autograd.grad(layer(x)[0].square().sum(), [*layer.parameters()])
    found = torch.func.grad(of_weights)(weights, first, second)
    assert_close([g.numpy() for g in found.values()], [g.numpy() for g in expected], "float64", T)
    each = torch.func.vmap(torch.func.grad(of_weights), in_dims=(None, 1, 1))
    samples = each(weights, first[:, :, None], second[:, :, None])
    assert_close([g.sum(0).numpy() for g in samples.values()], [g.numpy() for g in expected], "float64", T)
    members = {name: torch.stack([value, 0.5 * value]) for name, value in weights.items()}
    losses = torch.func.vmap(of_weights, in_dims=(0, None, None))(members, first, second)
    assert float(losses[0]) == pytest.approx(float(of_weights(weights, first, second)), rel=1e-12)

    def run(value: Any) -> Any:
        return layer((value, second))[0]

    way = torch.ones_like(first)
    _, ours = torch.func.jvp(run, (first,), (way,))
    _, theirs = torch.func.jvp(lambda value: by_hand(value, second, *weights.values()), (first,), (way,))
    assert_close(ours.detach(), theirs, "float64", T)
    with torch.autograd.forward_ad.dual_level():
        y = run(torch.autograd.forward_ad.make_dual(first, way))
        assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent.detach(), theirs, "float64", T)
        layer(x)[0].sum().backward()
    layer.zero_grad()


@pytest.mark.broad
def test_hessians(layer: Any, x: Any, quiet: None) -> None:
    first, second = (value.detach() for value in x)

    def loss(value: Any) -> Any:
        return layer((value, second))[0].square().sum()

    whole = torch.func.hessian(loss)(first).reshape(first.numel(), -1)
    other = torch.autograd.functional.hessian(loss, first).reshape(first.numel(), -1)
    reverse = torch.func.jacrev(torch.func.jacrev(loss))(first).reshape(first.numel(), -1)
    assert_close(whole.detach(), other, "float64", T)
    assert_close(reverse.detach(), other, "float64", T)


def test_it_is_said_once_that_torch_runs_it(layer: Any, x: Any) -> None:
    own, values = copy.deepcopy(layer), tuple(value.detach() for value in x)
    own._told.clear()
    with pytest.warns(UserWarning, match=r"torch's own operations ran this layer[\s\S]*torch.func") as told:
        for _ in range(2):
            torch.func.jvp(lambda v: own((v, values[1]))[0], values[:1], values[:1])
    places = [item.filename for item in told if "ran this layer" in str(item.message)]
    assert places == [__file__]


def test_what_compiled_code_refuses_is_refused(layer: Any, x: Any, quiet: None) -> None:
    def run(*given: Any, **rows: Any) -> Any:
        return torch.func.grad(lambda value: layer((value, *given[1:2]), *given[2:], **rows)[0].sum())(given[0])

    first, second = (value.detach() for value in x)
    zeros = torch.zeros(1, B, H, dtype=torch.float64)
    for given, rows, text in (
        ((first[0], second), {}, "x has the wrong shape"),
        ((first.float(), second), {}, "x has the wrong dtype"),
        ((first, second[1:]), {}, "u has the wrong shape"),
        ((first, second, {"h": zeros}), {}, "the state is not the module's"),
        ((first, second, {"h": zeros, "c": zeros}), {}, "state c has the wrong shape"),
        ((first, second), {"lengths": [1, 2, T + 1]}, "lengths out of range"),
        ((first, second), {"reset": np.zeros((T, B))}, "reset does not fit x"),
    ):
        with pytest.raises(InputError, match=text):
            run(*given, **rows)


# --- what people do with them -----------------------------------------------------------------------------------------


@pytest.mark.broad
def test_a_critic_with_a_gradient_penalty_trains() -> None:
    """WGAN-GP's critic learns to tell noise with a trend from noise: the distance grows, slopes come near 1."""
    torch.manual_seed(0)
    steps, batch = 8, 16

    class Critic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = rnn.to_torch(rnn.RNN(rnn.cells.gru, 1, 8).init(seed=0))
            self.head = torch.nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x)[0][-1])[:, 0]

    critic, losses = Critic(), []
    updates = torch.optim.Adam(critic.parameters(), lr=0.02)
    trend = torch.linspace(0.0, 1.0, steps)[:, None, None]
    for _ in range(60):
        real, fake = trend + 0.3 * torch.randn(steps, batch, 1), 0.3 * torch.randn(steps, batch, 1)
        between = torch.lerp(real, fake, torch.rand(1, batch, 1)).requires_grad_()
        (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        norms = slopes.square().sum((0, 2)).sqrt()
        distance = critic(real).mean() - critic(fake).mean()
        loss = 10.0 * (norms - 1.0).square().mean() - distance
        updates.zero_grad()
        loss.backward()
        updates.step()
        losses.append((distance.item(), norms.mean().item()))
    assert losses[-1][0] > 1.0 > 0.1 > losses[0][0] and abs(losses[-1][1] - 1.0) < 0.3


@pytest.mark.broad
def test_a_network_learns_to_learn() -> None:
    """MAML: the loss after one inner step of gradient descent goes down, by gradients through that step."""
    torch.manual_seed(0)
    layer = rnn.to_torch(rnn.RNN(rnn.cells.elman, 1, 8).init(seed=0))
    head = torch.nn.Linear(8, 1)
    updates, losses = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.01), []

    def loss(weights: Any, x: Any, wanted: Any) -> Any:
        return (head(torch.func.functional_call(layer, weights, (x,))[0]) - wanted).square().mean()

    for _ in range(60):
        gain, x = torch.rand(1, 8, 1) + 0.5, torch.randn(6, 8, 1)
        weights = dict(layer.named_parameters())
        slopes = torch.autograd.grad(loss(weights, x, gain * x), [*weights.values()], create_graph=True)
        inner = {n: p - 0.1 * g for (n, p), g in zip(weights.items(), slopes, strict=True)}
        outer = loss(inner, x, gain * x)
        updates.zero_grad()
        outer.backward()
        updates.step()
        losses.append(outer.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
