"""bench_cpu: suites on this CPU, as records that the report understands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn import ConfigError
from tvm_rnn.bench.run import cpu_suite
from tvm_rnn.bench.run import tables as bench_report
from tvm_rnn.bench.run.cpu_suite import Options, product_bytes, run
from tvm_rnn.bench.suites import cpu as suites_cpu
from tvm_rnn.bench.suites.gpu import PASSES, Point

TINY = Point("lstm", 4, 8, 5, 2, "float32")
QUICK = Options(against=("numpy",), threads=1, rounds=1, round_seconds=0.001)


@pytest.fixture(autouse=True)
def peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"memory_tb_s": 0.1, "float32_tflops": 0.2}
    monkeypatch.setattr(cpu_suite, "ceilings_of", lambda precision, size, threads: known)


@pytest.mark.broad
@pytest.mark.usefixtures("children_without_torch")
def test_a_point_becomes_a_record_of_everyone(tmp_path: Path) -> None:
    told: list[str] = []
    found = run([TINY], QUICK, tmp_path / "r.jsonl", progress=told.append)
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == found
    facts, ours, peer = found
    assert facts["kind"] == "facts" and "1 thread" in facts["device"] and told == ["1 of 1: lstm-h8-i4-b2-t5-fp32"]
    assert (ours["framework"], peer["framework"]) == ("tvm_rnn", "numpy")
    assert ours["us"] == pytest.approx(5 * ours["us_per_step"]) and ours["error"] < 1e-5
    assert ours["bytes"] == 4 * 4 * 8 * (5 * 8 + 4)  # R in each of 5 steps, W once
    assert ours["byte_share"] == pytest.approx(ours["bytes"] / 0.1e6 / ours["us"])
    report = bench_report.report(found)
    assert report.on_cpu and report.lines[0].ratio("numpy") == pytest.approx(peer["us"] / ours["us"])
    assert "note" in report.header() and "regime" not in report.header()
    assert report.markdown().startswith("| point |") and len(report.cells(report.lines[0])) == len(report.header())


@pytest.mark.slow
def test_peers_run_once_where_passes_alone_differ() -> None:
    points = [replace(TINY, without=PASSES[done:]) for done in (0, len(PASSES))]
    found = run(points, QUICK)
    assert [(row["framework"], len(row["without"])) for row in found[1:]] == [
        ("tvm_rnn", len(PASSES)),
        ("tvm_rnn", 0),
        ("numpy", 0),
    ]
    assert bench_report.report(found).lines[0].us("all passes") == found[2]["us_per_step"]


@pytest.mark.broad
def test_a_point_that_fails_has_the_reason_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cpu_suite.compile

    def sometimes(net: rnn.RNN, **options: object) -> rnn.Module:
        if net.cell.name == "gru":
            raise rnn.BuildError("no\nway")
        return real(net, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu_suite, "compile", sometimes)
    found = run([replace(TINY, cell="gru"), TINY], replace(QUICK, against=()))
    assert [row.get("reason") for row in found[1:]] == ["no way", None]


def test_the_limit_ends_it_with_a_word() -> None:
    found = run([TINY], replace(QUICK, limit=0.0, against=()))
    assert found[1:] == [{"kind": "stopped", "limit": 0.0, "points_left": 1}]


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="no such peer"):
        run([TINY], replace(QUICK, against=("torhc",)))
    with pytest.raises(ConfigError, match="rounds"):
        run([TINY], replace(QUICK, rounds=0))


def test_bytes_are_those_of_matrices_in_every_layer_and_direction() -> None:
    net = rnn.RNN(rnn.cells.gru, 3, 5, 2, True)
    step, once = 4 * 2 * 2 * 3 * 5 * 5, 4 * 2 * 3 * 5 * (3 + 10)
    assert product_bytes(net) == (step, once)
    assert product_bytes(net, ["hoist_gemms"]) == (step + once, 0)
    assert product_bytes(rnn.RNN(rnn.cells.sru, 4, 4))[0] == 0  # no product in its step


@pytest.mark.broad
@pytest.mark.usefixtures("children_without_torch")
def test_what_generates_has_tokens_per_second() -> None:
    points = suites_cpu.SUITES["generate"]()
    small = [replace(p, hidden=8, sizes=(("V", 11),), steps=4) for p in points if p.batch == 16 and p.steps == 50]
    found = run(small, QUICK)
    _, greedy, peer, drawn, absent = found
    for row in (greedy, peer, drawn):
        assert row["error"] == 0 and row["tokens_per_second"] == pytest.approx(16e6 / row["us_per_step"])
    assert greedy["bytes"] == 4 * 4 * 8 * (4 * 8 + 4 * 8 + 11) and "other random numbers" in absent["reason"]
    report = bench_report.report(found)
    assert report.header().count("tokens/s") == 2
    assert {len(report.cells(line)) for line in report.lines} == {len(report.header())}


@pytest.mark.broad
def test_a_stream_has_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    (point,) = (p for p in suites_cpu.SUITES["streaming"]() if p.name == "lstm-h16-b1-t1-fp32")
    found = run([point], replace(QUICK, stream=True))
    _, ours, peer = found
    assert ours["config"] in ("step(out=)", "step") and ours["us"] == ours["us_per_step"]
    for row in (ours, peer):
        p99, p999 = row["tail_us"]
        assert row["us_per_step"] <= p99 <= p999
    report = bench_report.report(found)
    assert report.header().count("p99.9") == 2 and len(report.header()) == len(report.cells(report.lines[0]))
