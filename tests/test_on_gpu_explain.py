"""What a report measures on a real GPU."""

from __future__ import annotations

import pytest
from gpu_modules import has_gpu

import tvm_rnn as rnn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]
PARTS = ("exchange", "product", "cells")


@pytest.mark.parametrize(
    ("cell", "hidden", "precision", "batch"),
    [
        ("lstm", 256, "bfloat16", 16),
        ("lstm", 512, "float32", 16),
        ("gru", 1024, "bfloat16", 16),
        ("slstm", 96, "tf32", 3),
    ],
)
def test_a_report_has_measured_phases(cell: str, hidden: int, precision: str, batch: int) -> None:
    dtype = "float32" if precision == "tf32" else precision
    net = rnn.RNN(rnn.cells.get(cell), 64, hidden, dtype=dtype).init(0)
    found = rnn.explain(net, "cuda", batch=batch, precision=precision, measure=True)
    (row,) = [d for d in found.facts["networks"][0]["regimes"] if "phase_times" in d.get("facts", {})]
    step = sum(phase[part] for phase in row["facts"]["clocked_times"] for part in PARTS)
    assert 0.2 * row["facts"]["predicted_us"] < step < 5 * row["facts"]["predicted_us"]
