"""The worker of a GPU benchmark, on the CPU: what it compares, what it refuses, what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_stand_in import point, stand_in

import tvm_rnn as rnn
from tvm_rnn.bench.measure import gpu_graphs
from tvm_rnn.bench.peers import gpu as peers_gpu
from tvm_rnn.bench.peers.models import Prepared
from tvm_rnn.bench.run import gpu_worker
from tvm_rnn.bench.run.gpu_worker import Bench, errors, serve
from tvm_rnn.bench.suites.gpu import Point

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, torch)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("worker") / "lstm.so")
    rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 8)).export(path)
    return path


def request(of: Point, module: str | None, *frameworks: str, **more: Any) -> dict[str, Any]:
    options = {"rounds": 3, "compile_seconds": 60.0, "skip": {}, **more}
    return {"point": of.as_dict(), "module": module, "frameworks": list(frameworks), **options}


def test_ours_and_torch_are_compared_with_float64_and_timed(module: str) -> None:
    told: list[dict[str, Any]] = []
    ours, theirs = Bench(told.append).measure(request(point(), module, "tvm_rnn", "torch"))
    assert (ours["framework"], theirs["framework"]) == ("tvm_rnn", "torch")
    for row in (ours, theirs):
        assert row["us_per_step"] == 101.0 / 5 and row["spread"] == 2 / 101 and row["error"] < 1e-5
        assert row["bytes"] == 4 * (5 * 3 * 4 + 5 * 3 * 8 + 4 * 8 * (4 + 8 + 1))
    assert ours["repeats_equal"] is True and ours["regime"] and ours["flops_per_row"] > 0
    assert {"stage": "computing the oracle", "framework": "", "config": ""} in told
    assert [t for t in told if t["framework"] == "torch"]


def test_lengths_are_everyones_and_a_call_without_a_graph_is_a_call(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_graphs, "capture", lambda run, calls: pytest.fail("a graph"))
    rows = Bench(lambda told: None).measure(request(point(lengths=True, eager=True), module, "tvm_rnn", "torch"))
    assert all(row["us_per_step"] and row["error"] < 1e-5 for row in rows)


def test_unaligned_inputs_are_everyones(module: str) -> None:
    asked, bench = request(point(unaligned=True), module, "tvm_rnn", "torch"), Bench(lambda told: None)
    assert all(x.data_ptr() % 16 == x.element_size() for x in bench._problem(point(unaligned=True), asked).inputs)
    assert all(row["us_per_step"] and row["error"] < 1e-5 for row in bench.measure(asked))


def test_a_point_without_a_module_is_measured_for_its_peers() -> None:
    ours, theirs = Bench(lambda told: None).measure(request(point("gru"), None, "tvm_rnn", "torch"))
    assert ours["reason"] == "no module was built for it" and "us_per_step" not in ours
    assert theirs["us_per_step"]


def test_of_both_passes_there_are_rows_too() -> None:
    asked = request(point(training=True), None, "tvm_rnn", "torch")
    ours, theirs = Bench(lambda told: None).measure(asked)
    assert ours["reason"] == "no module was built for it" and theirs["reason"] == "it was not measured"
    ours, _ = Bench(lambda told: None).measure({**asked, "skip": {"tvm_rnn": "it hung"}})
    assert ours["reason"] == "it hung"


def test_what_is_to_be_skipped_keeps_its_reason(module: str) -> None:
    asked = request(point(), module, "tvm_rnn", "torch", skip={"tvm_rnn": "it hung"})
    ours, theirs = Bench(lambda told: None).measure(asked)
    assert ours["reason"] == "it hung" and theirs["us_per_step"]


def test_a_wrong_result_is_not_timed(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_worker, "tolerance", lambda precision, steps: 0.0)
    monkeypatch.setattr(gpu_worker, "MOVED", 0.0)
    (ours,) = Bench(lambda told: None).measure(request(point(), module, "tvm_rnn"))
    assert "us_per_step" not in ours and "is allowed" in ours["reason"]


def test_who_is_behind_is_timed_once_and_far_behind_its_family_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one reading each: "b" is behind, "slow 1" is so far behind that nobody tries "slow 2"."""
    us = {"a": 100.0, "b": 180.0, "slow 1": 400.0, "slow 2": 90.0, "c": 140.0}

    def prepare(problem: Any) -> Prepared:
        runs = dict.fromkeys(us, lambda: bench._oracle(problem))
        return Prepared("1", runs, families={name: name.partition(" ")[0] for name in us})

    timed: dict[str, float] = {}
    bench, readings = Bench(lambda told: None), iter([us[name] for name in us if name != "slow 2"])
    monkeypatch.setattr(gpu_graphs, "replay_us", lambda captured, count: next(readings))
    known = gpu_graphs.rounds_us

    def rounds_us(graphs: dict[str, Any], rounds: int, read: dict[str, float]) -> dict[str, list[float]]:
        timed.update({name: read[name] for name in graphs})
        return known(graphs, rounds)

    monkeypatch.setattr(gpu_graphs, "rounds_us", rounds_us)
    monkeypatch.setitem(peers_gpu.FRAMEWORKS, "cudnn", prepare)
    (row,) = bench.measure(request(point(), None, "cudnn"))
    assert timed == {"cudnn\ta": 100.0, "cudnn\tc": 140.0} and row["left_out"] == {
        "slow 2": "slow 1 takes 4.0 times as long as the best"
    }
    assert row["config"] == "a" and row["configs"]["b"] == 180.0 / 5 and row["configs"]["slow 1"] == 400.0 / 5


