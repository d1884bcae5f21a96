"""Compiled steps under torch.func: each member's results and gradients are those of a call of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tvm_rnn as rnn

torch = pytest.importorskip("torch")
mapped = pytest.importorskip("tvm_rnn.torch_layer.mapped")
functional_call, grad, jacrev, jvp, vmap = (
    getattr(torch.func, name) for name in ("functional_call", "grad", "jacrev", "jvp", "vmap")
)
N, T, B, X, H = 3, 5, 2, 3, 4
KIND = torch.float64
LAYERS: dict[str, Callable[[], Any]] = {
    "cell": lambda: rnn.nn.Cell(rnn.cells.gru, X, H, bidirectional=True, dtype=KIND),
    "drop-in": lambda: rnn.nn.LSTM(X, H, bidirectional=True, dtype=KIND),
}


@pytest.fixture
def compiled() -> Iterator[None]:
    """No warning: torch's operations say that they ran."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def by_member(function: Callable[..., Any], *given: tuple[Any, bool]) -> list[Any]:
    """A call for each; those arguments that differ are said to."""
    found = []
    for member in range(N):
        own = [
            ({n: v[member] for n, v in a.items()} if isinstance(a, dict) else a[member]) if m else a for a, m in given
        ]
        found.append(function(*own))
    return found


def check(found: Any, expected: list[Any]) -> None:
    if isinstance(found, dict):
        for name, value in found.items():
            check(value, [one[name] for one in expected])
        return
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-10)


def setting(name: str) -> tuple[Any, ...]:
    """A loss of weights and x; weights and x of one, and of each member."""
    torch.manual_seed(0)
    layer = LAYERS[name]()

    def loss(weights: Any, x: Any, state: Any = None) -> Any:
        y, last = functional_call(layer, weights, (x, state))
        parts = last if isinstance(last, tuple) else (last,)
        return y.square().sum() + sum(part.sin().sum() for part in parts)

    weights = {n: value.detach() for n, value in layer.named_parameters()}
    each = {n: torch.stack([value * (1 + 0.1 * m) for m in range(N)]) for n, value in weights.items()}
    return loss, layer, (weights, torch.randn(T, B, X, dtype=KIND)), (each, torch.randn(N, T, B, X, dtype=KIND))


def gradients(loss: Any) -> Callable[..., dict[str, Any]]:
    """By torch's own autograd, of a call without torch.func."""

    def run(weights: Any, x: Any) -> dict[str, Any]:
        own = {name: value.clone().requires_grad_() for name, value in weights.items()}
        return dict(zip(own, torch.autograd.grad(loss(own, x), [*own.values()]), strict=True))

    return run


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", LAYERS)
def test_results_of_each_member(name: str, compiled: None) -> None:
    loss, layer, (w, x), (ws, xs) = setting(name)

    def run(weights: Any, x: Any) -> Any:
        return functional_call(layer, weights, (x,))[0]

    for dims, pairs in {
        (0, None): ((ws, True), (x, False)),
        (None, 0): ((w, False), (xs, True)),
        (0, 0): ((ws, True), (xs, True)),
    }.items():
        given = [value for value, _ in pairs]
        check(vmap(run, dims)(*given), by_member(run, *pairs))
    check(vmap(run, (None, 2))(w, xs.movedim(0, 2)), by_member(run, (w, False), (xs, True)))
    h = torch.randn(N, 2, B, H, dtype=KIND)
    hs = (h, 0.5 * h) if name == "drop-in" else h

    def stated(h: Any) -> Any:
        return loss(w, x, h)

    pairs = [tuple(part[m] for part in hs) if isinstance(hs, tuple) else hs[m] for m in range(N)]
    check(vmap(stated)(hs), [stated(own) for own in pairs])


