"""What an explanation says has the fields that its types name, and no others."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.explain import facts as types


@pytest.fixture(scope="module")
def facts() -> dict:
    return rnn.explain(rnn.RNN(rnn.cells.lstm, 8, 16), batch=2, training=True).facts


def test_fields_are_those_of_the_types(facts) -> None:
    (network,) = facts["networks"]
    assert facts.keys() <= types.ExplanationFacts.__annotations__.keys()
    assert network.keys() <= types.NetworkFacts.__annotations__.keys()
    assert network["memory"].keys() <= types.MemoryFacts.__annotations__.keys()
    assert network["training"].keys() <= types.TrainingFacts.__annotations__.keys()
    for row in network["work"]:
        assert row.keys() <= types.WorkFacts.__annotations__.keys()
        assert {"batch", "steps", "flops", "bytes", "step_bytes", "kernels", "ceilings"} <= row.keys()
        assert all(group.keys() == types.GroupFacts.__annotations__.keys() for group in row["kernels"])


def test_decisions_say_what_was_done(facts) -> None:
    decisions = [d for p in facts["networks"][0]["passes"].values() for part in p.values() for d in part]
    assert decisions and all({"stage", "done", "what"} <= d.keys() for d in decisions)
    assert all(d.keys() <= types.DecisionFacts.__annotations__.keys() for d in decisions)
