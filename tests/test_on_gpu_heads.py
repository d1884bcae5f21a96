"""Layers of heads on a real GPU, against the oracle: outputs poisoned, the same bits each time."""

from __future__ import annotations

from functools import partial
from typing import Any

import headed_cells as own
import numpy as np
import pytest
from gpu_modules import gpu_module

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 26
KINDS = {
    **own.WIDE,
    "lstm_6x128": own.Layer(own.lstm, "float16", 16, {"N": 6, "D": 128}),
    "norm_5x24": own.Layer(own.normed, "float32", 3, {"N": 5, "D": 24}),
    "lstm_3x9": own.Layer(own.lstm, "float32", 40, {"N": 3, "D": 9}),
}


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu().numpy())


@pytest.mark.parametrize("name", KINDS)
def test_against_the_oracle(name: str) -> None:
    dtype, rows, net = KINDS[name].dtype, KINDS[name].rows, KINDS[name].net(32)
    module = gpu_module(f"heads_{name}_{dtype}", net, batch=[rows])
    assert "persistent_cluster_cuda" in {row["template"] for row in module.manifest.templates}
    generator, reference = torch.Generator(device="cuda").manual_seed(2), rnn.reference(net)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))

    for steps, batch, ragged in ((1, 3, False), (37, rows, True), (300, rows, False), (20, rows + 9, True)):
        x = drawn(steps, batch, 32)
        more: dict[str, Any] = {}
        if ragged:
            more["lengths"] = torch.arange(steps, steps - batch, -1, device="cuda").clamp(min=0)
            more["reset"] = torch.rand(steps, batch, generator=generator, device="cuda") < 0.05
        found = [run_poisoned(partial(module, x, **more), BYTES) for _ in range(REPEATS)]
        (y, last), *others = found
        for again, ends in others:
            assert torch.equal(y, again) and all(torch.equal(last[key], value) for key, value in ends.items())
        expected, states = reference(plain(x), **{key: value.cpu().numpy() for key, value in more.items()})
        assert_close(plain(y), expected, dtype, steps, "y")
        assert_close({key: plain(value) for key, value in last.items()}, states, dtype, steps, "state")
