"""runtime_memory: the fastest plan within a budget, the smallest, the table, what is refused; beside all plans."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_rnn import InputError
from tvm_rnn.runtime.runtime_memory import MemoryPlan, Sizes, check_budget, fastest, plan_of, smallest, table, why_whole


def sizes(steps: int, tape: int = 700, states: int = 200, fixed: int = 5000, tile: int = 7, **more: Any) -> Sizes:
    """Of a module whose working memory stops growing at `tile` steps."""

    def work(count: int, again: bool) -> int:
        return 90 * min(count, tile) + (30 * count if again else 0)

    given: dict[str, Any] = {"results": 0, "forward": 1.0, "backward": 2.0, **more}
    return Sizes(steps, 3, lambda count: 64 + tape * count + states, work, states, fixed, **given)


def every(own: Sizes) -> list[MemoryPlan]:
    return [plan_of(own, segment) for segment in range(1, own.steps + 1)]


@given(st.integers(1, 90), st.integers(1, 900), st.integers(1, 900), st.floats(0.05, 1.2))
def test_the_fastest_that_fits_is_that_of_all_plans(steps: int, tape: int, states: int, share: float) -> None:
    own = sizes(steps, tape, states)
    plans = every(own)
    least = min(plan.bytes for plan in plans)
    assert smallest(own).bytes == least
    budget = int(share * plans[-1].bytes)
    fitting = [plan for plan in plans if plan.bytes <= budget]
    if not fitting:
        with pytest.raises(InputError, match=f"at least {least}"):
            fastest(own, budget)
        return
    found = fastest(own, budget)
    assert found.bytes <= budget and found.time == min(plan.time for plan in fitting)


def test_what_a_plan_says() -> None:
    own = sizes(100, results=1000)
    whole, part = plan_of(own, 100), plan_of(own, 30)
    assert whole == fastest(own, None) == fastest(own, whole.bytes) and whole.time == 1 and whole.again == 0
    assert whole.spans == [(0, 100)] and part.spans == [(0, 10), (10, 30), (40, 30), (70, 30)]
    assert part.again == 70 and part.time == pytest.approx(1 + 0.7 / 3) and part.peak_bytes == part.bytes + 1000
    # Tape, work with y again, four states between parts and two gradients, what is fixed.
    assert part.bytes == 64 + 700 * 30 + 200 + 90 * 7 + 30 * 30 + 6 * 200 + 5000
    assert "all steps on one tape" in str(whole) and "4 parts of 30 steps, 70 steps forward twice" in str(part)
    facts = part.facts()
    assert facts["segments"] == 4 and facts["segment_steps"] == 30 and facts["peak_bytes"] == part.peak_bytes


def test_a_table_has_nothing_that_is_both_larger_and_slower() -> None:
    own = sizes(1000)
    rows = table(own)
    assert rows[0] == plan_of(own, 1000) and rows[-1] == smallest(own) and len(rows) > 5
    for before, after in itertools.pairwise(rows):
        assert after.bytes < before.bytes and after.time > before.time


def test_long_sequences_are_planned_quickly() -> None:
    asked = []

    def tape(count: int) -> int:
        asked.append(count)
        return 1000 * count

    own = Sizes(100_000, 1, tape, lambda count, again: 0, 500, 0, 0, 1.0, 2.0)
    plan = fastest(own, 3_000_000)
    assert 2_000_000 < plan.bytes <= 3_000_000 and len(asked) < 3000
    least = smallest(own)
    assert least.bytes == min(1000 * s + 500 * (math.ceil(1e5 / s) + 2) for s in range(1, 2000))


def test_one_tape_where_time_cannot_be_cut() -> None:
    own = sizes(100, whole="of a reason")
    assert smallest(own) == plan_of(own, 100) and table(own) == [plan_of(own, 100)]
    with pytest.raises(InputError, match=r"no plan[\s\S]*of a reason"):
        fastest(own, plan_of(own, 100).bytes - 1)


def test_networks_that_need_one_tape() -> None:
    one = {"num_directions": 1}
    assert why_whole(one, False) == "" == why_whole({"num_directions": 2}, True)
    assert "compile it again" in why_whole({"num_directions": 2}, False)


def test_nothing_to_do() -> None:
    own = sizes(0, tape=0, states=0, fixed=0)
    assert fastest(own, None).spans == [] and smallest(own).time == 1


def test_starts_of_programs_take_time() -> None:
    """Each part but one runs forward twice and backward once more."""
    own = sizes(100, start=5.0)
    assert plan_of(own, 100).time == 1
    assert plan_of(own, 25).time == pytest.approx(1 + (75 + 5 * 3 * 3) / (300 + 10))


@pytest.mark.parametrize("wrong", [-1, 1.5, "many", True])
def test_budgets_that_are_none(wrong: Any) -> None:
    with pytest.raises(InputError, match="max_bytes is wrong"):
        check_budget(wrong)
    assert check_budget(None) is None and check_budget(0) == 0
