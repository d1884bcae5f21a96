"""bench --suite browser: steps in node as records, ours and onnxruntime-web's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers.models import Problem, Unsupported
from tvm_rnn.bench.peers.programs import Timed
from tvm_rnn.bench.run import audio_suite, browser_suite
from tvm_rnn.bench.run.browser_suite import run
from tvm_rnn.bench.run.cpu_suite import Options
from tvm_rnn.bench.suites.gpu import Point

TINY = Point("gru", 4, 4, 1, 1, "float32")
QUICK = Options(against=(), rounds=2, round_seconds=0.001)


class Fake(NamedTuple):
    """A program that was run before."""

    framework: str
    problem: Problem
    seconds: float
    wrong: float = 0.0
    version: str = "1"
    config: str = "node"
    samples: int = 1

    def outputs(self) -> np.ndarray:
        return rnn.reference(rnn.RNN(rnn.cells.gru, 4, 4).init(0))(self.problem.inputs)[0] + self.wrong

    @contextmanager
    def running(self, seconds: float) -> Iterator[Callable[[], Timed]]:
        yield lambda: Timed(self.seconds, [2 * self.seconds, 3 * self.seconds], self.seconds / 2)


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled."""

    def theirs(problem: Problem, folder: Path, packages: str) -> Fake:
        if packages == "none":
            raise Unsupported("npm install it")
        return Fake("onnxruntime-web", problem, 3e-6, float(packages == "wrong"))

    class Module:
        def export(self, path: Path) -> None: ...

    monkeypatch.setattr(browser_suite, "compile", lambda net, target, **options: Module())
    monkeypatch.setattr(audio_suite, "read_container", lambda path: ({}, {}))
    monkeypatch.setattr(browser_suite, "web_program", lambda module, problem, folder: Fake("tvm_rnn", problem, 1e-6))
    monkeypatch.setattr(browser_suite, "onnxruntime_web_program", theirs)


def test_a_point_becomes_a_record_of_both(tmp_path: Path) -> None:
    found = run([TINY], QUICK, tmp_path / "r.jsonl", packages="there")
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == found
    facts, ours, theirs = found
    assert facts["target"] == "wasm32" and (ours["framework"], theirs["framework"]) == ("tvm_rnn", "onnxruntime-web")
    assert ours["us_per_step"] == pytest.approx(1) and theirs["tail_us"] == pytest.approx([6, 9])


@pytest.mark.parametrize(("packages", "reason"), [("none", "npm install it"), ("wrong", "differs from the oracle")])
def test_why_there_is_no_figure(packages: str, reason: str) -> None:
    found = run([TINY], QUICK, packages=packages)
    assert reason in found[-1]["reason"] and "us" in found[1]


def test_ours_that_fails_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: rnn.Module, problem: Problem, folder: Path) -> None:
        raise Unsupported("no node")

    monkeypatch.setattr(browser_suite, "web_program", fails)
    assert run([TINY], QUICK)[1]["reason"] == "no node"
