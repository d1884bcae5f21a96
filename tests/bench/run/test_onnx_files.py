"""onnx_files: a model is compared and timed beside ONNX Runtime; what fails says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import onnx_files
from tvm_rnn.bench.suites.onnx_files import OnnxFile


def written(path: Path, operator: str) -> Path:
    """A file of one operator on x."""
    import onnx

    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(operator, ["x"], ["y"])
    ends = [[helper.make_tensor_value_info(name, floats, ["B", 4])] for name in "xy"]
    graph = helper.make_graph([node], "test", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.broad
def test_a_model_is_compared_and_timed(tmp_path: Path) -> None:
    model = OnnxFile("one", "package/one.onnx", {"x": (3, 4)})
    options, records = onnx_files.Options(threads=1, rounds=1), tmp_path / "records.jsonl"
    facts, ours, peer = onnx_files.run({model: written(tmp_path / "m.onnx", "Tanh")}, options, records)
    assert [json.loads(line) for line in records.read_text().splitlines()] == [facts, ours, peer]
    assert ours["ratio"] == pytest.approx(float(str(peer["us"])) / float(str(ours["us"])))
    assert float(str(ours["error"])) < 1e-6 and facts["clock"] == "CPU time of the thread, fastest round"
    shown, mean = onnx_files.table([facts, ours, peer])
    assert shown.row_count == 1 and mean.startswith(f"geometric mean of 1: {ours['ratio']:.2f}")


def test_what_cannot_be_compiled_says_why(tmp_path: Path) -> None:
    model = OnnxFile("one", "package/one.onnx", {"x": (3, 4)})
    _, ours = onnx_files.run({model: written(tmp_path / "m.onnx", "Unique")}, onnx_files.Options(1))
    assert "operator Unique is not supported" in str(ours["reason"])
    shown, mean = onnx_files.table([ours])
    assert shown.row_count == 1 and mean.startswith("geometric mean of 0")


def test_no_package_at_all() -> None:
    with pytest.raises(rnn.TvmRnnError, match="pip install"):
        onnx_files.run({}, onnx_files.Options(1))
