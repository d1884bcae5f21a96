"""Products in float32 by FFMA out of shared memory: cells, shapes of tiles, parts of K that meet, loops."""

from __future__ import annotations

import re
from typing import Any

import pytest
from emulated import layer
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_ffma_pipeline import check, fma
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.product import ffma_layout


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "geometry"),
    [
        ("lstm", 40, 20, fma(5, 24)),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("gru", 64, 9, fma(2, 16, warps_u=4)),  # three gates: columns that fill up, warps without tiles
                ("lstm_peephole", 48, 12, fma(2, 16, warps_u=3)),
                ("gru_reset_before", 33, 33, fma(3, 16, warps_u=2)),
                ("mgu", 40, 5, fma(1, 8, warps_u=5, warps_k=1)),
            )
        ),
    ],
)
def test_cells_and_geometries(cell: str, hidden: int, batch: int, geometry: dict[str, Any], seed: int) -> None:
    check(cell, hidden, batch, 12, geometry, seed=seed, follows=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"lengths": True}, {"reset": True, "reverse": True}, {"reverse": True}])
@pytest.mark.parametrize("inputs", [0, 20])
def test_also_with_lengths_and_resets(options: dict[str, bool], inputs: int) -> None:
    check("lstm", 40, 9, inputs, fma(5, 16), **options)


@pytest.mark.broad
@pytest.mark.parametrize("turns", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_parts_take_turns(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffma_layout, "turns", lambda geometry: turns)
    check("elman", 40, 6 + turns, 24, fma(5, 16, warps_k=4), seed=turns)


def test_a_block_of_k_is_a_loop() -> None:
    """One copy of it for each operand in even and odd steps: 16 k of a tile are 8700 bytes of instructions."""
    layout = layer("lstm", 64, "float32", 64)[1]
    made = geometry_of(step_of(layout), "float32", **fma(2, 16))
    text = text_of(persistent.kernel("k", made, layout))
    slots = ffma_layout.columns(made, made.step.phases[0]) // 4
    products = len(re.findall(r" = \(\w+\[\d+\] \+ \(\w+\[\d+\] \* \w+\[\d+\]\)\)", text))
    assert products == 2 * 2 * 4 * ffma_layout.high(made) * slots


def test_who_cannot_says_so() -> None:
    made = geometry_of(step("lstm", 64, "tf32"), "tf32", **fma(2, 8))
    with pytest.raises(ValueError, match="float32"):
        persistent.kernel("k", made, layout_of("lstm", 64, "tf32"))
