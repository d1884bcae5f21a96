"""generation_suite: modules of a folder beside their peers; what cannot be measured has a reason. A module for the CPU
stands in for one for a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import generation_suite
from tvm_rnn.bench.run.build_suite import module_file
from tvm_rnn.bench.run.compare import Report, Row
from tvm_rnn.bench.run.gpu_suite import Options
from tvm_rnn.bench.suites.gpu import Point, network
from tvm_rnn.errors import ConfigError
from tvm_rnn.runtime.runtime import Manifest

POINT = Point("lstm_greedy", 1, 4, 3, 2, "float32", sizes=(("V", 5),))


def written(path: str) -> tuple[Manifest, dict[str, Any]]:
    """What a file says that was compiled for a GPU, without weights."""
    assert Path(path).exists()
    rows = [{"unit": "step, all of T in one kernel", "template": "persistent_grid_cuda", "most": None, "phases": 3}]
    variant = Manifest(templates=[], generate=Manifest(templates=rows))
    return Manifest(variants=[variant], flops_per_row=7.0), {}


def test_ours_and_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(path: str, peers: Any, *, steps: int, batch: int, weights: Any, **more: Any) -> Report:
        assert Path(path).exists() and peers == ("torch-cuda",) and (steps, batch) == (3, 2)
        assert weights["E_l0"].shape == (5, 4)
        rows = (Row("tvm_rnn", "1", "compiled", 4.0, 0.1, error=0.0), Row("torch-cuda", reason="no GPU"))
        return Report(rows, {"oracle_steps": steps})

    (tmp_path / "m.so").touch()
    monkeypatch.setattr(generation_suite, "read_container", written)
    monkeypatch.setattr(generation_suite, "compare", compare)
    monkeypatch.setattr(generation_suite, "module_file", lambda *given: (str(tmp_path / "m.so"), 9.0))
    monkeypatch.setattr(generation_suite, "_device", lambda: "a GPU")
    facts, ours, peer = generation_suite.run([POINT], tmp_path, Options(("torch-cuda",)))
    assert facts["device"] == "a GPU"
    assert ours["tokens_per_second"] == 5e5 and ours["regime"] == "persistent_grid_cuda, 3 phases"
    assert ours["oracle_steps"] == 3 and ours["compile_seconds"] == 9.0 and peer["reason"] == "no GPU"


PROGRAM = """import sys
from tvm_rnn.bench.run import generation_suite, gpu_suite
from tvm_rnn.bench.suites.gpu import Point
generation_suite._device = lambda: "a GPU"
generation_suite._loop_of, generation_suite.regime = str, lambda *given: "a call"
point = Point.from_dict(eval(sys.argv[2]))
facts, ours, peer = generation_suite.run([point], sys.argv[1], gpu_suite.Options(("numpy",), rounds=2))
assert ours["error"] == peer["error"] == 0 and ours["config"] == "compiled", (ours, peer)
"""


@pytest.mark.broad
@pytest.mark.usefixtures("children_without_torch")
def test_a_machine_with_the_runtime_alone_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the compiler nor what writes modules is there, for this process and those that it starts."""
    path, _ = module_file(tmp_path, POINT.network, (POINT.batch,))
    rnn.compile(network(POINT), generate=True).export(path)
    absent = tmp_path / "absent"
    for name in ("tvm", "msgspec"):
        (absent / name).mkdir(parents=True)
        (absent / name / "__init__.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')")
    monkeypatch.setenv("PYTHONPATH", str(absent), prepend=os.pathsep)
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), repr(POINT.as_dict())], check=True)


def test_what_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_suite, "_device", lambda: "a GPU")
    _, row = generation_suite.run([POINT], tmp_path, Options(()))
    assert "reason" in row and row["framework"] == "tvm_rnn"
    with pytest.raises(ConfigError, match="no such folder"):
        generation_suite.run([POINT], tmp_path / "none", Options(()))
    with pytest.raises(rnn.ConfigError, match="no such peer"):
        generation_suite.run([POINT], tmp_path, Options(("nobody",)))
