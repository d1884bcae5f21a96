"""generation_suite: modules of a folder beside their peers; what cannot be measured has a reason. A module for the CPU
stands in for one for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import generation_suite
from tvm_rnn.bench.run.compare import Report, Row
from tvm_rnn.bench.run.gpu_suite import Options
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.errors import ConfigError
from tvm_rnn.runtime.runtime import Manifest

POINT = Point("lstm_greedy", 1, 4, 3, 2, "float32", sizes=(("V", 5),))


class Written:
    """A module for a GPU that only says what it is."""

    def __init__(self, path: str) -> None:
        assert Path(path).exists()
        rows = [{"unit": "step, all of T in one kernel", "template": "persistent_grid_cuda", "most": None, "phases": 3}]
        variant = Manifest(templates=[], generate=Manifest(templates=rows))
        self.manifest = Manifest(variants=[variant], flops_per_row=7.0)

    def load_weights(self, weights: Any) -> None:
        assert weights["E_l0"].shape == (5, 4)

    def export(self, path: str) -> None:
        Path(path).touch()


def test_ours_and_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(path: str, peers: Any, *, steps: int, batch: int, **more: Any) -> Report:
        assert Path(path).exists() and peers == ("torch-cuda",) and (steps, batch) == (3, 2)
        return Report((Row("tvm_rnn", "1", "compiled", 4.0, 0.1, error=0.0), Row("torch-cuda", reason="no GPU")))

    (tmp_path / "m.so").touch()
    monkeypatch.setattr(generation_suite, "load", Written)
    monkeypatch.setattr(generation_suite, "compare", compare)
    monkeypatch.setattr(generation_suite, "module_file", lambda *given: (str(tmp_path / "m.so"), 9.0))
    monkeypatch.setattr(generation_suite, "_device", lambda: "a GPU")
    facts, ours, peer = generation_suite.run([POINT], tmp_path, Options(("torch-cuda",)))
    assert facts["device"] == "a GPU"
    assert ours["tokens_per_second"] == 5e5 and ours["regime"] == "persistent_grid_cuda, 3 phases"
    assert ours["compile_seconds"] == 9.0 and peer["reason"] == "no GPU"


def test_what_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_suite, "_device", lambda: "a GPU")
    _, row = generation_suite.run([POINT], tmp_path, Options(()))
    assert "reason" in row and row["framework"] == "tvm_rnn"
    with pytest.raises(ConfigError, match="no such folder"):
        generation_suite.run([POINT], tmp_path / "none", Options(()))
    with pytest.raises(rnn.ConfigError, match="no such peer"):
        generation_suite.run([POINT], tmp_path, Options(("nobody",)))
