"""peers_stream: every framework, called step by step, computes what the oracle does, and begins anew at step 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from peer_problems import problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers import streaming as peers_stream
from tvm_rnn.bench.peers.models import Problem, Unsupported
from tvm_rnn.bench.peers.streaming import latencies, prepare, whole
from tvm_rnn.oracle.tolerance import assert_close


def check(name: str, net: rnn.RNN, problem: Problem) -> list[str]:
    expected, _ = rnn.reference(net)(problem.x)
    streams = prepare(name, problem)
    for run in streams.runs.values():
        for _ in range(2):
            assert_close(whole(run, 6), expected, net.dtype, 6)
    return list(streams.runs)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", ["lstm", "gru", "elman_relu"])
@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino", "numpy"])
def test_frameworks_step_as_the_oracle(name: str, cell: str) -> None:
    if name != "numpy":
        pytest.importorskip(name)
    one = small(cell, 1, False)
    configs = check(name, one, problem_of(one, threads=2))
    two = small(cell, 2, False)
    assert set(check(name, two, problem_of(two, threads=2))) <= set(configs)
    assert name == "numpy" or any("2 threads" in config for config in configs)


def test_a_peephole_of_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    net = small("lstm_peephole", 1, False)
    check("onnxruntime", net, problem_of(net))


def test_our_own_module(tmp_path: Path) -> None:
    net = small("lstm", 2, False)
    path = str(tmp_path / "m.so")
    rnn.compile(net).export(path)
    problem = problem_of(net)
    assert check("tvm_rnn", net, Problem(path, problem.manifest, net.weights, problem.inputs, 2)) == [
        "step(out=)",
        "step",
    ]


@pytest.mark.parametrize("name", ["tvm_rnn", "torch", "numpy"])
def test_what_reads_the_future_cannot_be_stepped(name: str, tmp_path: Path) -> None:
    if name == "torch":
        pytest.importorskip(name)
    net = small("elman", 1, True)
    problem = problem_of(net)
    if name == "tvm_rnn":
        rnn.compile(net).export(tmp_path / "m.so")
        problem = Problem(str(tmp_path / "m.so"), problem.manifest, net.weights, problem.inputs, 1)
    with pytest.raises(Unsupported, match="future"):
        prepare(name, problem)


def test_a_framework_without_steps_is_a_reason() -> None:
    with pytest.raises(Unsupported, match="not timed step by step"):
        prepare("torch-loop", problem_of(small("lstm", 1, False)))


def test_percentiles_are_of_single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_stream, "LEAST", 200)
    clock, calls = [0], []
    monkeypatch.setattr(peers_stream.time, "perf_counter_ns", lambda: clock[0])

    def step(t: int) -> np.ndarray:
        calls.append(t)
        clock[0] += 10_000_000 if t == 0 else 500_000
        return np.zeros(1)

    found = latencies(step, 50, 0.0)
    assert len(calls) == 200 and calls[:3] == [0, 1, 2]
    assert found["seconds"] == pytest.approx(0.0005) and found["tail"] == pytest.approx([0.01, 0.01])
