"""One framework of a benchmark: each computes what the oracle does, and the process keeps to its protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_problems import problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers import worker as peers
from tvm_rnn.bench.peers.models import ONNX_CELLS, TORCH_CELLS, Prepared, Problem, Unsupported
from tvm_rnn.oracle.tolerance import assert_close

Prepare = Callable[[Problem], Prepared]


def check(prepare: Prepare, name: str, num_layers: int, bidirectional: bool, threads: int = 2) -> Prepared:
    """Every configuration agrees with the oracle, twice: a second run must not continue from the first one's state."""
    net = small(name, num_layers, bidirectional)
    problem = problem_of(net, threads=threads)
    expected, _ = rnn.reference(net)(problem.x)
    prepared = prepare(problem)
    for run in prepared.runs.values():
        for _ in range(2):
            assert_close(np.asarray(run()), expected, "float32", 6)
    return prepared


@pytest.mark.broad_after(3)
@pytest.mark.peers
@pytest.mark.parametrize("name", TORCH_CELLS)
@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")
def test_torch_computes_the_same(name: str) -> None:
    pytest.importorskip("torch")
    check(peers.prepare_torch, name, 1, False)
    check(peers.prepare_torch, name, 2, True)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["lstm", "mgu", "gru_reset_before"])
def test_the_equations_in_torch_compute_the_same(name: str) -> None:
    pytest.importorskip("torch")
    prepared = check(peers.prepare_torch_loop, name, 2, True)
    assert list(prepared.runs) == ["2 threads", "1 thread"]


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_compiles_computes_the_same() -> None:
    pytest.importorskip("torch")
    check(peers.FRAMEWORKS["torch-compile"], "mgu", 1, False)


def test_a_projection_that_torch_refuses_is_a_reason() -> None:
    pytest.importorskip("torch")
    with pytest.raises(Unsupported, match="narrower than H"):
        peers.prepare_torch(problem_of(rnn.RNN(rnn.cells.lstm_projection, 4, 4, P=4).init()))


@pytest.mark.peers
@pytest.mark.parametrize("name", ONNX_CELLS)
def test_onnxruntime_computes_the_same(name: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    check(peers.prepare_onnxruntime, name, 1, False)
    two = check(peers.prepare_onnxruntime, name, 2, True, threads=2)
    assert list(two.runs) == ["2 threads", "1 thread", "2 threads, no spinning"]
    one = check(peers.prepare_onnxruntime, name, 1, True, threads=1)
    assert list(one.runs) == ["1 thread"]


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name in ONNX_CELLS if name != "lstm_peephole"])
def test_openvino_computes_the_same(name: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("openvino")
    check(peers.prepare_openvino, name, 1, False)
    check(peers.prepare_openvino, name, 2, True)


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino", "ncnn", "tract", "litert", "tflite-micro"])
def test_a_cell_that_a_framework_lacks_or_a_missing_framework_is_a_reason(name: str) -> None:
    with pytest.raises(Unsupported, match=r"it has no cell mgu|is not installed"):
        peers.FRAMEWORKS[name](problem_of(small("mgu")))


def test_a_framework_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "torch-loop": "torch",
        "torch-compile": "torch",
        "litert": "ai_edge_litert",
        "tflite-micro": "tflite_micro",
    }
    for name in ("torch", "onnxruntime", "openvino", "ncnn", "tract", *modules):
        module = modules.get(name, name)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(Unsupported, match=f"{module} is not installed"):
            peers.FRAMEWORKS[name](problem_of(small("lstm")))


def test_the_time_is_the_median_of_at_least_three_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(peers.time, "perf_counter", lambda: clock[0])
    takes = [1.0, 4.0, 32.0, 2.0, 8.0]  # of which the first warms up
    left = iter(takes)

    def run() -> None:
        clock[0] += next(left)

    assert peers.median_seconds(run, 0.0, lambda: clock[0]) == 4.0
    assert list(left) == takes[4:]
    assert peers.clock_of(1) is peers.time.process_time


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("peers") / "elman.so")
    rnn.compile(rnn.RNN(rnn.cells.elman, 4, 4).init(seed=1)).export(path)
    return path


def request_for(module: str, folder: Path) -> dict[str, Any]:
    x = np.random.default_rng(0).uniform(-1, 1, (5, 2, 4)).astype(np.float32)
    np.save(folder / "x.npy", x)
    given = {"path": module, "inputs": {"x": str(folder / "x.npy")}, "weights": {}, "folder": str(folder)}
    return {**given, "threads": 1, "way": "sequence", "steps": 0}


@pytest.mark.parametrize("name", ["tvm_rnn", "numpy"])
def test_the_first_request_prepares_and_the_others_time(name: str, module: str, tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    request = request_for(module, tmp_path)
    config = {"tvm_rnn": "compiled", "numpy": "all rows at once"}[name]
    lines = [json.dumps(r) for r in (request, {"config": config, "seconds": 0.0}, {"config": config, "seconds": 0.0})]
    peers.serve(name, iter(lines), answers.append)
    ready, *times = answers
    assert ready["version"] and list(ready["results"]) == [config]
    assert all(answer["seconds"] > 0 for answer in times) and len(times) == 2
    expected, _ = rnn.reference(rnn.RNN(rnn.cells.elman, 4, 4).init(seed=1))(np.load(request["inputs"]["x"]))
    assert_close(np.load(ready["results"][config]), expected, "float32", 5)


def test_the_process_answers_on_stdout_and_ends_with_its_stdin(module: str, tmp_path: Path) -> None:
    line = json.dumps(request_for(module, tmp_path)) + "\n"
    command = [sys.executable, "-m", "tvm_rnn.bench.peers.worker", "numpy"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, timeout=60, check=True)
    (answer,) = done.stdout.splitlines()
    assert json.loads(answer)["version"] == np.__version__
