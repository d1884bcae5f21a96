"""Matrix states with a nonlinearity, all steps in one launch: the oracle's, run by emulator.py."""

from __future__ import annotations

import emulator
import matrix_cells as own
import pytest
from headed_cells import both_ways
from test_emulator import check

import tvm_rnn as rnn

CASES: dict[str, tuple[rnn.Cell, str, dict[str, int]]] = {
    "fast_tanh-bfloat16": (own.fast_tanh, "bfloat16", {"N": 2, "K": 24, "V": 40}),
    "m2rnn-float16": (rnn.cells.m2rnn, "float16", {"N": 3, "H": 40, "K": 24}),
    "m2rnn-float32": (rnn.cells.m2rnn, "float32", {"N": 2, "H": 9, "K": 20}),
    "m2rnn-both-ways": (rnn.cells.m2rnn, "bfloat16", {"N": 2, "H": 16, "K": 8, "bidirectional": True, "num_layers": 2}),
    "gated-float16": (own.gated, "float16", {"K": 24, "V": 20}),
    "keys_multiplied-bfloat16": (own.keys_multiplied, "bfloat16", {"N": 2, "K": 20, "V": 9}),
    "keys_multiplied-float32": (own.keys_multiplied, "float32", {"N": 3, "K": 16, "V": 16}),
    "shown-float32": (own.shown, "float32", {"K": 18, "V": 8}),
    "both_ways-bfloat16": (both_ways, "bfloat16", {"K": 24, "V": 20, "H": 70}),
    "both_ways-float32": (both_ways, "float32", {"K": 9, "V": 20, "H": 20}),
}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CASES)
def test_against_the_oracle(name: str) -> None:
    """With lengths and resets."""
    cell, dtype, sizes = CASES[name]
    net = rnn.RNN(cell, 7, dtype=dtype, **sizes).init(seed=1)
    module = emulator.compile(net, batch=[3])
    assert "matrix_on_chip" in {row["template"] for row in module.manifest.templates}
    check(net, module, dtype, rows=3)
