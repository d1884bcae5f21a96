"""Running a suite: records as they come, a worker that crashes, hangs or finds no GPU. The worker is a stand-in."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu_stand_in import point

import tvm_rnn as rnn
from tvm_rnn.bench.peers.gpu import FRAMEWORKS
from tvm_rnn.bench.run import gpu_suite
from tvm_rnn.bench.run.gpu_suite import PEERS, Options, run
from tvm_rnn.bench.suites.gpu import PASSES
from tvm_rnn.worker_process import WorkerProcess

# Answers like bench/run/gpu_worker.py; what it does at a point is decided by the point's batch.
STAND_IN = """
import json, os, sys, time
def tell(answer):
    print(json.dumps(answer), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "facts" in request:
        ceilings = {"memory_tb_s": 4.0, "float32_tflops": 50.0}
        tell({"facts": {"device": "a device", "versions": {}, "ceilings": ceilings}})
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
        config = "first"
        if request["point"]["batch"] == 9 and name == "cudnn":
            if "cudnn: first" in request["skip"]:
                config = "second"
            tell({"stage": "checking " + config, "framework": name, "config": config})
            if config == "first":
                os._exit(3)
        rows.append({"framework": name, "config": config, "us_per_step": 2.0, "us": 10.0, "bytes": 4e6})
        rows[-1]["module"] = request["module"]
        rows[-1]["caches"] = [os.environ["TRITON_CACHE_DIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"], os.getcwd()]
        if name == "tvm_rnn":
            rows[-1]["flops_per_row"] = 1e7
    tell({"rows": rows})
"""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_suite, "COMMAND", ("-c", STAND_IN))


def rows_of(found: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    return {row["framework"]: row for row in found if row.get("batch") == batch}


def test_records_say_what_was_measured_and_are_written_as_they_come(tmp_path: Path) -> None:
    told: list[str] = []
    points = [point(), point(batch=4)]
    found = run(points, tmp_path, Options(), tmp_path / "r.jsonl", progress=told.append)
    assert [record["kind"] for record in found] == ["facts", *["point"] * 4]
    assert found == [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    row = found[1]
    assert (row["point"], row["cell"], row["hidden"], row["framework"]) == (points[0].name, "lstm", 8, "tvm_rnn")
    assert row["module"] is None  # none was built
    assert re.fullmatch(rf"2 of 2 \(50%, about \d+ s left\): {points[1].name}", told[-1])


def test_a_framework_that_ends_the_process_is_left_out_and_named(tmp_path: Path) -> None:
    found = run([point(batch=7), point()], tmp_path, Options())
    crashed = rows_of(found, 7)
    assert "illegal memory access" in crashed["tvm_rnn"]["reason"] and crashed["torch"]["us_per_step"] == 2.0
    assert all("us_per_step" in row for row in rows_of(found, 3).values())


def test_a_configuration_that_ends_the_process_is_left_out_alone(tmp_path: Path) -> None:
    found = run([point(batch=9)], tmp_path, Options(against=("torch", "cudnn")))
    assert rows_of(found, 9)["cudnn"]["config"] == "second" and rows_of(found, 9)["torch"]["us_per_step"] == 2.0


def test_a_configuration_that_ended_two_processes_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = WorkerProcess.start
    monkeypatch.setattr(WorkerProcess, "start", lambda self: started.append("") or start(self))
    found = run([point(batch=9, steps=steps) for steps in (5, 6, 7, 8)], tmp_path, Options(against=("cudnn",)))
    assert [row["config"] for row in found if row.get("framework") == "cudnn"] == ["second"] * 4
    assert len(started) == 3


def test_a_framework_that_hangs_is_ended(tmp_path: Path) -> None:
    found = run([point(batch=8)], tmp_path, Options(patience=0.5, compile_seconds=0.5))
    hung = rows_of(found, 8)
    assert "no answer within 1 s" in hung["torch"]["reason"] and hung["tvm_rnn"]["us_per_step"] == 2.0


def test_the_limit_stops_a_run_between_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([5.0, 5.0, 0.0])
    monkeypatch.setattr(gpu_suite.Run, "left", property(lambda self: next(left)))
    found = run([point(), point(batch=4)], tmp_path, Options(limit=5.0), tmp_path / "r.jsonl")
    assert found[-1] == {"kind": "stopped", "limit": 5.0, "points_left": 1}
    assert len(rows_of(found, 3)) == 2 and not rows_of(found, 4)


def test_modules_are_found_by_the_index(tmp_path: Path) -> None:
    index = {"lstm-h8-i4-fp32 for B=3": {"file": "other.so"}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "other.so").write_bytes(b"")
    (_, ours, _) = run([point()], tmp_path, Options())
    assert ours["module"] == str(tmp_path / "other.so")


def test_a_point_waits_for_its_module(tmp_path: Path) -> None:
    looks = iter([False, False, True, True])
    found = run([point(), point(batch=4)], tmp_path, Options(), ready=lambda own: next(looks))
    assert len(found) == 5 and next(looks, None) is None


def test_the_seconds_of_a_compilation_are_those_of_the_index(tmp_path: Path) -> None:
    index = {"lstm-h8-i4-fp32 for B=3": {"file": "other.so", "seconds": 12.5}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    (_, ours, theirs) = run([point()], tmp_path, Options())
    assert ours["compile_seconds"] == 12.5 and "compile_seconds" not in theirs


def test_shares_of_the_ceilings_are_recorded(tmp_path: Path) -> None:
    for row in run([point()], tmp_path, Options())[1:]:
        # 4 MB at 4 TB/s are 1 us, 3 rows x 5 steps x 10 MFLOP at 50 TFLOP/s are 3 us; both take 10
        assert (row["byte_share"], row["flop_share"], row["share"]) == pytest.approx((0.1, 0.3, 0.3))


def test_points_that_differ_in_what_was_left_out_have_their_peers_once(tmp_path: Path) -> None:
    points = [point(without=PASSES[done:]) for done in range(3)] + [point(batch=4, without=PASSES)]
    found = run([*points, point()], tmp_path, Options())[1:]
    assert [(row["point"], row["framework"]) for row in found] == [
        *((p.name, "tvm_rnn") for p in points),
        (points[3].name, "torch"),  # at that size there is none with more
        (point().name, "tvm_rnn"),
        (point().name, "torch"),
    ]
    assert found[0]["without"] == list(PASSES)


def test_compilers_of_peers_start_with_empty_caches(tmp_path: Path) -> None:
    (_, ours, _) = run([point()], tmp_path, Options())
    triton, inductor, folder = ours["caches"]
    assert triton.startswith(folder) and inductor.startswith(folder) and triton != inductor


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(rnn.ConfigError, match="did you mean 'torch'"):
        run([point()], tmp_path, Options(against=("torhc",)))
    with pytest.raises(rnn.ConfigError, match="no such folder"):
        run([point()], tmp_path / "none", Options())


def test_a_machine_that_cannot_run_them_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "import json; print(json.dumps({'failed': 'no GPU here'}))"
    monkeypatch.setattr(gpu_suite, "COMMAND", ("-c", words))
    with pytest.raises(rnn.TvmRnnError, match="no GPU here"):
        run([point()], tmp_path, Options())


def test_every_peer_is_a_framework_of_the_worker() -> None:
    assert {"tvm_rnn", *PEERS} == FRAMEWORKS.keys()


def test_records_name_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_RNN_COMMIT", raising=False)
    assert gpu_suite._commit(tmp_path) == ""
    monkeypatch.setenv("TVM_RNN_COMMIT", "0123abc")
    assert gpu_suite._commit(tmp_path) == "0123abc"

    def git(*words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = gpu_suite._commit(tmp_path)
    assert len(clean) >= 7 and clean.isalnum()
    (tmp_path / "file").write_text("2")
    assert gpu_suite._commit(tmp_path) == f"{clean}+"
