"""Two explanations side by side: rows follow from the facts of both, ratios from their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

import tvm_rnn as rnn
from tvm_rnn.explain import Explanation
from tvm_rnn.explain.beside import Beside
from tvm_rnn.explain.facts import ExplanationFacts, PairFacts

NETWORK: dict[str, Any] = {
    **{"cell": "lstm", "layers": 1, "directions": 1, "dtype": "float32", "precision": "float32", "weights": "float32"},
    "target": {"archs": [], "mcpu": "znver4"},
    "graphs": [[0]],
    "memory": {"parameters": 3000, "weight_bytes": 12000, "packed_bytes": 0},
    "passes": {"hoist_gemms": {"did": [{"what": "W @ x", "why": "reads no state"}], "did_not": []}},
    "regimes": [],
    "templates": [{"unit": "step gemm", "template": "gemm_cpu", "record": "default", "knobs": {"rows": 4}}],
}
WORK: dict[str, Any] = {
    **{"batch": 16, "steps": 100, "flops": 2e6, "bytes": 3e6, "step_bytes": 4e3, "ceilings_from": "here"},
    **{"measured_us": 100.0, "share": 0.5, "floor_us": {"memory": 10.0, "arithmetic": 50.0}},
}


def explanation(*networks: dict[str, Any]) -> Explanation:
    facts = {"networks": [{**NETWORK, "work": [WORK], **own} for own in networks], "versions": {}}
    return Explanation(cast(ExplanationFacts, facts))


def rows(first: Explanation, second: Explanation, number: int = 0) -> dict[str, PairFacts]:
    facts = Beside(first, second, ("a", "b")).facts
    json.dumps(facts)
    return {row["name"]: row for section in facts["networks"][number] for row in section["rows"]}


def test_figures_have_the_second_over_the_first() -> None:
    quicker = {**WORK, "measured_us": 25.0, "share": 0.8}
    found = rows(
        explanation({}), explanation({"work": [quicker], "memory": {**NETWORK["memory"], "weight_bytes": 3000}})
    )
    assert found["B = 16: time"] == {
        "name": "B = 16: time",
        "values": ["100 us measured", "25 us measured"],
        "ratio": 0.25,
    }
    assert found["B = 16: share of the roof"]["values"] == ["50%", "80%"]
    assert found["weights"]["ratio"] == 0.25 and found["parameters"]["ratio"] == 1.0
    assert "packed for products" not in found


def test_a_time_that_only_one_has_gives_no_ratio() -> None:
    untimed = {name: value for name, value in WORK.items() if name not in ("measured_us", "share")}
    found = rows(explanation({"work": [untimed]}), explanation({}))
    assert found["B = 16: time"] == {"name": "B = 16: time", "values": ["-", "100 us measured"]}


def test_only_batch_sizes_of_both_are_compared() -> None:
    found = rows(explanation({"work": [WORK, {**WORK, "batch": 3}]}), explanation({"work": [{**WORK, "batch": 3}]}))
    assert "B = 3: time" in found and "B = 16: time" not in found


def test_decisions_and_schedules_that_differ_are_told_and_no_others() -> None:
    other = {
        "passes": {"hoist_gemms": {"did": [], "did_not": []}},
        "templates": [{**NETWORK["templates"][0], "knobs": {"rows": 8}}],
    }
    found = rows(explanation({}), explanation(other))
    assert found["hoist_gemms: W @ x"]["values"] == ["reads no state", "-"]
    assert found["step gemm"]["values"] == ["gemm_cpu (default) rows=4", "gemm_cpu (default) rows=8"]
    same = rows(explanation({}), explanation({}))
    assert not {"hoist_gemms: W @ x", "step gemm", "who runs the steps"} & same.keys()


def test_a_model_with_fewer_networks() -> None:
    found = rows(explanation({}, {}), explanation({}), number=1)
    assert found["What it is"]["values"][1] == "-" and "B = 16: time" not in found
    assert "network 1: in short" in str(Beside(explanation({}, {}), explanation({}), ("a", "b")))


@pytest.mark.broad
def test_two_cells_for_a_cpu_and_for_a_gpu(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.min_gru, 24, 40, 2)
    both = Beside(rnn.explain(net, "x86-64-v4"), rnn.explain(net, "nvidia-h200", precision="tf32"), ("cpu", "gpu"))
    values = [value for section in both.facts["networks"][0] for row in section["rows"] for value in row["values"]]
    for words in ("of min_gru:", "one call for all of T", "for sm_90a."):
        assert any(words in value for value in values)
    assert "min_gru" in str(both)
