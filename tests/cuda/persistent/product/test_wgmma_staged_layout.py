"""Which geometries may stage their operands, where these lie, and that weights are packed for the lanes that
multiply."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import check_packed_once, layer
from persistent_layers import geometry_of, step

from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product import wgmma_staged_layout

STAGED: dict[str, Any] = {"warps_u": 4, "polled": 1, "staged": 1, "shared_words": 1 << 20}


def team(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    return geometry_of(step(name, hidden, precision), precision, "grid", **{"ctas": 8, "rows": 16, **STAGED, **knobs})


def test_whole_warpgroups_of_a_polled_grid() -> None:
    assert team().possible and team(warps_k=3, ctas=4).k_parts == 3
    for knobs in ({"warps_u": 2}, {"passes": 2}, {"warps_n": 2}, {"rows": 264}):
        assert not team(**knobs).possible
    assert not team("lstm_layer_norm").possible  # sums over units have no place to be polled for
    assert not team(hidden=200, ctas=7, warps_k=2).possible  # a last block that nobody writes


def test_every_source_has_a_place() -> None:
    _, layout = layer("gru_reset_before", 64, "bfloat16", 72)
    made = geometry_of(step_of(layout), "bfloat16", "grid", 2, 16, **{**STAGED, "register_words": 32})
    places = sorted((made.place(n), made.value_words(n)) for n in made.sources)
    assert len(places) == 3  # x, h and r h
    assert places[0][0] == made.weight_words and made.weight_words > 0
    assert [at for at, _ in places[1:]] == [at + size for at, size in places[:-1]]
    assert all(at * 4 % 512 == 0 for at, _ in places)  # the swizzle's period
    assert made.shared_bytes >= 4 * (places[-1][0] + places[-1][1])


def test_pieces_and_registers() -> None:
    made = team(rows=32, warps_k=2, ctas=8)
    assert wgmma_staged_layout.held(512) == 4 and wgmma_staged_layout.held(128 * 9) == 5
    assert made.product_registers() == made.kept_registers + 2 * 32 // 2 + 4 * 4


@pytest.mark.parametrize(("name", "register_words"), [("lstm", 1000), ("lstm", 16), ("gru", 0)])
def test_every_weight_is_packed_once(name: str, register_words: int) -> None:
    made = team(name, 64, ctas=2, warps_k=2, register_words=register_words)
    check_packed_once(made)
