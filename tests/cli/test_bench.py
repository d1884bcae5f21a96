"""`tvm-rnn bench --suite`: what is built, what is measured, and what is refused before anything runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tvm_rnn.bench.run import build_suite, cpu_suite, gpu_suite
from tvm_rnn.bench.suites import cpu as suites_cpu
from tvm_rnn.bench.suites import gpu as suites
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.cli.commands import app

pytestmark = pytest.mark.usefixtures("children_without_torch")

TINY = [Point("lstm", 4, 8, 5, 1, "float32"), Point("lstm", 4, 8, 5, 2, "float32"), Point("gru", 4, 8, 5, 2, "float32")]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suites.SUITES, "blog", lambda: list(TINY))


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["lstm.so", "--suite", "blog"],
        ["--suite", "blog", "--build", "a", "--modules", "b"],
        ["lstm.so", "--points", "0:1"],
        ["--suite", "compile", "--points", "0:1"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    call(*words, code=2)


def test_wrong_words_exit_with_2(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert "did you mean 'blog'" in call("--suite", "blgo", "--build", folder, code=2)
    assert "no point has this" in call("--suite", "blog", "--build", folder, "--only", "h9", code=2)
    assert "no part of a suite" in call("--suite", "blog", "--build", folder, "--points", "9", code=2)
    assert "no such folder" in call("--suite", "blog", "--modules", f"{folder}/none", code=2)
    assert "no such peer" in call("--suite", "blog", "--modules", folder, "--against", "onnx", code=2)
    assert ".svg" in call("--suite", "blog", "--modules", folder, "--plot", "a.png", code=2)


@pytest.mark.broad
def test_build_compiles_what_was_chosen(tmp_path: Path) -> None:
    folder = str(tmp_path / "modules")
    text = call("--suite", "blog", "--build", folder, "--only", "lstm", "--target", "llvm")
    assert "lstm-h8-i4-fp32 for B=1,2" in text and "1 of 1 in" in text
    index = json.loads(call("--suite", "blog", "--build", folder, "--only", "lstm", "--target", "llvm", "--json"))
    assert [row["kept"] for row in index.values()] == [True]


def test_build_fails_where_nothing_could_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_suite, "COMMAND", ("-c", """print('{"reason": "no compiler"}')"""))
    message = call("--suite", "blog", "--build", str(tmp_path), code=1)
    assert "none of the modules" in message and "no compiler" in message


def test_beside_a_measurement_what_is_measured_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def building(points: Any, folder: str, **more: Any) -> Any:
        seen.update(more, points=points, folder=folder)
        return contextlib.nullcontext("ready")

    def run(points: Any, modules: str, *_: Any, ready: Any, **more: Any) -> list[dict[str, Any]]:
        assert (points, modules, ready, more["every"]) == (seen["points"], seen["folder"], "ready", seen["every"])
        return [{"kind": "facts", "device": "a device", "versions": {}, "ceilings": {}}]

    monkeypatch.setattr(build_suite, "building", building)
    monkeypatch.setattr(gpu_suite, "run", run)
    words = ["--suite", "random", "--seed", "3", "--points", "2:6", "--jobs", "2", "--arch", "sm_90a,compute_80"]
    assert "a device" in call(*words, "--build", str(tmp_path), "--modules", str(tmp_path))
    assert seen["jobs"] == 2 and seen["alone"] and [*seen["arch"]] == ["sm_90a", "compute_80"]
    assert seen["points"] == suites.suite("random", seed=3)[2:6] and len(seen["every"]) == 200


def test_measuring_prints_a_table_json_or_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(points: Any, modules: str, options: Any, records: Any, **more: Any) -> list[dict[str, Any]]:
        seen.update(points=points, options=options, records=records, every=more["every"])
        facts = {"kind": "facts", "device": "a device", "versions": {}, "ceilings": {}}
        row = {"kind": "point", "point": "p", "framework": "tvm_rnn", "precision": "float32", "us_per_step": 1.5}
        return [facts, row]

    monkeypatch.setattr(gpu_suite, "run", run)
    words = ["--suite", "blog", "--modules", str(tmp_path), "--only", "b2"]
    assert "a device" in call(*words, "--against", "torch,triton", "--limit", "60", "--records", "r.jsonl")
    assert [p.batch for p in seen["points"]] == [2, 2] and seen["every"] == TINY and seen["records"] == "r.jsonl"
    assert seen["options"].against == ("torch", "triton") and seen["options"].limit == 60
    assert json.loads(call(*words, "--json"))[1]["us_per_step"] == 1.5
    assert call(*words, "--markdown", "--plot", str(tmp_path / "p.svg")).startswith("| point |")
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


@pytest.mark.broad
def test_a_suite_without_a_folder_runs_on_this_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(suites_cpu.SUITES, "cpu-grid", lambda: list(TINY))
    monkeypatch.setattr(cpu_suite, "ceilings_of", lambda *sizes: {"memory_tb_s": 0.1, "float32_tflops": 0.2})
    words = ["--suite", "cpu-grid", "--only", "lstm,b2", "--against", "numpy", "--threads", "1", "--rounds", "1"]
    text = call(*words, "--plot", str(tmp_path / "ratios.svg"))
    assert "lstm-h8-i4-b2-t5-fp32" in text and "x numpy (geometric mean" in text
    assert "lstm-h8-i4-b2-t5-fp32" in (tmp_path / "ratios.svg").read_text()
    assert "is measured on a GPU" in call("--suite", "gpu-grid", code=2)
    assert "is measured on a CPU" in call("--suite", "models", "--modules", "m", code=2)
    assert "did you mean 'models'" in call("--suite", "modles", code=2)


@pytest.mark.broad
def test_modules_are_measured_where_there_is_no_compiler(tmp_path: Path) -> None:
    """On a machine with a GPU and no `tvm`, the run's other process included."""
    (tmp_path / "tvm.py").write_text("raise ModuleNotFoundError(\"No module named 'tvm'\", name='tvm')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tvm_rnn", "bench", "--suite", "blog", "--modules", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1 and "cannot run GPU benchmarks" in done.stderr, done.stdout + done.stderr
