"""training_step: a step that learns, both layers beside each other, and the table."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import training_step

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


SMALL = training_step.Sizes(3, 4, 1, 5, 2)


def test_both_learn_the_same() -> None:
    losses = training_step.learned(SMALL, "cpu", "float32")
    ours, theirs = losses["tvm_rnn"], losses["torch"]
    assert ours == pytest.approx(theirs, rel=1e-4) and theirs[-1] < theirs[0]
    training_step._check([ours[-1], theirs[-1]])


@pytest.mark.parametrize("ours", [0.9, 1.1, float("nan")])
def test_others_are_refused(ours: float) -> None:
    with pytest.raises(rnn.ConfigError, match="do not learn the same"):
        training_step._check([ours, 1.0])


def test_the_table_has_both_ways() -> None:
    us = {"tvm_rnn": 200.0, "torch": 300.0, "tvm_rnn-graph": 100.0, "torch-graph": 250.0}
    found: list[dict[str, Any]] = [{"kind": "facts"}]
    found += [{"kind": "point", "point": "p", "framework": name, "us": value} for name, value in us.items()]
    assert "| p, one CUDA graph | 100 | 250 | 2.50 |" in training_step.table(found)


def test_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(rnn.ConfigError, match="torch finds none"):
        training_step.run(training_step.Sizes())
