"""tune_session: the loop between a search and a backend, with a backend that knows the answer and costs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.schedule import record_files
from tvm_rnn.schedule.record_files import read
from tvm_rnn.target import Target, host
from tvm_rnn.tune import session as tune_session
from tvm_rnn.tune.journal import CRASHED, HUNG, WRONG, Outcome
from tvm_rnn.tune.search import part_of
from tvm_rnn.tune.session import Result, SearchOptions, Session, Status, asked, known, run, workload
from tvm_rnn.tune.workload import Candidate, Workload

NET = rnn.RNN(rnn.cells.lstm, 24, 40)


class Known:
    """A backend whose times are a function of the knobs. noise: of each ratio; final: what comparisons add to it."""

    name = "a table"
    at_once = 8
    where = None

    def __init__(self, cost: Callable[[dict[str, int]], Any], noise: float = 0.0, final: float = 0.0) -> None:
        self.cost, self.noise, self.final = cost, np.random.default_rng(0), final
        self.deviation, self.measured, self.compared = noise, list[Candidate](), list[list[Candidate]]()
        self.interrupt_after: int | None = None

    def start(self, tell: Callable[[str], None]) -> Outcome:
        tell("starting")
        return Outcome(Candidate(), ratio=1.0, median_us=100.0, default_us=100.0)

    def outcome(self, candidate: Candidate, add: float = 0.0) -> Outcome:
        knobs = {f"{c.unit['shape'][1]}_{k}": v for c in candidate.choices for k, v in c.knobs.items()}
        found = self.cost(knobs)
        if isinstance(found, str):
            return Outcome(candidate, found, reason="planted")
        ratio = found * float(np.exp(self.noise.normal(0, self.deviation))) + add
        return Outcome(candidate, ratio=ratio, median_us=100 * ratio, default_us=100.0, faster=float(ratio < 1))

    def measure(self, candidates: Sequence[Candidate], best: float) -> Generator[Outcome]:
        for candidate in candidates:
            if self.interrupt_after is not None and len(self.measured) >= self.interrupt_after:
                raise KeyboardInterrupt
            self.measured.append(candidate)
            yield self.outcome(candidate)

    def compare(self, candidates: Sequence[Candidate], seconds: float) -> list[Outcome]:
        self.compared.append(list(candidates))
        return [self.outcome(candidate, self.final) for candidate in candidates]


def work(steps: int = 6, batch: int = 4) -> Workload:
    return workload(NET, host(), steps, batch)


def tuned(backend: Known, folder: Path, trials: int = 60, **options: Any) -> Result:
    return Session(work(), host(), backend, trials, SearchOptions(records=folder, **options)).run()


def better(knobs: dict[str, int]) -> float:
    return 1.0 - 0.1 * (knobs["step_turns"] == 0) - 0.05 * (knobs["step_rows"] == 2) + 0.1 * (knobs["before_ahead"] > 8)


def test_it_finds_and_records_what_is_faster(tmp_path: Path) -> None:
    result = tuned(Known(better, noise=0.005), tmp_path, trials=100)
    record = result.record
    assert 1.12 < record.gain < 1.22 and record.trials == len(result.outcomes) <= 100
    (again,) = read([tmp_path], host().records_name).records
    assert again == record
    knobs = {c.unit["shape"][1]: c.knobs for c in record.choices}
    assert knobs["step"]["turns"] == 0
    assert {c.template for c in record.choices} == {"gemm_cpu", "walk_cpu"}


@pytest.mark.broad
def test_what_a_record_says_is_what_compile_does(tmp_path: Path) -> None:
    record = tuned(Known(better), tmp_path).record
    module = rnn.compile(NET, batch=4, records=tmp_path)
    used = {t["unit"].split()[0]: t for t in module.manifest.templates}
    assert used["step"]["knobs"] == next(c.knobs for c in record.choices if c.unit["shape"][1] == "step")
    assert used["step"]["record"].startswith("record: lstm H=40 B=4")
    x = np.random.default_rng(0).normal(size=(7, 3, 24)).astype("float32")
    NET.init(0)
    module.load_weights(NET.weights)
    assert np.allclose(module(x)[0], rnn.reference(NET)(x)[0], atol=1e-5)
    NET.weights = {}


def test_nothing_faster_is_recorded_as_the_defaults(tmp_path: Path) -> None:
    result = tuned(Known(lambda knobs: 1.0, noise=0.02), tmp_path, trials=40)
    assert min(o.ratio for o in result.outcomes) < 0.99  # by luck; the comparisons decide
    defaults = {str(p.choices[0].unit): p.choices[0] for p in result.parts}
    if result.record.gain == 1.0:
        assert all(defaults[str(dict(c.unit))].knobs == c.knobs for c in result.record.choices)
    lost = tuned(Known(better, final=0.5), tmp_path, trials=40)
    assert lost.record.gain == 1.0 and lost.record.median_us == lost.record.default_us


def test_failures_never_win_and_are_reported(tmp_path: Path) -> None:
    def cost(knobs: dict[str, int]) -> Any:
        if knobs["step_turns"] == 0:
            return {0: WRONG, 4: CRASHED, 8: HUNG}.get(knobs["before_ahead"], float("nan"))
        return 1.0 + 0.1 * (knobs["step_rows"] != 4)

    result = tuned(Known(cost), tmp_path, trials=80)
    assert result.record.gain == 1.0
    states = {o.state for o in result.outcomes if not o.valid}
    assert WRONG in states
    assert all(c.knobs.get("turns") != 0 or c.unit["shape"][1] != "step" for c in result.record.choices)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Known(better)
    first.interrupt_after = 13
    stopped = tuned(first, tmp_path)
    assert stopped.stopped == "Ctrl-C" and len(stopped.outcomes) == 13
    assert stopped.record.trials == 13  # what was found is compared and recorded
    second = Known(better)
    result = tuned(second, tmp_path, trials=30)
    assert result.resumed == 13 and len(result.outcomes) == 30 and len(second.measured) == 17
    assert not {c.key for c in first.measured} & {c.key for c in second.measured}
    fresh = tuned(Known(better), tmp_path, trials=10, fresh=True)
    assert fresh.resumed == 0


@pytest.mark.broad
def test_records_of_before_are_where_a_search_begins(tmp_path: Path) -> None:
    tuned(Known(better), tmp_path / "a")
    backend = Known(better)
    result = tuned(backend, tmp_path / "b", trials=5)
    assert result.record.gain < 1.2  # none were found: another folder
    record_files.merge(tmp_path / "c", read([tmp_path / "a"], host().records_name).records)
    second = Known(better)
    assert tuned(second, tmp_path / "c", trials=5).record.gain > 1.12
    assert {c.unit["shape"][1]: c.knobs for c in second.measured[0].choices}["step"]["turns"] == 0
    parts = [part_of(unit, host()) for unit in asked(work(), host())]
    assert known(parts, host(), read([tmp_path / "nothing"], "x")) == []


def test_patience_and_time_end_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = tuned(Known(lambda k: 1.0 + 0.2 * (k["step_rows"] != 4), noise=0.0), tmp_path, trials=500, patience=20)
    assert len(flat.outcomes) < 60

    clock = [0.0]
    monkeypatch.setattr(tune_session.time, "monotonic", lambda: clock[0])

    class Slow(Known):
        def measure(self, candidates: Sequence[Candidate], best: float) -> Generator[Outcome]:
            for outcome in super().measure(candidates, best):
                clock[0] += 0.0625
                yield outcome

    result = tuned(Slow(better, noise=0.01), tmp_path / "x", trials=10_000, seconds=2.0)
    assert result.stopped == "the time is up" and 20 < len(result.outcomes) <= 32


def test_progress_says_where_it_stands(tmp_path: Path) -> None:
    seen: list[Status] = []
    tuned(Known(better), tmp_path, trials=20, progress=seen.append)
    assert [s.trials for s in seen] == sorted(s.trials for s in seen) and seen[-1].trials == 20
    assert seen[-1].gain > 1 and seen[-1].budget == 20
    assert "20 of 20 trials, best 1." in str(seen[-1])
    assert any(s.left is not None for s in seen)


def test_arguments_are_checked_before_anything_is_done(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"trials": 0}, "tune: trials"),
        ({"steps": -1}, "tune: steps"),
        ({"batch": True}, "tune: batch"),
        ({"seconds": 0}, "tune: seconds"),
        ({"timeout": -2.0}, "tune: timeout"),
        ({"precision": "tf32"}, "CPUs compute in float32 and float64"),
        ({"target": "nvidia-h200"}, "tune --plan DIR"),
        ({"target": "x86-64-v3"}, 'with target "llvm"'),
        ({"target": "nonsense"}, "no such target"),
        ({"net": 3}, "tune needs an RNN"),
        ({"records": 3}, "records: no folder"),
        ({"patience": 0}, "tune: patience"),
        ({"jobs": 0}, "tune: jobs"),
        ({"net": rnn.RNN(rnn.cells.lstm, 3, 5).init(), "seed": -1}, "tune: seed"),
        ({"records": "a\0b"}, "records: no folder"),
    ]
    for options, text in wrong:
        given = {"net": NET, "target": "llvm", "steps": 4, "batch": 2, "trials": 5} | options
        with pytest.raises(rnn.ConfigError, match=text.replace("(", r"\(")):
            own = {name: given.pop(name) for name in (set(given) - {"net", "target", "steps", "batch", "trials"})}
            run(**given, options=SearchOptions(**{"records": tmp_path, **own}))
    assert list(tmp_path.iterdir()) == []


def test_a_network_without_weights_gets_some_and_keeps_none() -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 5)
    assert work().net.weights and not NET.weights
    own = workload(net.init(3), host(), 2, 2)
    assert own.net.weights is net.weights


def test_units_are_those_with_something_to_choose() -> None:
    kinds = [(u.kind, u.region) for u in asked(work(), host())]
    assert ("gemm", "step") in kinds and ("gemm", "before") in kinds and ("walk", "layer") in kinds
    assert not any(kind == "pointwise" for kind, _ in kinds)


def test_a_record_is_one_line_that_people_can_read(tmp_path: Path) -> None:
    result = tuned(Known(better), tmp_path, trials=12, command="tvm-rnn tune lstm")
    (path,) = tmp_path.glob("*/lstm.jsonl")
    head, line = path.read_text().splitlines()
    assert json.loads(head) == {"format": 1, "made by": ["tvm-rnn tune lstm"]}
    assert json.loads(line)["workload"]["hidden"] == 40 and result.files == [str(path)]
    assert isinstance(host(), Target) and path.parent.name == host().records_name
