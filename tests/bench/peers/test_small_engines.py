"""Engines for small machines: whole sequences, and step by step, as the oracle; what they lack is a reason."""

from __future__ import annotations

import numpy as np
import pytest
from peer_problems import problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers import streaming, worker
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.oracle.tolerance import assert_close

STEPS = 6
MODULES = {"litert": "ai_edge_litert", "tflite-micro": "tflite_micro"}  # whose name is not the peer's


@pytest.mark.peers
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru", "elman"])
@pytest.mark.parametrize(("name", "batch"), [("ncnn", 1), ("tract", 3), ("litert", 3), ("tflite-micro", 3)])
def test_they_compute_as_the_oracle(name: str, batch: int, cell: str, layers: int) -> None:
    pytest.importorskip(MODULES.get(name, name))
    net = small(cell, layers, False)
    problem = problem_of(net, STEPS, batch)
    expected, _ = rnn.reference(net)(problem.x)
    for run in worker.prepare(name, problem).runs.values():
        assert_close(np.array(run()), expected, net.dtype, STEPS)
    for step in streaming.prepare(name, problem).runs.values():
        for _ in range(2):
            assert_close(streaming.whole(step, STEPS), expected, net.dtype, STEPS)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["ncnn", "tract", "litert", "tflite-micro"])
def test_what_they_lack_is_a_reason(name: str) -> None:
    pytest.importorskip(MODULES.get(name, name))
    with pytest.raises(Unsupported, match="future"):
        streaming.prepare(name, problem_of(small("gru", 1, True), batch=1))
    with pytest.raises(Unsupported, match="float64"):
        worker.prepare(name, problem_of(rnn.RNN(rnn.cells.lstm, 2, 3, dtype="float64").init(seed=0), batch=1))
    if name == "ncnn":
        with pytest.raises(Unsupported, match="no batches"):
            worker.prepare(name, problem_of(small("lstm", 1, False), batch=2))
