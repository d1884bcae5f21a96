"""bench --suite audio: programs as records that the report understands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import ConfigError
from tvm_rnn.bench.peers.models import Problem, Unsupported
from tvm_rnn.bench.peers.programs import Timed
from tvm_rnn.bench.run import audio_suite
from tvm_rnn.bench.run import tables as bench_report
from tvm_rnn.bench.run.audio_suite import run
from tvm_rnn.bench.run.cpu_suite import Options
from tvm_rnn.bench.suites.gpu import Point

TINY = Point("lstm", 4, 4, 1, 1, "float32")
QUICK = Options(against=(), rounds=1, round_seconds=0.001)


class Fake(NamedTuple):
    """A program that was run before."""

    framework: str
    config: str
    seconds: float
    problem: Problem
    samples: int = 1
    version: str = "1"
    wrong: float = 0.0

    def outputs(self) -> np.ndarray:
        net = rnn.RNN(rnn.cells.lstm, 4, 4).init(0)
        return rnn.reference(net)(self.problem.inputs)[0] + self.wrong

    @contextmanager
    def running(self, seconds: float) -> Iterator[Callable[[], Timed]]:
        yield lambda: Timed(self.seconds, [2 * self.seconds, 3 * self.seconds], self.seconds / 2)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is compiled; the sources that RTNeural was to be built from."""
    sources: list[str] = []

    def theirs(problem: Problem, folder: Path, samples: int, path: str) -> Fake:
        sources.append(path)
        if path == "none":
            raise Unsupported("no sources there")
        return Fake("rtneural", "Eigen", 1e-7, problem, wrong=float(path == "wrong"))

    def ours(problem: Problem, folder: Path, samples: int) -> list[Fake]:
        return [Fake("tvm_rnn", config, 5e-8, problem, samples) for config in ("checked", "unchecked")]

    class Module:
        def export(self, path: str) -> None: ...

    monkeypatch.setattr(audio_suite, "compile", lambda net, **options: Module())
    monkeypatch.setattr(audio_suite, "read_container", lambda path: ({}, {}))
    monkeypatch.setattr(audio_suite, "bundle_programs", ours)
    monkeypatch.setattr(audio_suite, "rtneural_program", theirs)
    return sources


def test_a_point_becomes_a_record_of_everyone(built: list[str], tmp_path: Path) -> None:
    found = run([TINY], QUICK, tmp_path / "r.jsonl", rtneural="there")
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == found
    facts, ours, unchecked, _ = found
    assert "CPU time" in facts["clock"] and built == ["there"]
    assert [r["framework"] for r in found[1:]] == ["tvm_rnn", "unchecked", "rtneural"]
    assert ours["us_per_step"] == pytest.approx(0.05) and ours["tail_us"] == pytest.approx([0.1, 0.15])
    assert ours["real_time"] == pytest.approx(1e6 / 48000 / 0.05) and ours["error"] == unchecked["error"] == 0
    assert bench_report.report(found).lines[0].ratio("rtneural") == pytest.approx(2)
    report = bench_report.report(found)
    assert "x 48 kHz" in report.header() and len(report.cells(report.lines[0])) == len(report.header())
    assert "417" in report.markdown()


def test_a_block_counts_by_the_sample(built: list[str]) -> None:
    (_, ours, _) = run([replace(TINY, steps=64)], QUICK)
    assert ours["us_per_step"] == pytest.approx(0.05 / 64) and ours["us"] == pytest.approx(0.05)
    assert ours["tail_us"] == pytest.approx([0.1 / 64, 0.15 / 64]) and ours["clock_us"] == pytest.approx(0.025 / 64)


def test_figures_are_medians_of_all_turns() -> None:
    """One round's bad luck, or good luck, is not a figure; rounds differ by their own medians."""
    entry = audio_suite.Entry(Fake("tvm_rnn", "checked", 1e-6, problem=cast(Problem, None)))
    for seconds in ((1, 2, 90), (4, 2, 2)):
        entry.timed.append([Timed(s * 1e-6, [2 * s * 1e-6, 10e-6 / s], 1e-8 * s) for s in seconds])
    record = entry.record()
    assert record["us"] == pytest.approx(2) and record["tail_us"] == pytest.approx([4, 5])
    assert record["clock_us"] == pytest.approx(0.02) and record["spread"] == 0


def test_programs_take_turns_and_each_begins_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """So none is always the one that follows a certain other. Turns take a millisecond on any machine."""
    order = list[str]()
    monkeypatch.setattr(audio_suite.time, "monotonic", lambda: 0.001 * len(order))

    class Told(Fake):
        @contextmanager
        def running(self, seconds: float) -> Iterator[Callable[[], Timed]]:
            def turn() -> Timed:
                order.append(self.framework)
                return Timed(1e-6, [1e-6, 1e-6], 0.0)

            yield turn

    entries = [audio_suite.Entry(Told(name, "", 0.0, problem=cast(Problem, None))) for name in "abc"]
    audio_suite._round(entries, 0.003)
    assert "".join(order) == "abcbcacab" and len({len(entry.timed[0]) for entry in entries}) == 1


@pytest.mark.parametrize(("path", "reason"), [("none", "no sources"), ("wrong", "differs from the oracle")])
def test_why_a_peer_has_no_figure(path: str, reason: str, built: list[str]) -> None:
    found = run([TINY], QUICK, rtneural=path)
    assert reason in found[-1]["reason"] and found[-1]["framework"] == "rtneural" and "us" in found[1]


def test_ours_that_fails_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(net: rnn.RNN, **options: object) -> rnn.Module:
        raise rnn.BuildError("no\nway")

    monkeypatch.setattr(audio_suite, "compile", fails)
    assert run([TINY], QUICK)[1]["reason"] == "no way"


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="no such peer"):
        run([TINY], replace(QUICK, against=("torhc",)))


@pytest.mark.broad
@pytest.mark.usefixtures("children_without_torch")
def test_it_runs(tmp_path: Path) -> None:
    found = run([TINY, replace(TINY, steps=64)], replace(QUICK, against=("numpy",)))
    names = [[r["framework"] for r in found[1:] if r["steps"] == steps] for steps in (1, 64)]
    assert names == [["tvm_rnn", "unchecked", "numpy"]] * 2
    assert all(r["us_per_step"] > 0 and r["error"] < 1e-5 for r in found[1:])
