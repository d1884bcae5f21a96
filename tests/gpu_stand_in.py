"""A GPU benchmark's worker on the CPU: torch's CPU tensors, and "graphs" that call the function again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tvm_rnn.bench.measure import gpu_graphs
from tvm_rnn.bench.peers.models import GpuProblem
from tvm_rnn.bench.run import gpu_worker
from tvm_rnn.bench.suites.gpu import Point, network


def stand_in(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """Make the worker run where there is no GPU. What is timed is no more than the order of the calls."""

    def capture(run: Callable[[], Any], calls: int = 1) -> gpu_graphs.Captured:
        result = run()

        def replay() -> None:
            for old, new in zip(gpu_graphs.tensors(result), gpu_graphs.tensors(run()), strict=True):
                old.copy_(new)

        return gpu_graphs.Captured(SimpleNamespace(replay=replay), result, calls=calls)

    def rounds_us(graphs: dict[str, Any], rounds: int, readings: Any = None) -> dict[str, list[float]]:
        return {name: [100.0 + i for i in range(rounds)] for name in graphs}

    monkeypatch.setattr(gpu_graphs, "capture", capture)
    monkeypatch.setattr(gpu_graphs, "rounds_us", rounds_us)
    monkeypatch.setattr(gpu_graphs, "replay_us", lambda captured, count: 100.0)
    monkeypatch.setattr(gpu_graphs, "memory_of", lambda run: 64)
    monkeypatch.setattr(gpu_graphs, "run_poisoned", lambda run, size: run())
    monkeypatch.setattr(gpu_worker.Bench, "device", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def point(cell: str = "lstm", **changes: Any) -> Point:
    """A small point in float32, which a module for the CPU can compute."""
    return Point(**{"cell": cell, "input": 4, "hidden": 8, "steps": 5, "batch": 3, "precision": "float32", **changes})


def problem(of: Point, torch: Any, module: str | None = None) -> GpuProblem:
    """What a framework is given for a point, on the CPU."""
    net = network(of).init(0)
    shapes = list(net.input_shapes.values())
    dtype = getattr(torch, of.dtype)
    inputs = tuple((torch.rand(of.steps, of.batch, *shape) * 2 - 1).to(dtype) for shape in shapes)
    lengths = gpu_worker.lengths_of(of, torch.Generator()) if of.lengths else None
    reset = gpu_worker.resets_of(of, torch.Generator()) if of.resets else None
    return GpuProblem(of, net, inputs, module, lengths=lengths, reset=reset)
