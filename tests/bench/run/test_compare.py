"""A module beside its peers: what is compared, what is refused, what is reported. No test looks at how fast."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

import tvm_rnn as rnn
from tvm_rnn.bench.run import compare
from tvm_rnn.bench.suites import writers
from tvm_rnn.module_file import manifest
from tvm_rnn.oracle.tolerance import tolerance

QUICK: dict[str, Any] = {"steps": 3, "batch": 2, "threads": 1, "rounds": 2, "round_seconds": 0.0}


@pytest.fixture(scope="module")
def lstm() -> Any:
    return rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 8).init(seed=1))


@pytest.fixture(scope="module")
def lstm_file(lstm: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("bench") / "lstm.so")
    lstm.export(path)
    return path


def printed(report: compare.Report) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(report.table())
    return out.getvalue()


@pytest.mark.broad
@pytest.mark.usefixtures("children_without_torch")
def test_a_module_file_beside_numpy(lstm_file: str) -> None:
    told: list[str] = []
    report = compare.compare(lstm_file, ["numpy"], progress=told.append, **QUICK)
    ours, numpy = report.rows
    assert (ours.name, numpy.name) == ("tvm_rnn", "numpy")
    for row in report.rows:
        assert row.error is not None and row.error <= tolerance("float32", 3)
        assert row.median_us and row.gflops and row.spread is not None and row.reason == ""
        assert row.least_us and row.least_us <= row.median_us
    assert ours.ratio == 1 and numpy.ratio == numpy.median_us / ours.median_us
    assert {"starting numpy", "round 2 of 2"} <= set(told)


def test_tokens_may_differ_where_two_are_as_likely() -> None:
    tokens = np.arange(12, dtype=np.int32).reshape(6, 2)
    other = np.where(np.arange(12).reshape(6, 2) == 4, 0, tokens)
    assert compare._error(tokens, tokens) == 0 and compare._error(other, tokens) == 1 / 12 < compare.MOST_OTHER_TOKENS
    assert compare._error(tokens[1:], tokens) == float("inf")


@pytest.mark.broad
@pytest.mark.usefixtures("children_without_torch")
def test_a_module_that_generates_is_timed_so_or_as_a_stream() -> None:
    @rnn.cell(output="token")
    def own(x: "1", h: "H", *, E: "V H"):
        h = rnn.tanh(h + E[x[0]])
        return h, rnn.argmax(h, keepdims=True)

    module = rnn.compile(rnn.RNN(own, 1, 5, V=5).init(0), generate=True)
    for stream, config in ((False, "compiled"), (True, "step(out=)")):
        ours = compare.compare(module, (), stream=stream, **QUICK).rows[0]
        assert ours.median_us and config in ours.configs and ours.error is None


@pytest.mark.broad
def test_weights_in_fewer_bits_are_compared_as_such(tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    rnn.compile(rnn.RNN(rnn.cells.lstm, 8, 16).init(0), weights="int8").export(path)
    ours = compare.compare(path, (), **QUICK).rows[0]
    assert ours.error is not None and 1e-4 < ours.error < 2e-2


@pytest.mark.broad
@pytest.mark.peers
def test_every_peer_that_is_installed_is_timed_and_agrees(lstm_file: str) -> None:
    report = compare.compare(lstm_file, **QUICK)
    assert [row.name for row in report.rows] == ["tvm_rnn", *compare.USUAL]
    for row in report.rows:
        assert (row.median_us is None) == ("not installed" in row.reason), row
        assert row.error is None or row.error <= tolerance("float32", 3)


@pytest.mark.broad
def test_the_report_as_table_and_as_json_says_where_it_was_measured(lstm: Any) -> None:
    report = compare.compare(lstm, ["numpy"], **QUICK)
    again = json.loads(json.dumps(report.as_dict()))
    assert again["facts"]["cell"] == "lstm" and again["facts"]["threads"] == 1
    assert {"cpu", "versions", "load", "rounds", "target"} <= again["facts"].keys()
    assert [row["name"] for row in again["rows"]] == ["tvm_rnn", "numpy"]
    text = " ".join(printed(report).split())  # lines break where the CPU's name lets them
    for part in (f"numpy {np.__version__}", "us/step", "GFLOP/s", "T 3, B 2, threads 1", "load average"):
        assert part in text


@pytest.mark.broad
def test_a_cell_that_a_peer_lacks_is_named_with_the_reason() -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.augru, 4, 8).init(seed=1))
    report = compare.compare(module, ["onnxruntime", "numpy"], **QUICK)
    _, missing, numpy = report.rows
    assert missing.median_us is None and missing.ratio is None
    assert "no cell augru" in missing.reason or "not installed" in missing.reason
    assert numpy.median_us
    assert missing.reason in " ".join(printed(report).replace("│", " ").split())


@pytest.mark.broad
def test_a_users_own_cell_is_timed_alone_and_unchecked() -> None:
    @rnn.cell
    def mine(x: "I", h: "H", *, W: "H I"):
        return rnn.tanh(W @ x + h)

    report = compare.compare(rnn.compile(rnn.RNN(mine, 4, 8).init(seed=1)), ["numpy", "torch"], **QUICK)
    assert report.rows[0].median_us and report.rows[0].error is None
    assert "unchecked" in printed(report)
    assert all("mine" in row.reason or "not installed" in row.reason for row in report.rows[1:])


@pytest.mark.broad
def test_no_ratio_for_a_result_that_differs(lstm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter([1.0, 0.0])  # ours passes whatever it is, then nothing does
    monkeypatch.setattr(compare, "tolerance", lambda dtype, steps: next(limits))
    _, numpy = compare.compare(lstm, ["numpy"], **QUICK).rows
    assert numpy.median_us is None and numpy.ratio is None
    assert "not timed, its result differs" in numpy.reason


@pytest.mark.broad
def test_a_module_that_is_not_what_its_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    @rnn.cell(name="elman_relu")
    def mine(x: "I", h: "H", *, W: "H I", R: "H H", b: "H"):
        return rnn.relu(W @ x + R @ h - b)

    module = rnn.compile(rnn.RNN(mine, 4, 8).init(seed=1))
    ours, numpy = compare.compare(module, ["numpy"], **QUICK).rows  # its equations tell that it is a user's own
    assert ours.median_us is not None and "not a cell of the zoo" in numpy.reason
    del module.manifest["equations"]  # which files may leave out; its code is told what it was made for anew
    monkeypatch.setattr(manifest, "carried", lambda *_: None)
    with pytest.raises(rnn.TvmRnnError, match="differs from the oracle"):
        compare.compare(module, ["numpy"], **QUICK)


@pytest.mark.parametrize(("seconds", "asked"), [((9, 5, 4, 4, 1), 4), ((1, 2), 2), ((9, 8, 7, 6, 5, 4), 5)], ids=str)
def test_rounds_count_once_they_get_no_faster(seconds: Sequence[float], asked: int) -> None:
    left = [*seconds]

    class Worker:
        def ask(self, request: object) -> dict[str, float]:
            return {"seconds": left.pop(0)}

    contender = compare.Contender("numpy")
    contender.warm_up(0.01)  # of one without a process nothing is asked
    contender.worker, contender.seconds = cast(Any, Worker()), {"one": []}
    contender.warm_up(0.01)
    assert len(seconds) - len(left) == asked and contender.seconds == {"one": []}


def test_a_busy_machine_is_told_of() -> None:
    """In the table and in JSON."""

    def warned(spread: float) -> list[str]:
        rows = (compare.Row("tvm_rnn", median_us=1.0, spread=spread), compare.Row("torch", reason="not installed"))
        return compare.Report(rows).warnings()

    assert warned(0.1) == []
    (text,) = warned(2.2)
    assert "220%" in text and "busy" in text and "not reliable" in text
    assert compare.Report((compare.Row("tvm_rnn", spread=9.0),)).as_dict()["warnings"]


def test_wrong_arguments_are_named(lstm: Any) -> None:
    with pytest.raises(rnn.ConfigError, match=r"(?s)no such peer.*did you mean 'torch'"):
        compare.compare(lstm, ["torhc"], **QUICK)
    for name in ("steps", "batch", "rounds", "threads"):
        with pytest.raises(rnn.ConfigError, match=name):
            compare.compare(lstm, ["numpy"], **{**QUICK, name: 0})


def test_files_that_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rnn.LoadError):
        compare.compare(tmp_path / "none.so", ["numpy"], **QUICK)
    path = tmp_path / "bare.so"
    rnn.compile(rnn.RNN(rnn.cells.elman, 4, 8)).export(path)
    with pytest.raises(rnn.WeightError, match="without weights"):
        compare.compare(path, ["numpy"], **QUICK)
    of_a_gpu = compare.Manifest(variants=[compare.Manifest(arch="sm_90a")])
    monkeypatch.setattr(compare, "read_container", lambda path: (of_a_gpu, {}))
    with pytest.raises(rnn.ConfigError, match=r"(?s)only modules of CPUs.*got: +one for sm_90a.*--training"):
        compare.compare(path, ["numpy"], **QUICK)


def test_a_module_of_a_gpu_that_generates_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of it ends on the CPU, as its peers' do."""
    rows = {"inputs": [compare.Manifest(name="x")], "states": [], "weights": []}
    writes = compare.Manifest(variants=[compare.Manifest(arch="sm_90a")], generation={"tokens": 5}, **rows)
    monkeypatch.setattr(compare, "read_container", lambda path: (writes, {}))
    assert compare._with_weights("writes.so", {}) == (writes, {})


