"""start_time: weights that are brought on the chip take time, and the fewer steps share it, the less it is worth."""

from __future__ import annotations

import pytest
from persistent_layers import GPU, geometry_of, layout_of, step

from tvm_rnn.cuda.model.choose_regime import Persistent, choose
from tvm_rnn.cuda.model.persistent_step_time import StepTime
from tvm_rnn.cuda.model.start_time import MOST, least_steps, start_us, weight_kb


def time_of(hidden: int) -> StepTime:
    knobs = {"exchange": "cluster", "ctas": 8, "rows": 8, "warps_u": 4, "register_words": 128, "shared_words": 512}
    return StepTime(geometry_of(step("lstm", hidden, "bfloat16"), "bfloat16", **knobs), GPU)


def test_a_block_brings_its_part_of_the_weights() -> None:
    small, large = time_of(256), time_of(512)
    assert weight_kb(small.geometry) == 4 * 256 * 256 * 2 / 8 / 1024
    assert start_us(large, 1) > start_us(small, 1) > 0
    assert start_us(small, small.at_once + 1) == 2 * start_us(small, 1)


def test_the_crossing_is_where_both_ways_take_the_same_time() -> None:
    time = time_of(256)
    for other in (1.1, 2.0, 5.0, 50.0):
        least = least_steps(time, 8, lambda rows, us=other: time.us(rows) + us)
        ways = [(start_us(time, 8) + t * time.us(8), t * (time.us(8) + other)) for t in range(1, MOST + 1)]
        assert [one <= launched for one, launched in ways] == [t >= least for t in range(1, MOST + 1)]
        later = least_steps(time, 8, lambda rows, us=other: time.us(rows) + us, hidden=other)
        assert later == min(MOST, least + 1)  # a step's time less: one step later
        sooner = least_steps(time, 8, lambda rows, us=other: time.us(rows) + us, hidden=other, copies=other)
        assert sooner == least
    assert least_steps(time, 8, lambda rows: 1e9) == 1


def test_what_is_hardly_quicker_runs_from_the_most_steps_on() -> None:
    """A measured geometry may be quicker than the model says."""
    time = time_of(256)
    assert least_steps(time, 8, time.us) == least_steps(time, 8, lambda rows: 0.0) == MOST


@pytest.mark.broad
def test_every_regime_says_from_how_many_steps_on_it_runs() -> None:
    found = choose(layout_of("lstm", 512, "bfloat16"), GPU, "bfloat16", (64, 256), {})
    limits = [regime.least_steps for regime in found if isinstance(regime, Persistent)]
    assert limits and all(1 <= limit < MOST for limit in limits) and max(limits) > 1
    assert all(("T >= " in regime.fact["unit"]) == (regime.least_steps > 1) for regime in found)
