"""Calls of a few steps on a real GPU: on both sides of where persistent kernels begin, with states, ragged batches and
restarts, against the oracle; calls of one step read and write states where the user has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned, same_bits
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 26
# Cell, precision, inputs, units, form. Odd widths: rows begin between multiples of 16 bytes, and are copied.
NETWORKS: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "lstm_short": ("lstm", "bfloat16", 156, 502, {}),
    "lstm_short_aligned": ("lstm", "float16", 128, 320, {"num_layers": 2}),
    "lstm_short_both": ("lstm", "tf32", 54, 88, {"num_layers": 2, "bidirectional": True}),
    "elman_short_both": ("elman", "tf32", 54, 87, {"num_layers": 2, "bidirectional": True}),
    "gru_short_stack": ("gru", "tf32", 77, 264, {"num_layers": 2}),
    "gru_short_both": ("gru_reset_before", "float16", 96, 333, {"bidirectional": True}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_few_steps_are_right_and_the_same_each_time(name: str) -> None:
    cell, precision, inputs, hidden, form = NETWORKS[name]
    dtype = "float32" if precision == "tf32" else precision
    net = rnn.RNN(rnn.cells.get(cell), inputs, hidden, dtype=dtype, **form)
    module = gpu_module(name, net, precision=precision, batch=[1, 64])
    module.load_weights(net.init(0).weights)
    limits = {int(row.get("least_steps", 1)) for row in module.manifest.templates if "persistent" in row["template"]}
    assert min(limits) > 1
    generator, kind = torch.Generator(device="cuda").manual_seed(0), getattr(torch, dtype)

    def drawn(*shape: int) -> Any:
        """Below 1: of normal ones, rounding operands to TF32 alone takes an Elman's y to the bound (8e-4 to 1.1e-3)."""
        return (2 * torch.rand(*shape, generator=generator, device="cuda") - 1).to(kind)

    for steps in sorted({1, 2, 8, *limits, *(limit - 1 for limit in limits)}):
        for batch in (1, 7, 64, 67, *([300] if steps < 3 else [])):
            x, state = drawn(steps, batch, inputs), {k: drawn(*v.shape) for k, v in module.init_state(batch).items()}
            lengths = torch.randint(0, steps + 1, (batch,), generator=generator, device="cuda")
            reset = torch.rand(steps, batch, generator=generator, device="cuda") < 0.3
            for more in ({}, {"lengths": lengths}, {"lengths": lengths, "reset": reset}):

                def run(x: Any = x, state: Any = state, more: Any = more) -> Any:
                    return module(x, state, **more)

                y, last = first = run_poisoned(run, BYTES)
                given = {key: plain(value) for key, value in state.items()}
                expected, after = rnn.reference(net)(plain(x), given, **{k: v.cpu().numpy() for k, v in more.items()})
                assert_close(plain(y), expected, precision, steps, "y")
                assert_close({key: plain(value) for key, value in last.items()}, after, precision, steps, "state")
                for _ in range(REPEATS if steps < 3 else 3):
                    assert same_bits(first, run_poisoned(run, BYTES)), (steps, batch, [*more])
                for key, value in state.items():  # the caller's own states are as they were
                    assert np.array_equal(plain(value), given[key])


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu(), np.float64)
