"""Products in float32 out of pipelines: which geometries can, sizes that fit, and that every weight is packed once."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import check_packed_once, layer
from persistent_layers import geometry_of, step

from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product import ffma_layout

FMA: dict[str, Any] = {"exchange": "grid", "polled": 1, "register_words": 0, "fma": 2, "warps_k": 8}


def team(name: str = "lstm", hidden: int = 512, inputs: int = 512, **knobs: Any) -> Geometry:
    made = step_of(layer(name, hidden, "float32", inputs)[1]) if inputs else step(name, hidden, "float32")
    return geometry_of(made, "float32", **{**FMA, "ctas": 32, "rows": 64, "warps_u": 2, "warps_k": 4, **knobs})


def test_polled_grids_of_products_in_float32() -> None:
    assert team().possible and team("gru_reset_before").possible
    wrong = ({"warps_n": 2}, {"passes": 2}, {"register_words": 32}, {"fma": 1})
    for knobs in (*wrong, {"fma": 6}, {"rows": 72}):  # more copies ahead than an operand has blocks; too many sums
        assert not team(**knobs).possible
    assert not team("lstm_layer_norm", 64, 0, ctas=4, rows=8).possible
    tf32 = geometry_of(step("lstm", 512, "tf32"), "tf32", **{**FMA, "ctas": 32, "rows": 8})
    assert not tf32.possible


def test_a_tile_and_its_pipeline() -> None:
    made = team()
    (phase,) = made.step.phases
    assert ffma_layout.columns(made, phase) == 64 and ffma_layout.high(made) == 8
    assert [share.operand.given for _, share in ffma_layout.order(made)] == [True, False]
    assert [share.kblocks for _, share in ffma_layout.order(made)] == [4, 4]
    assert ffma_layout.stage_bytes(made) == 8192 and made.weight_words == 0
    assert made.product_registers() == 128 + 32 + 32
    assert made.shared_bytes <= ffma_layout.LIMIT and ffma_layout.turns(made) == 2


def test_sums_take_turns_where_there_is_no_room() -> None:
    few, many = team(rows=8), team(fma=3)
    assert ffma_layout.turns(few) == 1 and ffma_layout.turns(many) == 8
    for made in (few, many):
        assert made.partial_words * ffma_layout.turns(made) == made.warps * ffma_layout.part_words(made)
        assert made.shared_bytes <= ffma_layout.LIMIT


def test_resident_weights_leave_the_pipeline() -> None:
    none, some, every = (team(rows=8, ctas=64, shared_words=n, warps_u=1, warps_k=8) for n in (0, 32, 1 << 20))
    assert none.weight_words == 0 and some.weight_words == 8 * 32 * 32
    assert [ffma_layout.stage_bytes(made) for made in (none, some, every)] == [2560, 2560, 512]
    assert every.weight_words == 32 * 1024  # 32 gates, K = 1024


@pytest.mark.parametrize(("name", "hidden", "inputs"), [("lstm", 36, 20), ("gru", 40, 24), ("gru_reset_before", 33, 0)])
def test_every_weight_is_packed_once(name: str, hidden: int, inputs: int) -> None:
    made = team(name, hidden, inputs, ctas=3, rows=8, warps_k=4)
    check_packed_once(made)


def test_registers() -> None:
    made = team()
    assert made.product_registers() + 30 < made.registers() <= 255  # nvcc takes 255, without spills
    assert team(rows=32).registers() < made.registers() < team(rows=72).registers()
