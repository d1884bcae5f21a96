"""whole_models: a model beside itself after `accelerate`, what is not installed, and the table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import whole_models
from tvm_rnn.bench.suites.packages import PackagedModel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
X, H = 3, 4


class Counter(torch.nn.Module):
    """A layer whose state goes from call to call, as some packages keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out, self.hidden = torch.nn.GRU(X, H), torch.nn.Linear(H, 2), torch.zeros(1, 2, H)

    def forward(self, x: Any) -> Any:
        y, self.hidden = self.layer(x, self.hidden)
        return self.out(y)


def absent() -> Any:
    raise ImportError("no module named absent")


def test_what_is_not_installed_has_a_record_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_RNN_NUM_THREADS", "1")
    monkeypatch.setattr(whole_models, "MODELS", {"one": PackagedModel("one", "absent==1", absent, (5, 2, X), 5)})
    _, record = whole_models.run()
    assert "pip install absent==1" in record["reason"] and "us" not in record
    assert "pip install absent==1" in whole_models.table([record])
    with pytest.raises(rnn.ConfigError, match="no such model"):
        whole_models.run(["two"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(rnn.ConfigError, match="finds no GPU"):
        whole_models.run(device="cuda")


@pytest.mark.broad
def test_both_are_timed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_models, "MODELS", {"one": PackagedModel("one", "own==1", Counter, (5, 2, X), 5)})
    monkeypatch.setattr(whole_models, "ROUND_SECONDS", 1e-3)
    monkeypatch.setenv("TVM_RNN_NUM_THREADS", "2")  # put back at the end
    found = whole_models.run(records=str(tmp_path / "records.jsonl"), rounds=2)
    facts, ours, theirs = found
    assert facts["kind"] == "facts" and ours["framework"] == "tvm_rnn" and theirs["framework"] == "torch"
    assert os.environ["TVM_RNN_NUM_THREADS"] == "1"
    assert ours["error"] < 1e-6 and ours["us"] > 0 and ours["replaced"] == ["layer: tvm_rnn.GRU(3, 4)"]
    assert [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()] == found
    assert whole_models.table(found).count("| one |") == 2


@pytest.mark.broad
def test_what_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_RNN_NUM_THREADS", "1")
    monkeypatch.setattr(whole_models, "MODELS", {"one": PackagedModel("one", "own==1", Counter, (5, 2, X), 5)})
    monkeypatch.setattr(whole_models, "tolerance", lambda dtype, steps: -1.0)
    _, record = whole_models.run()
    assert "differs from float64" in record["reason"] and "us" not in record
