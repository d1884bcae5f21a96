"""onnx_streams: a model as C programs serve it, ours beside ONNX Runtime's; what fails says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.run.test_onnx_files import written
from tvm_rnn.bench.run import onnx_streams
from tvm_rnn.bench.run.onnx_files import Options
from tvm_rnn.bench.suites.onnx_files import OnnxFile

MODEL = OnnxFile("one", "package/one.onnx", {"x": (3, 4)})


@pytest.mark.slow
def test_a_model_is_called_in_c_beside_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_streams, "ROUND_SECONDS", 0.0)
    ours, peer = onnx_streams.measured(MODEL, written(tmp_path / "m.onnx", "Tanh"), Options(1, rounds=2))
    assert ours["framework"] == "tvm_rnn" and peer["framework"] == "onnxruntime" and ours["config"] == "C"
    assert max(float(str(own["error"])) for own in (ours, peer)) < 1e-6
    assert ours["ratio"] == pytest.approx(float(str(peer["us"])) / float(str(ours["us"])))
    assert onnx_streams.table([{"kind": "facts"}, ours, peer]).row_count == 1


@pytest.mark.slow
def test_results_of_halves_are_floats_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_streams, "ROUND_SECONDS", 0.0)
    path = written(tmp_path / "m.onnx", "Cast", results="FLOAT16", to=10)
    ours, peer = onnx_streams.measured(MODEL, path, Options(1, rounds=2))
    assert float(str(ours["error"])) < 1e-3 and float(str(peer["error"])) < 1e-6


def test_what_cannot_be_compiled_says_why(tmp_path: Path) -> None:
    (ours,) = onnx_streams.measured(MODEL, written(tmp_path / "m.onnx", "Unique"), Options(1))
    assert "operator Unique is not supported" in str(ours["reason"])
    assert onnx_streams.table([ours]).row_count == 1
