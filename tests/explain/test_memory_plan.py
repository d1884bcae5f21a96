"""memory_plan: plans of a network before it is compiled are those of the module that is made of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, InputError
from tvm_rnn.explain.memory_plan import MemoryPlans, plan_memory
from tvm_rnn.runtime.runtime_memory import table

STEPS, BATCH = 60, 5


@functools.cache
def planned(**options: Any) -> MemoryPlans:
    return plan_memory(network("lstm", 9, 16, num_layers=2), steps=STEPS, batch=BATCH, **options)


@pytest.mark.broad
@pytest.mark.parametrize("keep", ["values", pytest.param("states", marks=pytest.mark.slow)])
def test_a_module_has_the_plans_that_its_network_had(keep: str) -> None:
    net = network("lstm", 9, 16, num_layers=2)
    module: Any = rnn.compile(net, batch=BATCH, training=True, keep=keep)
    own = table(module.memory_sizes(STEPS, BATCH))
    found = planned(keep=keep).table
    assert [(row.keep, row.plan.bytes, row.plan.segment) for row in found] == [(keep, p.bytes, p.segment) for p in own]
    assert [row.plan.time for row in found] == pytest.approx([plan.time for plan in own])


def test_the_table_is_of_all_choices() -> None:
    plans = planned()
    rows = plans.table
    assert plans.chosen == rows[0] and rows[0].plan.time == 1 and rows[0].keep == "values"
    for one in rows:
        for other in rows:
            assert one == other or one.plan.bytes < other.plan.bytes or one.plan.time < other.plan.time
    every = [row for keep in ("values", "states") for row in planned(keep=keep).table]
    assert rows[-1].plan.bytes == min(row.plan.bytes for row in every)
    assert "plans of training's memory for T = 60, B = 5" in str(plans)
    assert plans.facts()["table"][0]["keep"] == "values"


def test_the_fastest_within_a_budget() -> None:
    whole, least = planned().table[0].plan, planned().table[-1].plan
    for share in (0.8, 0.5, 0.3):
        budget = max(least.bytes, int(share * whole.bytes))
        chosen = planned(max_bytes=budget).chosen
        assert chosen.plan.bytes <= budget
        known = [row.plan.time for row in planned().table if row.plan.bytes <= budget]
        assert chosen.plan.time <= min(known)
    with pytest.raises(InputError, match=f"at least {least.bytes}"):
        planned(max_bytes=least.bytes - 1)


def test_on_a_gpu_that_is_not_here() -> None:
    net = network("elman", 16, 16, dtype="float16")
    plans = plan_memory(net, "nvidia-h200", steps=200, batch=8, keep="values")
    whole = plans.table[0].plan
    assert whole.segment == 200 and whole.bytes > 200 * 8 * 16 * 2 * 2  # x and h, in 16 bits, at least
    assert plans.table[-1].plan.bytes < whole.bytes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 0, "batch": 1}, "plan_memory: steps"),
        ({"steps": 5, "batch": True}, "plan_memory: batch"),
        ({"steps": 5, "batch": 1, "keep": "all"}, "no such choice"),
    ],
)
def test_arguments_that_are_wrong(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_memory(network("elman", 4, 4), **options)
