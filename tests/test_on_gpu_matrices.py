"""Matrix states with a nonlinearity on a real GPU, against the oracle: outputs poisoned, the same bits each time."""

from __future__ import annotations

from functools import partial
from typing import Any

import matrix_cells as own
import numpy as np
import pytest
from gpu_modules import gpu_module

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 26
KINDS: dict[str, tuple[rnn.Cell, str, dict[str, int]]] = {
    "m2rnn_8x64x64": (rnn.cells.m2rnn, "bfloat16", {"N": 8, "H": 64, "K": 64}),
    "m2rnn_3x24x40": (rnn.cells.m2rnn, "float16", {"N": 3, "H": 40, "K": 24}),
    "m2rnn_2x128x96": (rnn.cells.m2rnn, "bfloat16", {"N": 2, "H": 96, "K": 128}),
    "m2rnn_4x32x48": (rnn.cells.m2rnn, "float32", {"N": 4, "H": 48, "K": 32}),
    "fast_tanh_4x64x64": (own.fast_tanh, "bfloat16", {"N": 4, "K": 64, "V": 64}),
    "gated_24x40": (own.gated, "float16", {"K": 24, "V": 40}),
    "keys_multiplied_3x20x9": (own.keys_multiplied, "bfloat16", {"N": 3, "K": 20, "V": 9}),
    "shown_18x8": (own.shown, "float32", {"K": 18, "V": 8}),
}


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu().numpy())


@pytest.mark.parametrize("name", KINDS)
def test_against_the_oracle(name: str) -> None:
    cell, dtype, sizes = KINDS[name]
    net = rnn.RNN(cell, 32, dtype=dtype, **sizes).init(seed=1)
    module = gpu_module(f"matrices_{name}_{dtype}", net, batch=[16])
    assert "matrix_on_chip" in {row["template"] for row in module.manifest.templates}
    generator, reference = torch.Generator(device="cuda").manual_seed(2), rnn.reference(net)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))

    for steps, batch, ragged in ((1, 3, False), (37, 16, True), (200, 16, False)):
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
