"""onnx_files: a model is compared and timed beside ONNX Runtime; what fails says why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tvm_rnn.bench.run import onnx_files
from tvm_rnn.bench.suites.onnx_files import OnnxFile


def written(path: Path, operator: str, results: str = "FLOAT", **attributes: Any) -> Path:
    """A file of one operator on x."""
    import onnx

    helper, kinds = onnx.helper, {"x": onnx.TensorProto.FLOAT, "y": getattr(onnx.TensorProto, results)}
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    ends = [[helper.make_tensor_value_info(name, kind, ["B", 4])] for name, kind in kinds.items()]
    graph = helper.make_graph([node], "test", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.broad
def test_a_model_is_compared_and_timed(tmp_path: Path) -> None:
    model = OnnxFile("one", "package/one.onnx", {"x": (3, 4)})
    options = onnx_files.Options(threads=1, rounds=1)
    ours, peer = onnx_files.measured({model: written(tmp_path / "m.onnx", "Tanh")}, options)
    assert ours["ratio"] == pytest.approx(float(str(peer["us"])) / float(str(ours["us"])))
    assert float(str(ours["error"])) < 1e-6
    shown, mean = onnx_files.table([{"kind": "facts"}, ours, peer])
    assert shown.row_count == 1 and mean.startswith(f"geometric mean of 1: {ours['ratio']:.2f}")


@pytest.mark.broad
def test_where_results_differ_float64_says_who_is_nearer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_files, "MOST", -1.0)
    model = OnnxFile("one", "package/one.onnx", {"x": (3, 4)})
    path = written(tmp_path / "m.onnx", "Tanh")
    ours, peer = onnx_files.measured({model: path}, onnx_files.Options(threads=1, rounds=1))
    assert set(ours["from_float64"]) == {"tvm_rnn", "onnxruntime"}
    assert all(0 < far < 1e-6 for far in ours["from_float64"].values())
    shown, _ = onnx_files.table([ours, peer])
    (text,) = shown.columns[5].cells
    assert "tvm_rnn " in str(text) and "onnxruntime " in str(text)


def test_what_cannot_be_compiled_says_why(tmp_path: Path) -> None:
    model = OnnxFile("one", "package/one.onnx", {"x": (3, 4)})
    (ours,) = onnx_files.measured({model: written(tmp_path / "m.onnx", "Unique")}, onnx_files.Options(1))
    assert "operator Unique is not supported" in str(ours["reason"])
    shown, mean = onnx_files.table([ours])
    assert shown.row_count == 1 and mean.startswith("geometric mean of 0")


def test_time_that_is_gone_leaves_the_rest(tmp_path: Path) -> None:
    models = {OnnxFile("one", "package/one.onnx", {"x": (3, 4)}): tmp_path / "none.onnx"}
    (record,) = onnx_files.measured(models, onnx_files.Options(1, limit=-1.0))
    assert record["kind"] == "stopped" and record["points_left"] == 1


def test_a_round_waits_for_threads_of_the_one_before() -> None:
    """On clocks of its own: while another thread of this process is busy, and no longer than it was asked to."""
    for busy_until, most, pauses in ((0.1, 1000, 21), (math.inf, 3, 3), (0.0, 1000, 1)):
        now = [0.0]

        def sleep(seconds: float, now: list[float] = now) -> None:
            now[0] += seconds

        def used(now: list[float] = now, until: float = busy_until) -> float:
            return min(now[0], until)

        clock = mock.Mock(sleep=sleep, perf_counter=lambda now=now: now[0], process_time=used)
        with mock.patch.object(onnx_files, "time", clock):
            onnx_files.until_idle(0.005, most)
        assert round(now[0] / 0.005) == pauses
