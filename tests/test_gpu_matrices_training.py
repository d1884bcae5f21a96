"""Training of matrix states, each pass in one launch: the oracle's gradients, run by emulator.py."""

from __future__ import annotations

import emulator
import matrix_cells as own
import pytest
from headed_cells import both_ways

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import check

CASES: dict[str, tuple[rnn.Cell, str, dict[str, int]]] = {
    "m2rnn-bfloat16": (rnn.cells.m2rnn, "bfloat16", {"N": 2, "H": 24, "K": 20}),
    "m2rnn-float16": (rnn.cells.m2rnn, "float16", {"H": 16, "num_layers": 2}),
    "m2rnn-float32": (rnn.cells.m2rnn, "float32", {"N": 2, "H": 9, "K": 20}),
    "m2rnn-both-ways": (rnn.cells.m2rnn, "bfloat16", {"N": 2, "H": 16, "K": 8, "bidirectional": True, "num_layers": 2}),
    "fast_tanh-bfloat16": (own.fast_tanh, "bfloat16", {"N": 2, "K": 24, "V": 40}),
    "fast_tanh_wide-bfloat16": (own.fast_tanh, "bfloat16", {"N": 1, "K": 60, "V": 64}),
    "gated-float16": (own.gated, "float16", {"K": 24, "V": 20}),
    "gated_wide-float16": (own.gated, "float16", {"K": 24, "V": 40}),
    "keys_multiplied-bfloat16": (own.keys_multiplied, "bfloat16", {"N": 2, "K": 20, "V": 9}),
    "keys_multiplied-float32": (own.keys_multiplied, "float32", {"N": 3, "K": 16, "V": 16}),
    "shown-float32": (own.shown, "float32", {"K": 18, "V": 8}),
    "both_ways-bfloat16": (both_ways, "bfloat16", {"K": 24, "V": 20, "H": 70}),
    "both_ways-float32": (both_ways, "float32", {"K": 9, "V": 20, "H": 20}),
}
BROAD = ("m2rnn-bfloat16",)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.broad
@pytest.mark.parametrize("name", [n if n in BROAD else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_against_the_oracle(name: str) -> None:
    """With lengths and resets."""
    cell, dtype, sizes = CASES[name]
    net = rnn.RNN(cell, 7, dtype=dtype, **sizes).init(seed=1)
    module = emulator.compile(net, batch=[3], training=True)
    variant = module.manifest["variants"][0]
    for way in ("forward_train", "backward"):
        assert "matrix_on_chip" in {row["template"] for row in variant[way]["templates"]}, way
    check(net, module, dtype)
