"""Recurrences over all time on a real GPU, against the oracle: one chunk and many, outputs poisoned, the same bits.

Both passes of training too, of a case that TVM_RNN_SEED (0) draws. Machines without a compiler need TVM_RNN_MODULES, a
folder that has the modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from derivatives import Case, draw, named, oracle
from gpu_modules import gpu_module
from linear_cells import OWN, enduring, exact, stretches
from networks import flags
from on_gpu import LIMITS, ROUNDING, plain, poison, rounded, there

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 26
SEED = int(os.environ.get("TVM_RNN_SEED", "0"))
KINDS = [
    ("min_gru", "float32"),
    ("t_rnn", "float64"),
    ("lru", "bfloat16"),
    ("rg_lru", "float16"),
    # matrices, in chunks of time
    ("gated_delta_net", "bfloat16"),
    ("delta_net", "float16"),
    ("retnet", "bfloat16"),
    ("mlstm", "bfloat16"),
    ("mamba2", "bfloat16"),
    ("gla", "bfloat16"),
    ("hgrn2", "float16"),
    ("delta_by_key", "bfloat16"),
    ("gated_delta_net_conv", "float16"),
    ("given_delta", "bfloat16"),
    # and step by step, in one launch
    ("gated_delta_net", "float32"),
    ("gla", "float32"),
    ("hgrn2", "float32"),
    ("rwkv7", "float16"),
    ("corrected_twice", "bfloat16"),
]

# Heads, of which some share a key; and such of 128 keys and values.
SIZES = {"gated_delta_net_conv": {"N": 2, "M": 2}, "gla-heads": {"N": 2}, "rwkv7-heads": {"N": 2}}
HIDDEN = {"gla-heads": 128}


def network(name: str, dtype: str) -> rnn.RNN:
    """Of a cell, or one with heads."""
    cell, own = name.partition("-")[0], SIZES.get(name, {})
    found = OWN[cell][0] if cell in OWN else rnn.cells.get(cell)
    return exact(rnn.RNN(found, 24, HIDDEN.get(name, 64), dtype=dtype, **own).init(seed=1))


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("name", "dtype"), KINDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_against_the_oracle(name: str, dtype: str, ragged: bool) -> None:
    net = network(name, dtype)
    check_results(gpu_module(f"recurrence_{name}_{dtype}", net), net, ((1, 3), (37, 5), (1000, 2)), ragged)


@pytest.mark.broad_after(1)
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.parametrize("name", ["mlstm", "delta_net", "gated_delta_net"])
@pytest.mark.parametrize("hidden", [64, 128])
@pytest.mark.parametrize("ragged", [False, True])
def test_few_steps_and_many_rows_take_as_many_launches(name: str, hidden: int, ragged: bool) -> None:
    """Less than a chunk of time, and matrices that fill the GPU: never a launch per step."""
    net = exact(rnn.RNN(rnn.cells.get(name), 24, hidden, dtype="bfloat16").init(seed=1))
    module = gpu_module(f"recurrence_{name}_{hidden}_bfloat16", net)
    check_results(module, net, ((2, 3), (7, 160), (16, 132)), ragged)
    x = torch.zeros(16, 132, 24, dtype=torch.bfloat16, device="cuda")
    few, many = (kernels(partial(module, x[:steps])) for steps in (2, 16))
    assert 0 < few == many


def kernels(call: Callable[[], Any]) -> int:
    """How many kernels a call launches."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


