"""Products of warpgroups with staged operands: parts of K, weights near and in registers, several in a step."""

from __future__ import annotations

from typing import Any

import pytest
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_mma_sync import calls
from tests.cuda.persistent.product.test_operands_staged import staged
from tests.cuda.persistent.test_kernel import check
from tvm_rnn.cuda.persistent import kernel as persistent

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
