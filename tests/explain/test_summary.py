"""The summary of an explanation: four sentences that follow from facts."""

from __future__ import annotations

from typing import Any, cast

import pytest

import tvm_rnn as rnn
from tvm_rnn.explain.facts import NetworkFacts
from tvm_rnn.explain.summary import summary

NETWORK = {
    **{"cell": "lstm", "layers": 2, "directions": 1, "dtype": "float32", "precision": "float32", "weights": "float32"},
    "target": {"archs": [], "mcpu": "znver4"},
    "memory": {"parameters": 1234567},
    "regimes": [],
    "templates": [{"record": "default"}],
}
WORK = {
    **{"batch": 16, "steps": 100, "ceilings_from": "measured here", "measured_us": 1000.0, "share": 0.5},
    "floor_us": {"memory": 100.0, "arithmetic": 500.0},
}
GPU = {"target": {"archs": ["sm_90a"], "mcpu": ""}}
BY_STEP = [
    {"done": True, "what": "step by step", "why": ""},
    {"done": False, "what": "persistent_cluster_cuda", "why": "weights do not fit"},
]


def of(network: dict[str, Any], *work: dict[str, Any]) -> Any:
    return summary(cast(NetworkFacts, {**NETWORK, **network, "work": work}))


def test_the_four_sentences() -> None:
    found = of({}, WORK)
    assert found.what == "2 layers of lstm: 1,234,567 parameters, float32, for znver4."
    assert found.speed == "10 us per step at B = 16, measured; 1,600,000 steps of a row a second."
    assert found.distance == "50% of the roof at B = 16: at best it could take 5 us per step, by arithmetic."
    assert "tune" in found.change and found.share == 0.5


@pytest.mark.parametrize(
    ("network", "work", "words"),
    [
        ({}, {"measured_us": None}, "--measure"),
        ({}, {"share": 0.8}, "Nothing"),
        ({}, {"ceilings_from": "warning: this machine is busy"}, "idle"),
        ({}, {"floor_us": {"memory": 5.0, "arithmetic": 1.0}}, "int8"),
        ({"templates": [{"record": "lstm"}]}, {}, "larger batch"),
        ({**GPU, "regimes": BY_STEP}, {}, "weights do not fit"),
        ({**GPU}, {"in_turn_us": 400.0}, "40% of the time"),
    ],
)
def test_what_to_change_first(network: dict[str, Any], work: dict[str, Any], words: str) -> None:
    own = {name: value for name, value in {**WORK, **work}.items() if value is not None}
    assert words in of(network, own).change


def test_of_a_busy_machine_no_share_of_the_roof_is_said() -> None:
    """Its roof is too low: shares would be more than all of it."""
    found = of({}, {**WORK, "share": 1.67, "ceilings_from": "measured here; warning: this machine is busy"})
    assert found.share is None and found.distance.startswith("Not known: this machine was busy")
    assert "idle" in found.change and "10 us per step" in found.speed


def test_a_network_whose_time_nobody_knows() -> None:
    found = summary(rnn.explain(rnn.RNN(rnn.cells.gru, 4, 8), "x86-64-v3", records="none").facts["networks"][0])
    assert found.speed == "No time is known yet." and found.share is None
