"""Calls and gradients of a module on a real GPU beside the oracle: memory poisoned, the same bits each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from derivatives import Case, named, oracle, with_weights
from headed_cells import both_ways

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import assert_close

REPEATS, BYTES = 20, 1 << 26
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "tf32": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
# Relative error in the Euclidean norm.
LIMITS = {"bfloat16": 2e-2, "float16": 4e-3, "tf32": 2e-3, "float32": 1e-5, "float64": 1e-12}


def calm(net: rnn.RNN) -> rnn.RNN:
    """The network, with a quarter of its weights where, as drawn, they make a chaotic cell: of `both_ways` with 200
    units, inputs moved by 2^-20 move the exact output by 15 % after 36 steps. With a quarter, S has two stable means of
    either sign and leaves 0 for one of them at a step that roundings decide: with operands rounded to 8 bits, y is off
    by 0.1 to 2.7 %, as inputs are drawn. With T smaller still, it stays."""
    if net.cell is not both_ways:
        return net
    return net.load({name: value / (64 if name.startswith("T_") else 4) for name, value in net.weights.items()})


def plain(value: Any) -> np.ndarray:
    """A tensor, or an array, in float64."""
    return np.asarray(value if isinstance(value, np.ndarray) else value.double().cpu().numpy(), np.float64)


def check_calls(module: Any, net: rnn.RNN, calls: Iterable[tuple[int, int, bool]]) -> None:
    """calls: T, B, and whether rows have lengths and resets. Inputs are drawn here."""
    import torch

    generator, reference = torch.Generator(device="cuda").manual_seed(2), rnn.reference(net)
    for steps, batch, ragged in calls:
        drawn = torch.randn((steps, batch, net.input_size), generator=generator, device="cuda")
        x = drawn.to(getattr(torch, net.dtype))
        more: dict[str, Any] = {}
        if ragged:
            more["lengths"] = torch.arange(steps, steps - batch, -1, device="cuda").clamp(min=0)
            more["reset"] = torch.rand(steps, batch, generator=generator, device="cuda") < 0.05
        found = [run_poisoned(partial(module, x, **more), BYTES) for _ in range(REPEATS)]
        (y, last), *others = found
        for again, ends in others:
            assert torch.equal(y, again) and all(torch.equal(last[key], value) for key, value in ends.items())
        expected, states = reference(plain(x), **{key: value.cpu().numpy() for key, value in more.items()})
        assert_close(plain(y), expected, net.dtype, steps, "y")
        assert_close({key: plain(value) for key, value in last.items()}, states, net.dtype, steps, "state")


def there(value: Any, kind: Any) -> Any:
    import torch

    if isinstance(value, dict):
        return {name: there(part, kind) for name, part in value.items()}
    if isinstance(value, list):
        return [there(part, kind) for part in value]
    return torch.as_tensor(np.asarray(value, np.float64), device="cuda").to(kind)


def poison() -> None:
    """What torch's allocator gives next is NaN."""
    import torch

    blocks = [torch.full((1 << size,), float("nan"), device="cuda") for size in range(6, 25) for _ in range(4)]
    del blocks


Exact = Callable[[rnn.RNN, Case], dict[str, Any]]
Near = Callable[[dict[str, Any], Exact, rnn.RNN, Case, str], None]


def assert_near(found: dict[str, Any], exact: Exact, net: rnn.RNN, case: Case, precision: str) -> None:
    """Each array in the Euclidean norm; a failure names all that are off."""
    limit, gaps = LIMITS[precision], gaps_of(found, exact(net, case))
    off = {key: gap for key, gap in gaps.items() if not gap < limit}
    assert not off, (precision, limit, off)


def gaps_of(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """How far each array is from what is expected, in parts of its norm."""
    sizes = {key: max(float(np.linalg.norm(value)), 1e-30) for key, value in expected.items()}
    return {key: float(np.linalg.norm(plain(found[key]) - value)) / sizes[key] for key, value in expected.items()}


def check_results(module: Any, net: rnn.RNN, case: Case, precision: str = "", near: Near = assert_near) -> None:
    """One call of a module: y and the last state. precision: of products; "": the network's dtype."""
    import torch

    x, state = given(net, case)
    results = [run_poisoned(partial(module, x, state, **case.rows), BYTES) for _ in range(REPEATS)]
    found = [named({"y": y}, last, {}) for y, last in results]
    assert all(torch.equal(again[key], value) for again in found for key, value in found[0].items())
    near(found[0], results_of, net, case, precision or net.dtype)


def results_of(net: rnn.RNN, case: Case) -> dict[str, Any]:
    """What the oracle gives: y and the last state."""
    y, last = rnn.reference(net)(case.x, case.state, **case.rows)
    return dict(named({"y": y}, last, {}))


def given(net: rnn.RNN, case: Case) -> tuple[Any, Any]:
    """Input and state of a case on the GPU, in the network's dtype."""
    import torch

    x, state = (there(value, getattr(torch, net.dtype)) for value in (case.x, case.state))
    return x if len(x) > 1 else next(iter(x.values())), state


def rounded(value: Any, rounding: float, rng: np.random.Generator) -> Any:
    """Arrays, in float64, of which every number is off by at most one rounding."""
    if isinstance(value, dict):
        return {name: rounded(part, rounding, rng) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part, rounding, rng) for part in value]
    exactly = np.asarray(value).astype(np.float64)
    return exactly * (1 + rounding * rng.uniform(-1, 1, exactly.shape))


def moved(net: rnn.RNN, case: Case, rounding: float, seed: int) -> tuple[rnn.RNN, Case]:
    """Network and case, every number off by at most one rounding."""
    rng = np.random.default_rng(seed)
    names = ("x", "state", "gy", "gstate")
    other = replace(case, **{name: rounded(getattr(case, name), rounding, rng) for name in names})
    return with_weights(net, rounded(net.weights, rounding, rng)), other


def check_gradients(module: Any, net: rnn.RNN, case: Case, precision: str = "", near: Near = assert_near) -> None:
    """Both passes of a module for training. precision: of products; "": the network's dtype."""
    import torch

    kind, last = getattr(torch, net.dtype), None
    x, state = given(net, case)
    gy, gstate = there(case.gy, kind), there(case.gstate, kind)
    for _ in range(REPEATS):
        poison()
        y, _, tape = module.forward_train(x, state, **case.rows)
        poison()
        found = {**named(*module.backward(tape, gy, gstate)), "y": y}
        assert last is None or all(torch.equal(found[key], last[key]) for key in found)
        last = {key: value.clone() for key, value in found.items()}
    assert last is not None
    near(last, gradients_of, net, case, precision or net.dtype)


def gradients_of(net: rnn.RNN, case: Case) -> dict[str, Any]:
    """What the oracle gives: all gradients, and y."""
    return {**oracle(net, case), "y": rnn.reference(net)(case.x, case.state, **case.rows)[0]}