def test_rows_of_a_large_batch_that_draws_no_tokens_repeat() -> None:
    plain, drawn = compare.Manifest(), compare.Manifest(draws=["token"])
    distinct, rows = compare._rows(plain, 256, "generation")
    assert distinct == len({*rows.tolist()}) == 29 and rows.tolist() == [row % 29 for row in range(256)]
    for given in ((plain, 12, "generation"), (drawn, 256, "generation"), (plain, 256, "sequence")):
        distinct, rows = compare._rows(*given)
        assert distinct == given[1] and rows.tolist() == [*range(given[1])]


def test_the_oracle_makes_the_first_steps_where_all_take_minutes() -> None:
    """Of what is drawn each number counts; without draws 29 rows do not take long."""

    def steps(cell: str, tokens: int, rows: int) -> int:
        net = rnn.RNN(writers.CELLS[cell], 1, 512, V=tokens)
        flops = 2 * 512 * (4 * 512 + tokens)  # the table has the input's product
        return compare._oracle_steps(net, compare.Manifest(flops_per_row=flops), rows, 1000)

    assert [steps("lstm_greedy", tokens, rows) for tokens, rows in ((256, 29), (32000, 16))] == [1000, 1000]
    assert steps("lstm_sample", 256, 256) == 1000 and steps("lstm_sample", 32000, 1) == 1000
    assert 10 < steps("lstm_sample", 32000, 256) < 100 and steps("lstm_sample", 32000, 10**9) == 1


def test_a_process_that_ends_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    contender = compare.Contender("numpy")
    with contextlib.ExitStack() as stack:
        contender.start(stack, str(tmp_path), {"path": "nowhere.so", "threads": 1})
        contender.prepare(None, 1.0)
    assert "numpy ended early" in contender.reason and "nowhere.so" in contender.reason


@pytest.mark.broad
def test_a_peer_that_fails_does_not_stop_the_others(lstm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "PEERS", (*compare.PEERS, "nobody"))
    _, nobody, numpy = compare.compare(lstm, ["nobody", "numpy"], **QUICK).rows
    assert "ended early" in nobody.reason and "KeyError" in nobody.reason
    assert numpy.median_us
