"""records: which record a unit finds, and what is said of those that it cannot use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.records import Choice, Record, Records
from tvm_rnn.schedule.schedule_template import DEFAULT, Unit, best, space, templates
from tvm_rnn.target import TABLE

UNIT = Unit("gemm", "step", "float32", 4, 256, (256,), 3, (16,))
MACHINE = TABLE["x86-64-v3"]


def record(unit: Unit = UNIT, date: str = "2026-01-02T00:00:00Z", **knobs: int) -> Record:
    work = {"cell": "lstm", "hidden": 256, "batch": 16, "precision": "float32"}
    choice = Choice(unit.key, "gemm_cpu", templates()["gemm_cpu"].version, knobs or {"rows": 2})
    return Record(MACHINE.name, work, (choice,), 8.0, 10.0, 0.01, 7, {"tvm": "1"}, date, "tvm-rnn tune")


def test_a_record_survives_json() -> None:
    one = record()
    assert Record.from_dict(one.as_dict(), "somewhere") == one
    assert one.gain == 1.25 and one.name == "lstm H=256 B=16 float32"


def test_a_record_with_earlier_names_is_found() -> None:
    unit = Unit("sum_rows", "after", "float32", 1, 256, (256,))
    earlier = {**unit.key, "shape": ["total", *unit.key["shape"][1:]]}
    choice = {"unit": earlier, "template": "totals_cpu", "version": 1, "knobs": {"rows": 2, "panels": 1}}
    read = Record.from_dict({**record().as_dict(), "choices": [choice]})
    (found,) = Records([read]).find(unit)
    assert found.distance == 0 and found.choice.template in templates()


@pytest.mark.parametrize(
    "change", [{"format": 9}, {"choices": [{}]}, {"workload": {"cell": "x"}}, {"median_us": "fast"}, {"choices": 3}]
)
def test_what_is_no_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Record.from_dict({**record().as_dict(), **change})


@pytest.mark.parametrize("sizes", [{"width": 5}, {"width": ["5"]}, {"width": [None]}, 5], ids=str)
def test_sizes_of_a_record_are_numbers(sizes: Any) -> None:
    facts = record().as_dict()
    choice = {**Choice(UNIT.key, "gemm_cpu", 1, {}).as_dict(), "unit": {**UNIT.key, "sizes": sizes}}
    with pytest.raises(ValueError):
        Record.from_dict({**facts, "choices": [choice]})


@pytest.mark.parametrize("size", [0, -7, 10**400])
def test_sizes_that_are_none_are_far_from_all(size: int) -> None:
    strange = record(replace(UNIT, width=size, batches=(size,)))
    assert list(Records([strange]).find(UNIT)) == []


def test_numbers_of_a_workload_are_some() -> None:
    facts = record().as_dict()
    for change in ({"batch": 0}, {"layers": "2"}, {"steps": -1}, {"hidden": [None]}, {"sizes": 3}):
        with pytest.raises(ValueError):
            Record.from_dict({**facts, "workload": {**record().workload, **change}})


def test_exact_ones_come_first_and_of_those_the_newest() -> None:
    near = record(replace(UNIT, width=320, depths=(320,)), "2026-09-09")
    old, new = record(date="2026-01-01"), record(date="2026-02-01", rows=4)
    found = list(Records([near, old, new]).find(UNIT))
    assert [f.record.date for f in found] == ["2026-02-01", "2026-01-01", "2026-09-09"]
    assert [f.distance == 0 for f in found] == [True, True, False]
    assert found[0].note == "record: lstm H=256 B=16 float32, 2026-02-01"
    assert found[2].note.startswith("nearest record: ")


@pytest.mark.parametrize(
    ("change", "there"),
    [
        ({"width": 300}, True),
        ({"width": 512}, False),
        ({"batches": (20,)}, True),
        ({"batches": (64,)}, False),
        ({"batches": (1, 16)}, True),
        ({"batches": (16, 64)}, False),
        ({"batches": ()}, False),
        ({"depths": (256, 256)}, False),
        ({"gates": 3}, False),
        ({"dtype": "float64"}, False),
        ({"stages": 99}, True),
    ],
)
def test_how_far_a_record_reaches(change: dict[str, Any], there: bool) -> None:
    assert bool(list(Records([record()]).find(replace(UNIT, **change)))) == there


def test_precisions_of_16_bits_share_records() -> None:
    half = record(replace(UNIT, dtype="float16"))
    assert list(Records([half]).find(replace(UNIT, dtype="bfloat16")))


def test_those_of_other_targets_and_versions_are_left_out() -> None:
    every = Records([record(), replace(record(), target="other"), replace(record(), versions={"tvm": "0"})], ["a line"])
    kept = every.for_target(MACHINE.name, {"tvm": "1"})
    assert len(kept) == 1 and kept.ignored[0] == "a line"
    assert kept.ignored[1] == "lstm H=256 B=16 float32: made with tvm 0; tune again"


def test_best_takes_a_record_and_says_so() -> None:
    _, other, *_ = space(templates()["gemm_cpu"], UNIT, MACHINE)
    found = best(UNIT, replace(MACHINE, records=Records([record(**other)])))
    assert found.knobs == other and found.record.startswith("record: lstm")
    assert best(UNIT, MACHINE).record == DEFAULT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "made for version 99 of the template"),
        ({"template": "gone"}, "no template gone takes this unit"),
        ({"knobs": {"rows": 77}}, "knob rows has no such value"),
        ({"knobs": {"strange": 3}}, "no knob strange here"),
    ],
)
def test_a_stale_record_leaves_the_default_and_a_word_why(change: dict[str, Any], words: str) -> None:
    one = record()
    stale = replace(one, choices=(replace(one.choices[0], **change),))
    found = best(UNIT, replace(MACHINE, records=Records([stale])))
    assert found.knobs == best(UNIT, MACHINE).knobs
    assert found.record.startswith("default (a record: lstm") and words in found.record


def test_a_record_may_say_that_the_defaults_were_best() -> None:
    one = record()
    defaults = replace(one, choices=(replace(one.choices[0], template=DEFAULT, knobs={}),))
    near = record(replace(UNIT, width=300))
    found = best(UNIT, replace(MACHINE, records=Records([near, defaults])))
    assert found.knobs == best(UNIT, MACHINE).knobs and found.record.endswith(": defaults")


@pytest.mark.broad
def test_each_batch_size_gets_the_code_of_its_own_record() -> None:
    net = rnn.RNN(rnn.cells.gru, 33, 40).init(0)
    single, many = (Unit("gemm", "step", "float32", 3, 40, (40,), batches=(b,)) for b in (1, 16))
    rows = Records([record(single, panels=1, turns=1), record(many, rows=2)])
    module = rnn.compile(net, "llvm", [1, 4, 16], records=rows)
    used = [t for t in module.manifest.templates if t["unit"].startswith("step gemm")]
    assert sorted(t["record"].split(":")[0] for t in used) == ["default", "record", "record"]
    rng = np.random.default_rng(0)
    for batch in (1, 2, 3, 4, 5, 16, 17, 33):
        x = rng.normal(size=(5, batch, 33)).astype("float32")
        expected = rnn.reference(net)(x)[0]
        for module.threads in (1, 2):
            assert np.allclose(module(x)[0], expected, atol=1e-5)
