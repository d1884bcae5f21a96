"""Training beside torch's: a table of both, gradients checked first, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_stand_in import point, problem
from networks import network
from typer.testing import CliRunner

import tvm_rnn as rnn
from tvm_rnn.bench.run import training
from tvm_rnn.bench.run.training import CHECKED, MOST_FLOPS, MOST_ROWS, checked, compare_training, measure_on_gpu
from tvm_rnn.cli.commands import app
from tvm_rnn.errors import ConfigError, WeightError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("training") / "gru.so"
    rnn.compile(network("gru", 6, 8), training=True).export(found)
    return found


@pytest.mark.broad
def test_a_module_beside_torch(path: Path) -> None:
    pytest.importorskip("torch")
    words = ["bench", str(path), "--training", "--steps", "5", "--batch", "3", "--rounds", "2", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["name"] for row in rows] == ["tvm_rnn", "torch"]
    printed = CliRunner().invoke(app, words[:-1])
    assert printed.exit_code == 0 and "T 5, B 3" in printed.stdout and "torch" in printed.stdout
    assert rows[0]["error"] < 1e-5 and rows[1]["ratio"] == pytest.approx(rows[1]["median_us"] / rows[0]["median_us"])


@pytest.mark.broad
def test_wrong_gradients_are_not_timed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_flat", lambda found: [np.array([1.0 if isinstance(found, dict) else 2.0])])
    monkeypatch.setattr(training, "_error", lambda got, expected: 0.5)
    with pytest.raises(ConfigError, match="gradients differ from the oracle"):
        compare_training(path, steps=2, batch=1)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    rnn.compile(network("elman", 3, 4)).export(tmp_path / "plain.so")
    with pytest.raises(ConfigError, match=r"does not train[\s\S]*--training"):
        compare_training(tmp_path / "plain.so")
    rnn.compile(rnn.RNN(rnn.cells.elman, 3, 4), training=True).export(tmp_path / "empty.so")
    with pytest.raises(WeightError, match="without weights"):
        compare_training(tmp_path / "empty.so")


def test_a_point_without_a_module_has_a_reason() -> None:
    torch = pytest.importorskip("torch")
    found = measure_on_gpu(problem(point("gru", training=True), torch), 1)
    assert found["tvm_rnn"]["reason"] == "no module was built for it" and [*found] == ["tvm_rnn"]


@pytest.mark.broad
def test_a_point_of_a_suite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(training, "_OnGpu", training._OnCpu)
    asked = problem(point("gru", input=6, training=True), torch, str(path))
    found = measure_on_gpu(asked, 2)
    assert [*found] == ["tvm_rnn", "torch"] and all(row["us_per_step"] > 0 for row in found.values())
    assert found["tvm_rnn"]["error"] < 1e-5 and found["tvm_rnn"]["bytes"] == asked.bytes
    again = replace(asked, reset=torch.rand(5, 3) < 0.4)
    found = measure_on_gpu(again, 2, ("tvm_rnn", "torch-loop"))
    assert found["tvm_rnn"]["error"] < 1e-5 and found["torch-loop"]["us_per_step"] > 0
    assert "no resets" in found["torch"]["reason"]
    monkeypatch.setattr(training, "_error", lambda got, expected: 0.5)
    assert "is allowed" in measure_on_gpu(asked, 2)["tvm_rnn"]["reason"]


def test_what_rounding_moves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A little more is allowed where exact gradients move with their inputs, but nothing that is wrong."""
    net = network("gru", 6, 8, dtype="bfloat16").init(0)
    bench = training._OnCpu.__new__(training._OnCpu)
    bench.net = net
    monkeypatch.setattr(bench, "given", lambda value: value)
    least = training.LIMITS["bfloat16"]
    assert bench.limit("bfloat16", 0.0, 3, 2) == least
    assert least < bench.limit("bfloat16", 1.0, 3, 2) <= least + training.MOST_MOVED


def test_the_oracle_differentiates_no_more_than_it_can_in_seconds() -> None:
    assert checked(100, 64, 1e3) == (CHECKED, MOST_ROWS) and checked(3, 1, 1e3) == (3, 1)
    steps, rows = checked(20, 8, 7e9)  # a frame of 64 x 64 pixels and 64 channels, in both passes
    assert 2 <= steps < CHECKED and 2 <= rows <= 8 and steps * rows * 7e9 <= MOST_FLOPS
    assert checked(20, 8, 1e15) == (2, 2)


def test_the_best_of_a_peer_s_ways_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = training._OnCpu.__new__(training._OnCpu)
    bench.net, bench.reason = network("gru", 2, 3), ""
    ways = {"slow": "slow", "quick": "quick", "broken": "broken"}
    monkeypatch.setattr(bench, "_torch", lambda x, gy: ways)

    def timer(run: object) -> object:
        if run == "broken":
            raise RuntimeError("it does not compile")
        return lambda: {"slow": 3.0, "quick": 2.0}.get(str(run), 1.0)

    monkeypatch.setattr(bench, "timer", timer)
    found = bench.measure(2, 1, 3)
    assert found == {"tvm_rnn": ("both passes", [1.0] * 3), "torch": ("quick", [2.0] * 3)}
    assert "does not compile" in bench.reason
