"""Layers of heads, all steps in one launch: the oracle's, run by emulator.py."""

from __future__ import annotations

from typing import Any

import emulator
import headed_cells as own
import pytest
from test_emulator import check

import tvm_rnn as rnn

CASES: dict[str, tuple[rnn.Cell, str, dict[str, Any]]] = {
    "lstm-bfloat16": (own.lstm, "bfloat16", {"D": 16}),
    "lstm-float32": (own.lstm, "float32", {"D": 8}),
    "lstm-odd": (own.lstm, "float16", {"D": 9}),
    "gru-bfloat16": (own.gru, "bfloat16", {"D": 16, "bidirectional": True}),
    "norm-float16": (own.normed, "float16", {"D": 16}),
    "shared-bfloat16": (own.shared, "bfloat16", {"D": 16}),
    "slstm-bfloat16": (rnn.cells.slstm, "bfloat16", {"H": 16, "num_layers": 2}),
    "normed_together-float32": (own.normed_together, "float32", {"D": 8}),
    "block_gru-bfloat16": (rnn.cells.block_gru, "bfloat16", {"H": 16, "P": 24, "A": 4}),
    "slstm-tf32": (rnn.cells.slstm, "float32", {"H": 16, "precision": "tf32"}),
}
BROAD = ("lstm-odd",)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", [n if n in BROAD else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_against_the_oracle(name: str) -> None:
    """With lengths and resets, from given states; 3 rows of 8, and 3 heads."""
    cell, dtype, options = CASES[name]
    precision = options.get("precision")
    sizes = {key: value for key, value in options.items() if key != "precision"}
    net = rnn.RNN(cell, 7, dtype=dtype, N=3, **sizes).init(seed=1)
    module = emulator.compile(net, batch=[3], precision=precision)
    assert any(row["template"].startswith("persistent") for row in module.manifest.templates)
    check(net, module, precision or dtype, rows=3)


@pytest.mark.slow
def test_more_rows_than_one_group_of_blocks_has() -> None:
    net = rnn.RNN(own.lstm, 7, dtype="bfloat16", N=3, D=16).init(seed=1)
    check(net, emulator.compile(net, batch=[3]), "bfloat16", rows=11)
