"""copy_warps: warps that copy hoisted values and y while those of the same block compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.persistent.copy_warps import copies_output
from tvm_rnn.cuda.persistent.geometry import MOST_COPY_WARPS, Geometry, most_registers
from tvm_rnn.cuda.persistent.kernel import kernel
from tvm_rnn.oracle.tolerance import tolerance


def block(rows: int, **knobs: int) -> dict[str, Any]:
    how = "block" if knobs.get("ctas", 1) == 1 else "cluster alone"
    return {"exchange": how, "rows": rows, "shared_words": 1 << 20, "register_words": 160, **knobs}


def geometry(cell: str, hidden: int, precision: str = "bfloat16", rows: int = 8, **knobs: int) -> Geometry:
    made: Geometry = geometry_of(step(cell, hidden, precision), precision, **block(rows, **knobs))
    return made


@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision", "knobs", "modes"),
    [
        ("lstm", 21, 11, "bfloat16", {"warps_u": 3}, [(False, False, False), (True, False, False)]),
        ("lstm", 43, 11, "bfloat16", {"ctas": 2, "warps_u": 2}, [(False, False, False), (True, False, False)]),
        ("gru_reset_before", 24, 9, "float16", {"ctas": 2, "warps_u": 2, "warps_k": 2}, [(False, False, False)]),
        ("lstm", 32, 9, "float16", {"warps_u": 2, "rows": 16}, [(False, False, False)]),
        ("gru_reset_before", 18, 5, "float16", {"warps_u": 2, "warps_k": 2}, [(False, False, False)]),
        pytest.param("gru", 13, 9, "tf32", {"warps_u": 2}, [(True, False, False)], marks=pytest.mark.broad),
        pytest.param("lstm", 24, 9, "bfloat16", {"warps_u": 3}, [(False, True, True)], marks=pytest.mark.broad),
        pytest.param(
            "lstm_projection", 40, 9, "float16", {"warps_u": 5}, [(False, False, False)], marks=pytest.mark.broad
        ),
        pytest.param("slstm", 20, 9, "bfloat16", {"warps_u": 1}, [(False, False, False)], marks=pytest.mark.broad),
        pytest.param("lstm", 40, 9, "bfloat16", {"ctas": 4}, [(False, False, False)], marks=pytest.mark.slow),
        pytest.param(
            "lstm_projection",
            40,
            9,
            "bfloat16",
            {"ctas": 2, "warps_u": 2},
            [(True, False, False)],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "slstm", 36, 20, "bfloat16", {"ctas": 2, "warps_u": 3}, [(False, False, False)], marks=pytest.mark.slow
        ),
        pytest.param("lstm", 33, 9, "float16", {"ctas": 3}, [(False, True, True)], marks=pytest.mark.slow),
        pytest.param("lstm", 75, 17, "float16", {"warps_u": 10}, [(False, False, False)], marks=pytest.mark.slow),
        pytest.param("elman", 39, 5, "float32", {"warps_u": 5}, [(False, False, False)], marks=pytest.mark.slow),
    ],
)
def test_they_bring_what_cells_read_and_take_y_away(
    name: str, hidden: int, batch: int, precision: str, knobs: dict[str, int], modes: list[tuple[bool, bool, bool]]
) -> None:
    """More steps than there are stages of copies."""
    rows = knobs.pop("rows", 8)
    assert geometry(name, hidden, precision, rows, **knobs).copy_warps
    for reverse, lengths, reset in modes:
        case = Case(name, hidden, batch, 11, precision)
        found = persistent_error(case, block(rows, **knobs), reverse, lengths, reset, 0)
        assert found < tolerance(precision, 11), (found, reverse, lengths, reset)


def test_few_blocks_begin_early() -> None:
    """Steps of other clusters are longer, and where the warps that compute copy, too."""
    steps = [geometry("lstm", 128, ctas=ctas, warps_u=4, rows=rows).prefetch_steps for ctas, rows in ((4, 8), (4, 16))]
    assert steps == [8, 4]
    assert geometry("lstm", 256, ctas=8, warps_u=4).prefetch_steps == 4
    assert geometry("lstm", 32, warps_u=4).prefetch_steps == 8


def test_a_lane_has_few_pieces_and_a_quarter_of_a_multiprocessor_one_warp() -> None:
    assert geometry("lstm", 16, warps_u=2).copy_warps == 1
    assert geometry("lstm", 32, warps_u=4).copy_warps == 2
    assert geometry("lstm", 32, warps_u=4, rows=32).copy_warps == MOST_COPY_WARPS
    assert geometry("elman", 27, warps_u=4).copy_warps > geometry("elman", 24, warps_u=3).copy_warps  # y one by one
    own = geometry("lstm", 32, warps_u=4)
    assert own.block_threads == own.threads + 64 == 192


def test_the_warps_of_a_wave_copy_themselves() -> None:
    alone, wave = (
        geometry_of(step("lstm", 64), "bfloat16", how, ctas=2, rows=8, warps_u=4)
        for how in ("cluster alone", "cluster")
    )
    assert alone.copy_warps and not wave.copy_warps
    assert wave.block_threads == wave.threads


def test_they_take_registers_that_others_leave() -> None:
    """Each quarter of a multiprocessor has its own: a ninth warp is the third in one of them."""
    assert [most_registers(n) for n in (1, 4, 5, 8, 9, 12, 13, 16)] == [255, 255, 255, 255, 168, 168, 128, 128]
    roomy, crowded = (geometry("lstm", 64, warps_u=8, rows=rows) for rows in (8, 32))
    assert roomy.copy_warps and roomy.registers <= most_registers(12)
    assert not crowded.copy_warps and crowded.registers > most_registers(12)


@pytest.mark.parametrize(
    ("precision", "change", "masked", "copied"),
    [
        ("bfloat16", {}, False, True),
        ("float32", {}, False, True),
        ("tf32", {}, False, False),  # products read rounded values
        ("bfloat16", {}, True, False),  # y of a row that has ended is 0
        ("bfloat16", {"dtype": "float32"}, False, False),
    ],
)
def test_y_is_copied_where_it_is_what_products_read(
    precision: str, change: dict[str, Any], masked: bool, copied: bool
) -> None:
    layout: Layout = replace(layout_of("lstm", 24, precision), **change)
    assert copies_output(geometry("lstm", 24, precision, warps_u=3), layout, masked) == copied


@pytest.mark.parametrize(("hidden", "words"), [(24, 4), (20, 2), (18, 1), (21, 0)])
def test_y_goes_in_pieces_that_rows_begin_with(hidden: int, words: int) -> None:
    made = kernel("k", geometry("lstm", hidden, "float16", warps_u=3), layout_of("lstm", hidden, "float16"))
    text = text_of(made)
    assert ("st_vec_global_v4_b32" in text, "st_vec_global_v2_b32" in text) == (words == 4, words == 2)
    assert ("st_global_b32" in text) == (words > 0)  # of the last step, pairs are stored from registers
