"""tune_gpu: every candidate of a plan is measured once, whatever one of them does to the process that measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tvm_rnn import ConfigError
from tvm_rnn.bench.run import gpu_suite
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.tune.gpu_measure import Results, finalists, measure, outcome, read_plan

# Answers as the worker does: the time is in the file's name, and "crash" and "hang" do what they say.
WORKER = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if "facts" in request:
        print(json.dumps({"facts": {"device": "none"}}), flush=True)
        continue
    rows = []
    for file in request["files"]:
        print(json.dumps({"stage": "preparing", "framework": "tvm_rnn", "config": file}), flush=True)
        if "crash" in file: os._exit(9)
        if "hang" in file: time.sleep(60)
        if "wrong" in file: rows.append({"file": file, "reason": "wrong: error 1"})
        else: rows.append({"file": file, "us": float(file.split("-")[0]), "spread": 0.0, "error": 0.0})
    print(json.dumps({"rows": rows}), flush=True)
"""
FILES = ("10-default.so", "12-a.so", "8-b.so", "1-crash.so", "2-wrong.so", "1-hang.so", "9-c.so", "7-d.so", "9.5-e.so")
POINT = Point("lstm", 4, 8, 5, 3)


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_suite, "COMMAND", ("-c", WORKER))


def plan(folder: Path, files: tuple[str, ...] = FILES) -> dict[str, Any]:
    """A plan of one point, with empty modules."""
    for file in files:
        (folder / file).touch()
    candidates = [{"file": file, "choices": []} for file in (*files, "0-never-built.so")]
    candidates[-1]["reason"] = "not built"
    point = {"point": POINT.as_dict(), "name": POINT.name, "candidates": candidates}
    made = {"format": 1, "target": "nvidia-h200", "points": [point]}
    (folder / "plan.json").write_text(json.dumps(made))
    return point


def test_the_fastest_that_is_right_wins(tmp_path: Path) -> None:
    point = plan(tmp_path)
    found = measure(tmp_path, patience=2.0)
    timed = {"10-default.so", "12-a.so", "8-b.so", "9-c.so", "7-d.so", "9.5-e.so"}
    assert {f for f, row in found.first.items() if "us" in row} == timed
    assert "ended while" in found.first["1-crash.so"]["reason"]
    assert "no answer within 2 s" in found.first["1-hang.so"]["reason"]
    assert found.first["2-wrong.so"]["reason"].startswith("wrong")
    assert set(found.final) == {"10-default.so", "7-d.so", "8-b.so", "9-c.so"}
    best = outcome(point, found)
    assert best is not None and best[0]["file"] == "7-d.so" and (best[1]["us"], best[2]["us"]) == (7.0, 10.0)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    point = plan(tmp_path, ("10-default.so", "9-a.so"))
    with open(tmp_path / "results.jsonl", "w") as file:
        file.write(json.dumps({"file": "9-a.so", "us": 3.0, "spread": 0.0}) + "\n" + '{"file": "10-def')
    assert set(Results.read(tmp_path / "results.jsonl").first) == {"9-a.so"}
    (tmp_path / "results.jsonl").write_text(json.dumps({"file": "9-a.so", "us": 3.0, "spread": 0.0}) + "\n")
    found = measure(tmp_path)
    assert found.first["9-a.so"]["us"] == 3.0 and found.final["9-a.so"]["us"] == 9.0
    before = (tmp_path / "results.jsonl").read_text()
    assert measure(tmp_path).final == found.final
    assert (tmp_path / "results.jsonl").read_text().count('"file"') == before.count('"file"')
    assert outcome(point, found) is not None


def test_a_limit_stops_before_the_next_candidate(tmp_path: Path) -> None:
    plan(tmp_path)
    told: list[str] = []
    assert not measure(tmp_path, limit=0.0, progress=told.append).first
    assert told[-1].startswith("stopped after 0 s, 1 points are left")


def test_what_is_no_faster_than_noise_leaves_the_default(tmp_path: Path) -> None:
    point = plan(tmp_path, ("10-default.so", "9.95-a.so"))
    best = outcome(point, measure(tmp_path))
    assert best is not None and best[0]["file"] == "10-default.so"
    assert outcome(point, Results(tmp_path)) is None


def test_a_default_that_fails_is_not_compared_with(tmp_path: Path) -> None:
    point = plan(tmp_path, ("1-crash.so", "9-a.so"))
    found = measure(tmp_path)
    assert finalists(point, found) == ["9-a.so"] and outcome(point, found) is None


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', "{"])
def test_what_is_no_plan_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="there is no plan of candidates here"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigError, match="there is no plan of candidates here"):
        read_plan(tmp_path)
