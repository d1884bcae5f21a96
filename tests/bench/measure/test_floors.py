"""floors: what a sequence takes at least, and how near a time is to that."""

from __future__ import annotations

import pytest

from tvm_rnn.bench.measure.floors import floor_us, shares


def test_floors_are_work_over_measured_rates() -> None:
    found = {"memory_tb_s": 4.0, "bfloat16_tflops": 800.0}
    facts = {"flops": 8e9, "bytes": 4e6, "precision": "bfloat16"}
    assert floor_us(facts, found) == pytest.approx({"memory": 1.0, "arithmetic": 10.0})
    assert floor_us({**facts, "precision": "float64"}, found).keys() == {"memory"}


def test_shares_are_floors_over_the_time() -> None:
    found = {"memory_tb_s": 4.0, "bfloat16_tflops": 800.0}
    facts = {"flops": 8e9, "bytes": 4e6, "precision": "bfloat16", "us": 20.0}
    assert shares(facts, found) == pytest.approx({"byte_share": 0.05, "flop_share": 0.5, "share": 0.5})
    assert shares({**facts, "flops": 0.0}, found) == pytest.approx({"byte_share": 0.05, "share": 0.05})
    assert shares({**facts, "us": None}, found) == {} and shares(facts, {}) == {}
