"""Compiling a suite's modules: in processes of their own, kept where they are there, with reasons where they fail."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from gpu_stand_in import point

import tvm_rnn as rnn
from tvm_rnn.bench.peers.gpu import regime
from tvm_rnn.bench.run import build_suite
from tvm_rnn.bench.run.build_suite import build, build_one, building, module_file, sources_digest
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.runtime.runtime import read_container

# The CPU stands in for a GPU: to the building side a target is a word.
CPU = {"target": "llvm"}
# What compiles nothing.
WRITES_A_FILE = """
import json, pathlib, sys
pathlib.Path(json.loads(sys.stdin.readline())["path"]).write_bytes(b"code")
print("{}", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_point_is_compiled_for_all_batches_of_its_suite(tmp_path: Path) -> None:
    every, told = [point(batch=1), point(batch=4)], list[str]()
    index = build(every[:1], tmp_path, every=every, progress=told.append, **CPU)
    (name,), (row,) = index.keys(), index.values()
    assert name == "lstm-h8-i4-fp32 for B=1,4" and row["bytes"] > 0 and "reason" not in row
    path, seconds = module_file(tmp_path, every[0].network, (1, 4))
    assert seconds == row["seconds"]
    manifest, weights = read_container(path)
    assert manifest.cell == "lstm" and manifest.batch == [1, 4] and not weights
    assert json.loads((tmp_path / "index.json").read_text()) == index
    assert told == [f"1 of 1: {name}: {row['file']}"]

    written = os.path.getmtime(path)
    again = build(every[:1], tmp_path, every=every, **CPU)
    assert os.path.getmtime(path) == written and again[name]["kept"] and again[name]["seconds"] == row["seconds"]


@pytest.mark.broad
def test_one_that_fails_has_a_reason_and_stops_no_other(tmp_path: Path) -> None:
    wrong: Point = point(without=("nothing",))
    index = build([wrong, point("elman")], tmp_path, jobs=2, **CPU)
    reasons = {name.split("-")[0]: row.get("reason") for name, row in index.items()}
    assert "no such pass" in str(reasons["lstm"]) and reasons["elman"] is None


def test_a_compilation_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    (name,), (row,) = zip(*build([point(any_batch=True)], tmp_path, limit=0.05, **CPU).items(), strict=True)
    assert name.endswith(" for any B")
    assert row["reason"] == "stopped after 0.05 s" and not os.path.exists(tmp_path / row["file"])


def test_the_file_of_older_sources_is_used_and_then_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_suite, "COMMAND", ("-c", WRITES_A_FILE))
    build([point()], tmp_path, **CPU)
    (old,) = tmp_path.glob("*.so")
    monkeypatch.setattr(build_suite, "sources_digest", lambda: "newer")
    assert module_file(tmp_path, point().network, (3,))[0] == str(old)
    build([point()], tmp_path, **CPU)
    (new,) = tmp_path.glob("*.so")
    assert new != old
    build([point()], tmp_path, target="nvidia-a100", arch=["compute_80"])
    (other,) = tmp_path.glob("*.so")
    assert other != new


def test_two_builds_into_one_folder_keep_what_each_of_them_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_suite, "COMMAND", ("-c", WRITES_A_FILE))

    def another(_text: str) -> None:
        build([point("gru")], tmp_path, **CPU)

    build([point("elman"), point("lstm")], tmp_path, progress=another, **CPU)
    index = json.loads((tmp_path / "index.json").read_text())
    assert {name.split("-")[0] for name in index} == {"elman", "lstm", "gru"}
    assert all((tmp_path / row["file"]).exists() for row in index.values())


def test_the_digest_is_of_what_modules_depend_on() -> None:
    assert len(sources_digest()) == 64
    assert "bench_build.py".startswith(build_suite.ASIDE) and not "build.py".startswith(build_suite.ASIDE)


def test_passes_that_are_left_out_are_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "m.so")
    network = point(without=("hoist_gemms",)).network
    build_one({"network": network.as_dict(), "batches": [], "target": "llvm", "arch": [], "path": path})
    manifest, _ = read_container(path)
    assert "hoist_gemms" not in manifest.passes


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_a_module_for_a_gpu_is_built_where_there_is_none(tmp_path: Path, precision: str) -> None:
    (row,) = build([point(precision=precision)], tmp_path).values()
    assert "reason" not in row, row
    manifest, weights = read_container(tmp_path / row["file"])
    assert manifest.target.name == "nvidia-h200" and not weights
    assert regime(manifest, 3, 5)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(rnn.ConfigError, match="cannot be made"):
        build([point()], tmp_path / "file" / "modules", **CPU)


def test_a_point_is_ready_when_its_module_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = point(), point("elman")
    monkeypatch.setattr(build_suite, "COMMAND", ("-c", "import time; time.sleep(60)"))
    with building([first, other], tmp_path) as ready:
        assert not ready(first)
        file = os.path.basename(module_file(tmp_path, first.network, (3,))[0])
        (tmp_path / "index.json").write_text(json.dumps({"lstm-h8-i4-fp32 for B=3": {"file": file}}))
        assert ready(first) and not ready(other)
    monkeypatch.setattr(build_suite, "COMMAND", ("-c", "exit('no compiler')"))
    wrong = "the process that compiles modules ended\n  got:      no compiler"
    with building([other], tmp_path) as ready, pytest.raises(rnn.BuildError, match=wrong):
        while not ready(other):
            time.sleep(0.01)


@pytest.mark.broad
def test_the_process_beside_a_measurement_compiles_what_is_measured(tmp_path: Path) -> None:
    """The same files as `build` has, by points, a target and options that it gets as they are."""
    of = point("elman", batch=4)
    with building([of], tmp_path, every=[of, point()], jobs=1, alone=True, **CPU) as ready:
        until = time.monotonic() + 60
        while not ready(of) and time.monotonic() < until:
            time.sleep(0.05)
        assert ready(of)
    (row,) = build([of], tmp_path, every=[of, point()], alone=True, **CPU).values()
    assert row["kept"] and row["bytes"]