def check_results(module: Any, net: rnn.RNN, calls: Iterable[tuple[int, int]], ragged: bool) -> None:
    """calls: T and B. ragged: with lengths and resets. From states that belong together."""
    generator = torch.Generator(device="cuda").manual_seed(2)
    dtype = net.dtype

    def drawn(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, generator=generator, device="cuda").to(getattr(torch, dtype))

    reference = rnn.reference(net)
    for steps, batch in calls:
        x = drawn(steps, batch, 24)
        _, reached = reference(plain(drawn(8, batch, 24)))  # states that belong together, as a normaliser and a matrix
        state = {key: torch.as_tensor(value).to(x) for key, value in reached.items()}
        more: dict[str, Any] = {}
        if ragged:
            more["lengths"] = torch.arange(steps, steps - batch, -1, device="cuda").clamp(min=0)
            more["reset"] = torch.rand(steps, batch, generator=generator, device="cuda") < 0.05
        found = [run_poisoned(partial(module, x, state, **more), BYTES) for _ in range(REPEATS)]
        (y, last), *others = found
        assert all(torch.equal(y, again) for again, _ in others)
        host = {key: value.cpu().numpy() for key, value in more.items()}
        expected, states = reference(plain(x), {key: plain(value) for key, value in state.items()}, **host)
        assert_close(plain(y), expected, dtype, steps, "y")
        assert_close({key: plain(value) for key, value in last.items()}, states, dtype, steps, "state")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_hundred_thousand_steps_lose_no_more_than_the_table_says(dtype: str) -> None:
    """Gates that stay near 0 and near 1, keys that repeat, zeros; segments of time that run at once."""
    steps, kind = 100_000, getattr(torch, dtype)
    net = exact(rnn.RNN(enduring, 4, K=32, dtype=dtype).init(seed=1))
    net.weights["A_l0"][:, :, :2] = 0.0  # what sets gates
    module = gpu_module(f"recurrence_enduring_{dtype}", net)
    x = there(stretches(steps), kind)
    found = [run_poisoned(partial(module, x), BYTES) for _ in range(REPEATS)]
    (y, last), *others = found
    for again, states in others:
        assert torch.equal(y, again) and all(torch.equal(last[name], states[name]) for name in last)
    wanted, states = rnn.reference(net)(plain(x))
    for row in range(5):  # each by itself: a large one would hide the others
        assert_close(plain(y)[:, row], wanted[:, row], dtype, steps, f"y of row {row}")
        for name, value in states.items():
            assert_close(plain(last[name])[:, row], value[:, row], dtype, steps, f"{name} of row {row}")


VECTORS = {"min_gru": "float32", "lru": "bfloat16", "rg_lru": "float16"}
MATRICES = {
    "mlstm": "float32",
    "gated_delta_net": "bfloat16",
    "rwkv7": "float16",
    "gla": "float16",
    "gla-heads": "bfloat16",
    "rwkv7-heads": "bfloat16",
    "mamba2": "bfloat16",
    "corrected_twice": "float32",
    "given_delta": "bfloat16",
}
TRAINED = VECTORS | MATRICES


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_against_the_oracle(name: str, ragged: bool) -> None:
    """Both passes, in a number of launches that does not grow with the time."""
    dtype = TRAINED[name]
    net = network(name, dtype)
    module = gpu_module(f"recurrence_training_{name}_{dtype}", net, training=True)
    kind = getattr(torch, dtype)
    for steps, batch in ((1, 3), (37, 5), (400 if name in MATRICES else 1500, 2)):
        rows = flags(steps, batch) if ragged else {}
        case = draw(net, steps, batch, seed=SEED, **rows)
        x, state, gy, gstate = (there(value, kind) for value in (case.x["x"], case.state, case.gy, case.gstate))
        first: dict[str, Any] = {}
        for _ in range(REPEATS):
            poison()
            y, last, tape = module.forward_train(x, state, **rows)
            poison()
            found = results(y, last, named(*module.backward(tape, gy, gstate)))
            first = first or {key: value.clone() for key, value in found.items()}
            assert all(torch.equal(value, first[key]) for key, value in found.items())
        expected = results(*rnn.reference(net)(case.x, case.state, **rows), oracle(net, case))
        for key, value in expected.items():
            gap = float(np.linalg.norm(plain(first[key]) - value))
            limit = LIMITS[dtype] * max(float(np.linalg.norm(value)), 1e-30)
            assert gap < limit or gap < limit + 2 * conditioning(net, case, key, value), (key, steps, gap)


def conditioning(net: rnn.RNN, case: Case, key: str, value: Any) -> float:
    """How far the exact gradient goes where inputs are off by a rounding. One number is a sum over all steps, of either
    sign: it may be near 0 where its terms are not. mamba2 has one decay: with draws 0 to 6 its gradient is 4 to 60
    after 400 steps, and moves by 0.1 to 0.2 whatever it is."""
    found = [0.0]
    for seed in range(3):
        rng, rounding = np.random.default_rng(seed), ROUNDING[net.dtype]
        other = replace(case, x=rounded(case.x, rounding, rng), gy=rounded(case.gy, rounding, rng))
        found.append(float(np.linalg.norm(oracle(net, other).get(key, value) - value)))
    return max(found)


def results(y: Any, last: Any, gradients: Any) -> dict[str, Any]:
    """Of both passes, by name."""
    return {"y": y, **{f"new {name}": value for name, value in last.items()}, **gradients}
