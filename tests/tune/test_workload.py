"""workload: what a record says of a network, and candidates that compile as they say."""

from __future__ import annotations

import json

import pytest

import tvm_rnn as rnn
from tvm_rnn.records import Choice
from tvm_rnn.schedule.schedule_template import Unit, templates
from tvm_rnn.target import TABLE
from tvm_rnn.tune.workload import Candidate, Trial, Workload, able, choice_of, units


def test_the_facts_name_all_sizes() -> None:
    net = rnn.RNN(rnn.cells.lstm_projection, 5, 8, 2, True, P=4)
    facts = Workload(net, 7, 3, "float32").facts
    assert facts == {
        **{"cell": "lstm_projection", "input": 5, "hidden": 8, "layers": 2, "directions": 2},
        **{"dtype": "float32", "precision": "float32", "sizes": {"P": 4}, "steps": 7, "batch": 3},
    }
    assert json.loads(json.dumps(facts)) == facts
    assert Workload(rnn.RNN(rnn.cells.gru, 5, [8, 9], 2), 7, 3, "float32").facts["hidden"] == [8, 9]


def test_candidates_are_equal_where_their_choices_are() -> None:
    one, two = Choice({"a": 1}, "t", 1, {"x": 1}), Choice({"a": 1}, "t", 1, {"x": 2})
    assert Candidate((one,)).key == Candidate().with_choice(one).key != Candidate((two,)).key
    assert Candidate((one,)).with_choice(two).choices == (two,)


@pytest.mark.broad
def test_a_trial_notes_units_and_gives_its_own_choices() -> None:
    net = rnn.RNN(rnn.cells.lstm, 8, 16).init(0)
    trial = Trial()
    rnn.compile(net, batch=4, records=trial)
    found = list(trial.asked.values())
    assert {(u.kind, u.region) for u in found} >= {("gemm", "step"), ("gemm", "before"), ("walk", "layer")}
    unit = next(u for u in found if (u.kind, u.region) == ("gemm", "step"))
    own = choice_of(templates()["gemm_cpu"], unit, {"rows": 2})
    module = rnn.compile(net, batch=4, records=Trial(Candidate((own,))))
    rows = {r["unit"].split(" G=")[0]: r for r in module.manifest.templates}
    assert rows["step gemm"]["knobs"]["rows"] == 2 and rows["step gemm"]["record"].startswith("record")
    assert rows["before gemm"]["record"] == "default"


@pytest.mark.parametrize(("kind", "something"), [("gemm", True), ("pointwise", False)])
def test_units_with_something_to_choose(kind: str, something: bool) -> None:
    unit = Unit(kind, "step", "float32", 4 if kind == "gemm" else 1, 64, (64,) if kind == "gemm" else ())
    machine = TABLE["x86-64-v3"]
    assert units([unit], machine) == ([unit] if something else [])
    assert [t.name for t in able(unit, machine)] == ["gemm_cpu" if kind == "gemm" else "rows_cpu"]
