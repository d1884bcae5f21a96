"""The worker that measures candidates, on the CPU: what is right is timed, what is not says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_stand_in import point, stand_in

import tvm_rnn as rnn
from tvm_rnn.bench.run import gpu_worker
from tvm_rnn.bench.run.gpu_worker import serve
from tvm_rnn.tune import gpu_worker as tune_gpu_worker
from tvm_rnn.tune.gpu_worker import Candidates

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, torch)
    for name in ("capture", "rounds_us", "memory_of", "run_poisoned"):
        monkeypatch.setattr(tune_gpu_worker, name, getattr(gpu_worker, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two right modules, one of another network, one that is no module."""
    place = tmp_path_factory.mktemp("candidates")
    net = rnn.RNN(rnn.cells.lstm, 4, 8)
    rnn.compile(net).export(place / "a.so")
    rnn.compile(net, batch=3).export(place / "b.so")
    rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 9)).export(place / "other.so")
    (place / "broken.so").write_text("no module")
    return place


def request(folder: Path, *files: str, **more: Any) -> dict[str, Any]:
    return {"point": point().as_dict(), "folder": str(folder), "files": list(files), "rounds": 3, **more}


@pytest.mark.parametrize("final", [False, True])
def test_right_ones_are_timed_and_others_say_why(folder: Path, final: bool) -> None:
    told: list[dict[str, Any]] = []
    rows = Candidates(told.append).measure(request(folder, "a.so", "broken.so", "other.so", "b.so", final=final))
    assert [row["file"] for row in rows] == ["a.so", "broken.so", "other.so", "b.so"]
    for row in (rows[0], rows[3]):
        assert row["us"] == 101.0 and row["error"] < 1e-5 and "reason" not in row
    assert all("us" not in row and row["reason"] for row in rows[1:3])
    assert ("preparing", "broken.so") in {(t["stage"], t["framework"]) for t in told}


def test_a_wrong_result_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_gpu_worker, "tolerance", lambda precision, steps: 0.0)
    (row,) = Candidates(lambda told: None).measure(request(folder, "a.so"))
    assert "us" not in row and row["reason"].startswith("TvmRnnError: wrong: error")


def test_a_result_that_moves_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_gpu_worker, "same_bits", lambda one, other: False)
    bench = Candidates(lambda told: None)
    assert "us" in bench.measure(request(folder, "a.so"))[0]
    assert "differs from run to run" in bench.measure(request(folder, "a.so", final=True))[0]["reason"]


def test_the_oracle_is_computed_once_per_point(folder: Path) -> None:
    told: list[dict[str, Any]] = []
    bench = Candidates(told.append)
    for _ in range(2):
        bench.measure(request(folder, "a.so"))
    assert sum(t["stage"] == "computing the oracle" for t in told) == 1


def test_it_answers_on_a_channel_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    serve(iter([json.dumps(request(folder, "a.so"))]), told.append, Candidates)
    assert told[-1]["rows"][0]["file"] == "a.so"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    serve(iter([]), told.append, Candidates)
    assert "no NVIDIA GPU" in told[-1]["failed"]


@pytest.mark.broad
def test_without_a_gpu_the_process_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tvm_rnn.tune.gpu_worker"], input="", capture_output=True, text=True, check=True
    )
    assert "failed" in json.loads(done.stdout) or torch.cuda.is_available()
