"""Plain C on a bare Cortex-M: what is missing is named, y is the oracle's, work takes instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers import cortex_m
from tvm_rnn.oracle.tolerance import assert_close


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cortex_m.shutil, "which", lambda name: None)
    assert "apt-get install gcc-arm-none-eabi" in cortex_m.missing()
    monkeypatch.setattr(cortex_m.shutil, "which", lambda name: None if "qemu" in name else name)
    assert "apt-get install qemu-system-arm" in cortex_m.missing()


def test_instructions_are_those_of_a_step(tmp_path: Path) -> None:
    """Four times the products, and more than twice the instructions; as many steps more, and as many each."""
    if cortex_m.missing():
        pytest.skip(cortex_m.missing())
    counts = []
    for units, steps in ((16, 10), (32, 10), (32, 20)):
        net = rnn.RNN(rnn.cells.lstm, units, units).init(0)
        x = np.random.default_rng(0).normal(size=(steps, 1, units)).astype("f4")
        folder = tmp_path / f"own_{len(counts)}"
        rnn.write_c(net, folder)
        y, count = cortex_m.results(folder, {"x": x[:, 0]}, "cortex-m4")
        expected, _ = rnn.reference(net)(x)
        assert_close((y.reshape(expected.shape), {}), (expected, {}), net.dtype, steps)
        counts.append(count)
    assert 2 * counts[0] < counts[1] < 5 * counts[0] and counts[2] == pytest.approx(counts[1], rel=0.05)
