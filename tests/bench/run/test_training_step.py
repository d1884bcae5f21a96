"""training_step: a step that learns, both layers beside each other, and the table."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import training_step

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


def test_a_step_learns() -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 4)
    step = training_step.step_of(layer, torch.randn(5, 2, 3))
    first, last = training_step._losses(step)
    assert last < first


def test_the_table_has_both_ways() -> None:
    us = {"tvm_rnn": 200.0, "torch": 300.0, "tvm_rnn-graph": 100.0, "torch-graph": 250.0}
    found: list[dict[str, Any]] = [{"kind": "facts"}]
    found += [{"kind": "point", "point": "p", "framework": name, "us": value} for name, value in us.items()]
    assert "| p, one CUDA graph | 100 | 250 | 2.50 |" in training_step.table(found)


def test_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(rnn.ConfigError, match="torch finds none"):
        training_step.run(training_step.Sizes())
