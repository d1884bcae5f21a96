"""tune_plot: a picture that is well-formed, with every trial, failures included, and the knobs that matter first."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from tvm_rnn.records import Choice
from tvm_rnn.tune.journal import Outcome
from tvm_rnn.tune.plot import history, influences, plot, unit_name
from tvm_rnn.tune.workload import Candidate

UNIT = {"shape": ["gemm", "step", "float32", 4, 1], "sizes": {"width": [256], "depths": [256], "batch": [16]}}


def outcome(rows: int, panels: int, ratio: float, state: str = "ok") -> Outcome:
    candidate = Candidate((Choice(UNIT, "gemm_cpu", 1, {"rows": rows, "panels": panels}),))
    if state != "ok":
        return Outcome(candidate, state, reason="planted <&>")
    return Outcome(candidate, ratio=ratio, median_us=100 * ratio, default_us=100.0)


TRIALS = [outcome(1, 1, 2.0), outcome(2, 1, 1.0), outcome(4, 1, 0.5), outcome(4, 2, 0.55), outcome(2, 2, 1.1)]


def test_the_knob_with_the_largest_effect_comes_first() -> None:
    found = influences([*TRIALS, outcome(8, 1, 0.0, "wrong")])
    assert [(i.knob, i.best) for i in found] == [("rows", 4), ("panels", found[1].best)]
    assert found[0].ratio > 3 > found[1].ratio > 0 and found[0].unit == unit_name(TRIALS[0].candidate.choices[0])


def test_the_best_so_far_never_falls_and_failures_are_crosses() -> None:
    spec = json.loads(json.dumps(history([0.9, None, 1.2, 1.1])))
    assert [row["best"] for row in spec["data"]["values"]] == [1.0, 1.0, 1.2, 1.2]
    assert [row["trial"] for row in spec["layer"][2]["data"]["values"]] == [2]


def test_the_picture_is_xml_and_shows_every_trial() -> None:
    pytest.importorskip("vl_convert")
    text = plot([*TRIALS, outcome(8, 1, 0.0, "crashed")], "a <title> & more", {"target": "znver5"})
    root = ElementTree.fromstring(text)
    words = " ".join("".join(node.itertext()) for node in root.iter())
    assert "a <title> & more" in words and "target znver5" in words and "rows" in words
    marks = [node for node in root.iter() if node.get("aria-roledescription") == "point"]
    assert len(marks) == len(TRIALS) and [node.text for node in root.iter() if node.text == "x"] == ["x"]


def test_a_run_without_trials_is_a_picture_too() -> None:
    pytest.importorskip("vl_convert")
    ElementTree.fromstring(plot([], "nothing was tried"))
    ElementTree.fromstring(plot([outcome(8, 1, 0.0, "hung")], "nothing worked"))