@pytest.mark.broad
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_each_member(name: str, compiled: None) -> None:
    loss, _, (w, _), (ws, xs) = setting(name)
    of_weights = gradients(loss)
    check(vmap(grad(loss))(ws, xs), by_member(of_weights, (ws, True), (xs, True)))
    samples = by_member(of_weights, (w, False), (xs, True))
    check(vmap(grad(loss), (None, 0))(w, xs), samples)

    def of_x(x: Any) -> Any:
        own = x.clone().requires_grad_()
        return torch.autograd.grad(loss(w, own), own)[0]

    check(vmap(grad(lambda own: loss(w, own)))(xs), [of_x(own) for own in xs])
    for key, value in grad(lambda weights: vmap(loss, (None, 0))(weights, xs).sum())(w).items():
        torch.testing.assert_close(value, sum(own[key] for own in samples))
    asked = {n: value.clone().requires_grad_() for n, value in ws.items()}
    found = torch.autograd.grad(vmap(loss)(asked, xs).sum(), [*asked.values()])
    check(dict(zip(asked, found, strict=True)), by_member(of_weights, (ws, True), (xs, True)))


@pytest.mark.broad
def test_vmap_of_vmap_and_of_gradients_alone(compiled: None) -> None:
    loss, layer, (w, x), (ws, xs) = setting("cell")

    def run(x: Any) -> Any:
        return functional_call(layer, w, (x,))[0].sum(0)

    expected = torch.autograd.functional.jacobian(run, x)
    torch.testing.assert_close(jacrev(run)(x), expected)
    two = {n: torch.stack([value, 0.5 * value]) for n, value in ws.items()}
    found = vmap(vmap(loss), (0, None))(two, xs)
    for outer, value in enumerate(found):
        check(value, by_member(loss, ({n: v[outer] for n, v in two.items()}, True), (xs, True)))


@pytest.mark.broad
@pytest.mark.parametrize("name", LAYERS)
def test_many_gradients_of_each_sample(name: str, compiled: None) -> None:
    """The vmap of jacrev's gradients is inside of the one that the calls were made in."""
    _, layer, (w, _), (_, xs) = setting(name)

    def run(weights: Any, x: Any) -> Any:
        return functional_call(layer, weights, (x,))[0][-1, 0]

    check(vmap(jacrev(run), (None, 0))(w, xs), by_member(jacrev(run), (w, False), (xs, True)))


@pytest.mark.broad
def test_gradients_of_gradients_of_members() -> None:
    """Outside of torch.func they are torch's operations."""
    loss, _, _, (ws, xs) = setting("cell")

    def second(run: Callable[..., Any], weights: Any, x: Any) -> list[Any]:
        own = [value.clone().requires_grad_() for value in weights.values()]
        first = torch.autograd.grad(run(dict(zip(weights, own, strict=True)), x).sum(), own, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), own))

    found = second(vmap(loss), ws, xs)
    expected = by_member(lambda w, x: second(loss, w, x), (ws, True), (xs, True))
    for number, value in enumerate(found):
        torch.testing.assert_close(value, torch.stack([own[number] for own in expected]), rtol=1e-8, atol=1e-9)


@pytest.mark.broad
def test_what_has_no_members_is_one_call_after_the_other() -> None:
    @rnn.cell
    def rows(x: "I", h: "H", *, table: "9 H", W: "H I"):
        return rnn.tanh(rnn.take(table, x[0]) + h + W @ x)

    layer = rnn.nn.Cell(rows, X, H, dtype=KIND)
    w = {n: value.detach() for n, value in layer.named_parameters()}
    ws, x = {n: torch.stack([value, 2 * value]) for n, value in w.items()}, torch.ones(T, B, X, dtype=KIND)

    def loss(weights: Any) -> Any:
        return functional_call(layer, weights, (x,))[0].square().sum()

    with pytest.warns(UserWarning, match=r"one call after the other[\s\S]*no members of this operation"):
        found = vmap(grad(loss))(ws)
    for member in range(2):
        expected = grad(loss)({n: value[member] for n, value in ws.items()})
        for key, value in expected.items():
            torch.testing.assert_close(found[key][member], value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on its first jvp
def test_what_compiled_code_serves() -> None:
    weight, x = torch.ones(3), torch.ones(2, 3)
    seen: list[Any] = []

    def run(w: Any, x: Any) -> Any:
        seen.append(mapped.served([x], [w]))
        return (w * x).sum()

    vmap(grad(run), (None, 0))(weight, x)
    grad(lambda w: vmap(run, (None, 0))(w, x).sum())(weight)
    grad(lambda w: grad(run)(w, x[0]).sum())(weight)
    jvp(lambda w: run(w, x[0]), (weight,), (weight,))
    assert seen == [True, False, None, None]