def test_what_is_behind_is_not_kept() -> None:
    """Each holds copies of its input and a graph's memory: a dozen of a large network are more than a GPU has."""
    contender = gpu_worker.Contender("cudnn")
    kept: dict[str, list[str]] = {}
    for config, us in {"first": 100.0, "near": 140.0, "slow": 160.0, "best": 80.0}.items():
        contender.graphs[config] = gpu_graphs.Called(lambda: None)
        contender.read(config, us)
        kept[config] = list(contender.graphs)
    assert kept["slow"] == ["first", "near"] and kept["best"] == ["first", "best"]
    assert contender.readings["slow"] == 160.0


def test_what_is_all_zero_is_right_only_as_that() -> None:
    zero, state = torch.zeros(2, 3, dtype=torch.float64), {"h": torch.ones(3, dtype=torch.float64)}
    assert errors((zero, state), (zero, state)) == (0.0, 0.0)
    assert errors((zero + 1e-3, state), (zero, state))[1] == float("inf")


@pytest.mark.broad
def test_a_spike_may_be_missing_where_a_rounding_of_the_inputs_takes_one_away() -> None:
    """Results of inputs that are rounded otherwise are allowed, those of another network are not."""
    of = point("alif", input=128, hidden=128, steps=16, batch=32, precision="bfloat16")
    bench = Bench(lambda told: None)
    given = request(of, None, "torch")
    problem = bench._problem(of, given)
    expected = bench._oracle(problem)
    (x,), draw = problem.inputs, torch.Generator().manual_seed(5)
    off = torch.rand(x.shape, generator=draw, dtype=torch.float64) * 2 - 1
    rounded = bench._oracle(replace(problem, inputs=(x.double() * (1 + 2**-9 * off),)))
    assert errors(rounded, expected)[1] > 0.01 and bench._explained(problem, rounded, expected, 0.01)
    weights = dict(problem.net.weights)
    problem.net.load({**weights, "b_l0": weights["b_l0"] + 0.1})
    wrong = bench._oracle(problem)
    problem.net.load(weights)
    assert not bench._explained(problem, wrong, expected, 0.01)


def test_an_element_that_nobody_writes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.zeros(5, 3, 8)
    monkeypatch.setitem(peers_gpu.FRAMEWORKS, "torch", lambda p: Prepared("0", {"lazy": lambda: (y, None)}))
    monkeypatch.setattr(gpu_graphs, "poison", lambda result: result[0].fill_(float("nan")))
    monkeypatch.setattr(gpu_graphs, "capture", lambda run, calls=1: gpu_graphs.Captured(Idle(), run(), calls=calls))
    (row,) = Bench(lambda told: None).measure(request(point(), None, "torch"))
    assert "error inf" in row["reason"]


def test_one_configuration_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = peers_gpu.prepare_torch

    def two(problem: Any) -> Any:
        (good,) = made(problem).runs.values()

        def bad() -> Any:
            raise ValueError("too much shared memory")

        y = torch.zeros(5, 3, 8)
        return Prepared("1", {"bad": bad, "wrong": lambda: (y, None), "good": good}, compiling=["good"])

    monkeypatch.setitem(peers_gpu.FRAMEWORKS, "triton", two)
    (row,) = Bench(lambda told: None).measure(request(point(), None, "triton"))
    assert row["config"] == "good" and row["configs"] == {"good": 101.0 / 5} and row["compile_seconds"] >= 0
    assert row["left_out"]["bad"] == "ValueError: too much shared memory" and "is allowed" in row["left_out"]["wrong"]
    (row,) = Bench(lambda told: None).measure(request(point(), None, "triton", skip={"triton: good": "it hung"}))
    assert row["reason"].startswith("bad: ValueError: too much shared memory; wrong: error")
    assert row["reason"].endswith("good: it hung")


def test_a_compiler_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"slow": lambda: time.sleep(10)}
    monkeypatch.setitem(peers_gpu.FRAMEWORKS, "triton", lambda p: Prepared("1", runs, compiling=tuple(runs)))
    (row,) = Bench(lambda told: None).measure(request(point(), None, "triton", compile_seconds=0.05))
    assert row["reason"] == "slow: its compiler was stopped after 0.05 s"


@pytest.mark.parametrize(
    ("precision", "products", "cudnn"), [("float32", False, False), ("tf32", True, True), ("bfloat16", False, True)]
)
def test_what_torch_may_multiply_with(precision: str, products: bool, cudnn: bool) -> None:
    Bench(lambda told: None).measure(request(point(precision=precision), None))
    flags = torch.backends
    assert (flags.cuda.matmul.allow_tf32, flags.cudnn.allow_tf32) == (products, cudnn)


