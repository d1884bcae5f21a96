"""`tvm-rnn tune` for GPUs: what its options mean together, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tune.test_gpu_plan import measured
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.cli.commands import app
from tvm_rnn.tune import gpu_measure, gpu_plan

CELL = '''
from tvm_rnn import cell, tanh

@cell(states="h")
def mine(x: "I", h: "H", *, W: "H I", R: "H H"):
    """One of one's own."""
    return tanh(W @ x + R @ h)
'''


def run(*words: str, code: int = 0) -> str:
    """What it prints: to stdout, or to stderr where it fails."""
    result = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a plan would be built of."""
    found: list[dict[str, Any]] = []

    def build(points: list[Point], folder: str, **how: Any) -> dict[str, Any]:
        found.append({"points": points, "folder": folder, **how})
        rows = [{"name": p.name, "candidates": [{"file": "a.so"}, {"file": "b.so", "reason": "no"}]} for p in points]
        return {"points": rows}

    monkeypatch.setattr(gpu_plan, "build_candidates", build)
    return found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tune"], "which network?"),
        (["tune", "lstm", "--plan", "p"], "lstm without sizes"),
        (["tune", "--plan", "p"], "tune takes a SPEC with its sizes, or --suite"),
        (["tune", "lstm", "--input-size", "4", "--hidden-size", "4", "--suite", "zoo"], "both"),
        (["tune", "--plan", "p", "--collect", "p"], "--plan, --collect"),
        (["tune", "--suite", "none-such", "--plan", "p"], "no such suite"),
        (["tune", "--plan", "p", "--rpc-tracker", "h:1", "--device-key", "k"], "--rpc-tracker is for CPUs"),
        (["tune", "--measure", "/no/such/folder"], "there is no plan of candidates here"),
        (["tune", "--collect", "/no/such/folder"], "there is no plan of candidates here"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], expected: str) -> None:
    assert expected in run(*words, code=2)


def test_a_network_becomes_a_point(asked: list[dict[str, Any]]) -> None:
    sizes = ["--input-size", "8", "--hidden-size", "16", "--layers", "2", "--dtype", "bfloat16", "--bidirectional"]
    printed = run("tune", "lstm", *sizes, "--steps", "9", "--batch", "3", "--plan", "p", "--target", "nvidia-h100")
    assert asked[0]["points"] == [Point("lstm", 8, 16, 9, 3, "bfloat16", 2, 2)] and asked[0]["folder"] == "p"
    assert asked[0]["target"] == "nvidia-h100" and asked[0]["command"].startswith("tvm-rnn tune lstm --input-size 8")
    assert "tvm-rnn tune --measure p" in printed


def test_a_suite_is_many_points(asked: list[dict[str, Any]]) -> None:
    printed = run("tune", "--suite", "gpu-grid", "--only", "lstm,h256,tf32", "--plan", "p", "--trials", "5", "--json")
    assert len(asked[0]["points"]) == 4 and asked[0]["count"] == 5 and asked[0]["target"] == "nvidia-h200"
    assert len(json.loads(printed)["points"]) == 4


@pytest.mark.broad
def test_results_become_records(tmp_path: Path) -> None:
    measured(tmp_path, [10.0, 8.0])
    records = tmp_path / "records"
    (row,) = json.loads(run("tune", "--collect", str(tmp_path), "--records", str(records), "--json"))["records"]
    assert row["median_us"] == 8.0 and list(records.glob("nvidia-h200/lstm.jsonl"))
    assert "1.250" in run("tune", "--collect", str(tmp_path), "--records", str(records))


def test_measuring_says_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"a.so": {"us": 1.0}, "b.so": {"reason": "wrong"}}
    monkeypatch.setattr(gpu_measure, "measure", lambda folder, **how: gpu_measure.Results(tmp_path / "r", first=rows))
    counts = json.loads(run("tune", "--measure", str(tmp_path), "--json"))
    assert counts == {"measured": 1, "failed": 1, "results": str(tmp_path / "r")}
    assert "1 measured, 1 failed" in run("tune", "--measure", str(tmp_path))


@pytest.mark.broad
def test_where_the_gpu_is_all_of_it_happens_at_once(
    asked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(folder: str, **how: Any) -> None:
        measured(Path(folder), [10.0, 9.0])

    monkeypatch.setattr(gpu_measure, "measure", measure)
    words = ["--input-size", "64", "--hidden-size", "64", "--steps", "8", "--batch", "16", "--dtype", "bfloat16"]
    printed = run("tune", "lstm", *words, "--target", "nvidia-h200", "--records", str(tmp_path), "--json")
    assert asked[0]["points"][0].cell == "lstm" and json.loads(printed)["records"]


def test_a_cell_of_ones_own_travels_with_the_plan(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CELL)
    point = gpu_plan._carried(Point(f"{tmp_path}/own.py:mine", 4, 8, 5, 3), tmp_path / "..")
    assert point.name == "mine-h8-i4-b3-t5-bf16" and Path(point.cell.rpartition(":")[0]).exists()
    row = gpu_plan._row(point, {"candidates": []})
    assert row["point"]["cell"] == "own.py:mine" and row["workload"]["cell"] == "mine"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "own.py").write_text(CELL)
    moved = gpu_measure.located(row["point"], tmp_path / "there")
    assert moved["cell"] == f"{tmp_path}/there/own.py:mine"
