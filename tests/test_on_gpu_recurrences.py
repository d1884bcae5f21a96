"""Recurrences over all time on a real GPU, against the oracle: one chunk and many, outputs poisoned, the same bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module
from linear_cells import exact

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 26
KINDS = {
    "min_gru": "float32",
    "t_rnn": "float64",
    "lru": "bfloat16",
    "rg_lru": "float16",
    "gated_delta_net": "bfloat16",
    "delta_net": "float16",
    "retnet": "bfloat16",
    "mlstm": "bfloat16",
    "mamba2": "bfloat16",
}


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu().numpy())


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_against_the_oracle(name: str, ragged: bool) -> None:
    dtype = KINDS[name]
    net = exact(rnn.RNN(rnn.cells.get(name), 24, 64, dtype=dtype).init(seed=1))
    module = gpu_module(f"recurrence_{name}_{dtype}", net)
    generator = torch.Generator(device="cuda").manual_seed(2)

    def drawn(*shape: int) -> Any:
        return torch.randint(-2, 3, shape, generator=generator, device="cuda").to(getattr(torch, dtype))

    reference = rnn.reference(net)
    for steps, batch in ((1, 3), (37, 5), (1000, 2)):
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
