"""Running a suite: records as they come, a worker that crashes, hangs or finds no GPU. The worker is a stand-in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_stand_in import point

import tvm_rnn as rnn
from tvm_rnn import bench_gpu
from tvm_rnn.bench_gpu import Options, read_records, run

# Answers like gpu_worker.py; what it does at a point is decided by the point's batch.
STAND_IN = """
import json, os, sys, time
def tell(answer):
    print(json.dumps(answer), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "facts" in request:
        tell({"facts": {"device": "a device", "versions": {}, "ceilings": {}}})
        continue
    rows = []
    for name in request["frameworks"]:
        if name in request["skip"]:
            rows.append({"framework": name, "reason": request["skip"][name]})
            continue
        tell({"stage": "checking", "framework": name})
        if request["point"]["batch"] == 7 and name == "tvm_rnn":
            print("illegal memory access", file=sys.stderr, flush=True)
            os._exit(3)
        if request["point"]["batch"] == 8 and name == "torch":
            time.sleep(60)
        rows.append({"framework": name, "us_per_step": 2.0, "module": request["module"]})
    tell({"rows": rows})
"""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_gpu, "COMMAND", [sys.executable, "-c", STAND_IN])


def rows_of(found: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    return {row["framework"]: row for row in found if row.get("batch") == batch}


def test_records_say_what_was_measured_and_are_written_as_they_come(tmp_path: Path) -> None:
    told: list[str] = []
    points = [point(), point(batch=4)]
    found = run(points, tmp_path, Options(), tmp_path / "r.jsonl", progress=told.append)
    assert [record["kind"] for record in found] == ["facts", *["point"] * 4]
    assert found == list(read_records(tmp_path / "r.jsonl"))
    row = found[1]
    assert (row["point"], row["cell"], row["hidden"], row["framework"]) == (points[0].name, "lstm", 8, "tvm_rnn")
    assert row["module"] is None  # none was built
    assert told[-1] == f"2 of 2: {points[1].name}"


def test_a_framework_that_ends_the_process_is_left_out_and_named(tmp_path: Path) -> None:
    found = run([point(batch=7), point()], tmp_path, Options())
    crashed = rows_of(found, 7)
    assert "illegal memory access" in crashed["tvm_rnn"]["reason"] and crashed["torch"]["us_per_step"] == 2.0
    assert all("us_per_step" in row for row in rows_of(found, 3).values())


def test_a_framework_that_hangs_is_ended(tmp_path: Path) -> None:
    found = run([point(batch=8)], tmp_path, Options(patience=0.5, compile_seconds=0.5))
    hung = rows_of(found, 8)
    assert "no answer within 1 s" in hung["torch"]["reason"] and hung["tvm_rnn"]["us_per_step"] == 2.0


def test_the_limit_stops_a_run_between_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([5.0, 5.0, 0.0])
    monkeypatch.setattr(bench_gpu.Run, "left", property(lambda self: next(left)))
    found = run([point(), point(batch=4)], tmp_path, Options(limit=5.0), tmp_path / "r.jsonl")
    assert found[-1] == {"kind": "stopped", "limit": 5.0, "points_left": 1}
    assert len(rows_of(found, 3)) == 2 and not rows_of(found, 4)


def test_modules_are_found_by_the_index(tmp_path: Path) -> None:
    index = {"lstm-h8-i4-fp32 for B=3": {"file": "other.so"}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "other.so").write_bytes(b"")
    (_, ours, _) = run([point()], tmp_path, Options())
    assert ours["module"] == str(tmp_path / "other.so")


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(rnn.ConfigError, match="did you mean 'torch'"):
        run([point()], tmp_path, Options(against=("torhc",)))
    with pytest.raises(rnn.ConfigError, match="no such folder"):
        run([point()], tmp_path / "none", Options())


def test_a_machine_that_cannot_run_them_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "import json; print(json.dumps({'failed': 'no GPU here'}))"
    monkeypatch.setattr(bench_gpu, "COMMAND", [sys.executable, "-c", words])
    with pytest.raises(rnn.TvmRnnError, match="no GPU here"):
        run([point()], tmp_path, Options())