class Idle:
    def replay(self) -> None:
        """Writes nothing."""


def test_a_peer_that_fails_says_why_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Any) -> Any:
        raise ValueError("no such thing\nand more")

    monkeypatch.setitem(peers_gpu.FRAMEWORKS, "triton", broken)
    failed, theirs = Bench(lambda told: None).measure(request(point(), None, "triton", "torch"))
    assert failed["reason"] == "ValueError: no such thing" and theirs["us_per_step"]


def test_errors_cover_states_and_call_nan_infinite() -> None:
    y, h = torch.ones(2, 1, 4, dtype=torch.float64), torch.full((1, 1, 4), 2.0, dtype=torch.float64)
    assert errors((y.float(), {"h": h.float()}), (y, {"h": h})) == (0.0, 0.0)
    assert errors((y, None), (y, {"h": h})) == (0.0, 0.0)
    largest, relative = errors((y, {"h": h * 1.5}), (y, {"h": h}))
    assert (largest, relative) == (0.5, 0.5)
    assert errors((y * float("nan"), None), (y, {"h": h})) == (float("inf"), float("inf"))
    assert errors((y[:1], None), (y, {"h": h})) == (float("inf"), float("inf"))
    assert errors((y, {"h": h * 2}), (y[:1], {})) == (0.0, 0.0)  # of a long sequence its first steps
    assert errors((y * float("nan"), None), (y[:1], {})) == errors((y[:0], None), (y[:1], {})) == (float("inf"),) * 2


def test_requests_and_answers_are_lines_of_json(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(gpu_graphs, "ceilings", lambda: {"memory_tb_s": 4.0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties())
    answers: list[dict[str, Any]] = []
    lines = [json.dumps({"facts": True}), json.dumps(request(point(), module, "tvm_rnn"))]
    serve(iter(lines), answers.append)
    facts, rows = (answer for answer in answers if "stage" not in answer)
    assert facts["facts"]["device"] == "a device" and facts["facts"]["versions"]["torch"] == torch.__version__
    assert rows["rows"][0]["us_per_step"] and json.dumps(answers)


class Properties:
    name, multi_processor_count, L2_cache_size = "a device", 1, 2


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answers: list[dict[str, Any]] = []
    serve(iter([]), answers.append)
    assert answers == [{"failed": "torch finds no NVIDIA GPU on this machine"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Candidates: two right modules, one of another network, one that is no module."""
    place = tmp_path_factory.mktemp("candidates")
    net = rnn.RNN(rnn.cells.lstm, 4, 8)
    rnn.compile(net).export(place / "a.so")
    rnn.compile(net, batch=3).export(place / "b.so")
    rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 9)).export(place / "other.so")
    (place / "broken.so").write_text("no module")
    return place


def candidates(folder: Path, *files: str, **more: Any) -> dict[str, Any]:
    return {"point": point().as_dict(), "folder": str(folder), "files": list(files), "rounds": 3, **more}


@pytest.mark.broad
@pytest.mark.parametrize("final", [False, True])
def test_right_candidates_are_timed_and_others_say_why(folder: Path, final: bool) -> None:
    told: list[dict[str, Any]] = []
    rows = Bench(told.append).candidates(candidates(folder, "a.so", "broken.so", "other.so", "b.so", final=final))
    assert [row["file"] for row in rows] == ["a.so", "broken.so", "other.so", "b.so"]
    for row in (rows[0], rows[3]):
        assert row["us"] == 101.0 and row["error"] < 1e-5 and "reason" not in row
    assert all("us" not in row and row["reason"] for row in rows[1:3])
    assert ("preparing", "broken.so") in {(t["stage"], t["config"]) for t in told}


@pytest.mark.broad
def test_a_wrong_candidate_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_worker, "tolerance", lambda precision, steps: 0.0)
    (row,) = Bench(lambda told: None).candidates(candidates(folder, "a.so"))
    assert "us" not in row and row["reason"].startswith("error")


@pytest.mark.broad
def test_a_candidate_whose_result_moves_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graphs, "same_bits", lambda one, other: False)
    bench = Bench(lambda told: None)
    assert "us" in bench.candidates(candidates(folder, "a.so"))[0]
    (row,) = bench.candidates(candidates(folder, "a.so", final=True))
    assert row["reason"] == "TvmRnnError: the result differs from run to run"


@pytest.mark.broad
def test_the_oracle_is_computed_once_for_all_candidates_of_a_point(folder: Path) -> None:
    told: list[dict[str, Any]] = []
    serve(iter([json.dumps(candidates(folder, "a.so"))] * 2), told.append)
    assert told[-1]["rows"][0]["file"] == "a.so"
    assert sum(t.get("stage") == "computing the oracle" for t in told) == 1


def test_nothing_here_imports_the_compiler() -> None:
    names = ("bench.run.gpu_worker", "bench.run.gpu_suite", "bench.run.tables", "bench.run.build_suite", "cli")
    loaded = ", ".join(f"tvm_rnn.{name}" for name in names)
    code = f"import sys, {loaded}; assert not {{'tvm', 'msgspec'}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)
