"""whole_models: a model beside itself after `accelerate`, what is not installed, and the table."""

from __future__ import annotations

import os
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


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    monkeypatch.setattr(whole_models, "ROUND_SECONDS", 1e-3)
    monkeypatch.setenv("TVM_RNN_NUM_THREADS", "2")  # put back at the end
    return PackagedModel("one", "own==1", Counter, (5, 2, X), 5)


def test_what_is_not_installed_has_a_record_with_the_reason(
    one: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PackagedModel("other", "absent==1", absent, (5, 2, X), 5)
    (record,) = whole_models.measured([other], "cpu", 1)
    assert "pip install absent==1" in record["reason"] and "us" not in record and not other.is_installed
    assert "pip install absent==1" in whole_models.table([record])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(rnn.ConfigError, match="finds no GPU"):
        whole_models.check_device("cuda")


@pytest.mark.broad
def test_both_are_timed_and_compared(one: PackagedModel) -> None:
    ours, theirs = found = [*whole_models.measured([one], "cpu", 2)]
    assert ours["framework"] == "tvm_rnn" and theirs["framework"] == "torch"
    assert os.environ["TVM_RNN_NUM_THREADS"] == "1"
    assert ours["error"] < 1e-6 and ours["us"] > 0 and ours["replaced"] == ["layer: tvm_rnn.GRU(3, 4)"]
    assert whole_models.table(found).count("| one |") == 2


def test_a_model_compiled_whole_is_compared_with_torch_called_alike() -> None:
    ways = {"tvm_rnn whole": 50.0, "tvm_rnn whole-graph": 20.0, "tvm_rnn": 80.0, "torch": 100.0, "torch-graph": 10.0}
    one = {"kind": "point", "point": "one", "package": "own", "error": 0.0}
    rows = whole_models.table([{**one, "framework": way, "us": us} for way, us in ways.items()]).splitlines()[2:]
    assert [row.split("|")[5].strip() for row in rows] == ["2.00", "0.50", "1.25", "1.00", "1.00"]


@pytest.mark.gpu
def test_a_model_is_compiled_whole_on_a_gpu(one: PackagedModel) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    found = {record["framework"]: record for record in whole_models.measured([one], "cuda", 2)}
    assert {"tvm_rnn whole", "tvm_rnn whole-graph", "torch-graph"} <= {*found}
    assert found["tvm_rnn whole"]["error"] < 1e-6


@pytest.mark.broad
def test_what_differs_is_not_timed(one: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_models, "tolerance", lambda dtype, steps: -1.0)
    (record,) = whole_models.measured([one], "cpu", 1)
    assert "differs from float64" in record["reason"] and "us" not in record
