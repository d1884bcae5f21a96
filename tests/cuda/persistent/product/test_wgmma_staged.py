"""Products of warpgroups with staged operands: which geometries may, where operands lie, packed weights; parts of K,
weights near and in registers, several in a step."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import check_packed_once, layer
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_mma_sync import calls
from tests.cuda.persistent.product.test_operands_staged import STAGED, staged
from tests.cuda.persistent.test_kernel import check
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.wgmma_staged import held


def geometry(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    return geometry_of(step(name, hidden, precision), precision, "grid", **{"ctas": 8, "rows": 16, **STAGED, **knobs})


def test_whole_warpgroups_of_a_polled_grid() -> None:
    assert geometry().possible and geometry(warps_k=3, ctas=4).k_parts == 3
    for knobs in ({"warps_u": 2}, {"passes": 2}, {"warps_n": 2}, {"rows": 264}):
        assert not geometry(**knobs).possible
    assert not geometry("lstm_layer_norm").possible  # sums over units have no place to be polled for
    assert not geometry(hidden=200, ctas=7, warps_k=2).possible  # a last block that nobody writes


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
    made = geometry(rows=32, warps_k=2, ctas=8)
    assert held(512) == 4 and held(128 * 9) == 5
    assert made.product_registers() == made.kept_registers + 2 * 32 // 2 + 4 * 4


@pytest.mark.parametrize(("name", "register_words"), [("lstm", 1000), ("lstm", 16), ("gru", 0)])
def test_every_weight_is_packed_once(name: str, register_words: int) -> None:
    made = geometry(name, 64, ctas=2, warps_k=2, register_words=register_words)
    check_packed_once(made)


COPIES = 2  # of the loop's body: even and odd steps


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("register_words", [1000, 16, 0])
def test_weights_are_near_or_in_registers(register_words: int, precision: str) -> None:
    check("lstm", 64, 9, precision, staged(2, 16, warps_k=2, register_words=register_words), steps=3)


@pytest.mark.parametrize(("register_words", "kinds"), [(1000, "rs"), (0, "ss"), (16, "rs ss")])
def test_every_tile_is_multiplied_once(register_words: int, kinds: str) -> None:
    made = geometry_of(step("lstm", 256), "bfloat16", **staged(8, 32, warps_k=2, register_words=register_words))
    code = text_of(persistent.kernel("k", made, layout_of("lstm", 256)))
    expected = sum(s.kblocks * 2 * made.m_tiles(p) for p, s in made.weights)
    assert calls(code, "m64n32k16") == COPIES * expected
    assert {kind for kind in ("rs", "ss") if calls(code, f"wgmma_bf16_{kind}")} == set(kinds.split())


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize(
    ("name", "hidden", "geometry"),
    [
        ("elman", 64, staged(2, 24, warps_k=2)),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("gru", 128, staged(4, 8, warps_k=4)),  # fewer tiles of rows than parts of K
                ("gru_reset_before", 64, staged(2, 24)),  # two products; no parts meet
                ("lstm", 128, staged(2, 16, warps_k=2)),  # two blocks of units per warp
            )
        ),
    ],
)
def test_cells_and_geometries(name: str, hidden: int, geometry: dict[str, Any], seed: int) -> None:
    check(name, hidden, 20, "bfloat16", geometry, seed=seed)


def test_who_cannot_stage_says_so() -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", **staged(2, 8, warps_u=2))
    with pytest.raises(ValueError, match="staged operands"):
        persistent.kernel("k", made, layout_of("lstm", 64))
