"""The estimate of registers: more sums, weights or cells take more, and it is near what nvcc takes of rings."""

from __future__ import annotations

from persistent_layers import step

from tests.cuda.persistent.product.test_ffma_layout import team as fma_team
from tvm_rnn.cuda.persistent.geometry import Team
from tvm_rnn.cuda.persistent.product import ffma_layout
from tvm_rnn.cuda.persistent.register_estimate import registers


def team(**knobs: int) -> Team:
    return Team(step("lstm", 256), "bfloat16", "cluster", **{"ctas": 8, "rows": 8, "warps_u": 4, **knobs})


def test_more_work_takes_more() -> None:
    plain = registers(team(register_words=32, shared_words=1 << 20))
    for knobs in ({"register_words": 64}, {"register_words": 32, "rows": 16}, {"register_words": 32, "ahead": 5}):
        assert registers(team(**{"shared_words": 1 << 20, **knobs})) > plain


def test_a_team_asks_for_it() -> None:
    made = team()
    assert made.registers() == registers(made)


def test_products_out_of_rings_in_float32() -> None:
    made = fma_team()
    assert ffma_layout.registers(made) + 30 < registers(made) <= 255  # nvcc takes 255, without spills
    assert registers(fma_team(rows=32)) < registers(made) < registers(fma_team("lstm", rows=72))
