"""Values without a counter: every word is waited for, and places are used again only when nobody reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import exchange_by_polling
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


@pytest.mark.broad
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("cell", "precision", "hidden", "batch", "geometry"),
    [
        ("lstm", "bfloat16", 64, 5, grid(2, 8, warps_k=2)),
        ("gru", "float16", 64, 16, grid(2, 16, warps_k=2, warps_u=2)),
        ("gru_reset_before", "tf32", 64, 11, grid(4, 8, warps_n=1, ahead=7)),  # two products, two groups of blocks
        ("lstm", "tf32", 48, 16, grid(3, 16, warps_n=2)),
        ("lstm", "bfloat16", 41, 5, grid(3, 8, warps_k=2)),  # of four blocks of K two and a half are written
        ("gru_reset_before", "tf32", 72, 9, grid(9, 16, warps_k=2)),
    ],
)
@pytest.mark.usefixtures("short_turns")
def test_places_are_used_again(
    cell: str, precision: str, hidden: int, batch: int, geometry: dict[str, Any], seed: int
) -> None:
    case = Case(cell, hidden, batch, 17, precision)
    assert persistent_error(case, {**geometry, "polled": 1}, seed=seed) < tolerance(precision, 17)


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_a_warp_that_is_a_step_ahead_does_not_meet_for_its_neighbour(cell: str, seed: int) -> None:
    """Warps with the second part of K need nothing from the blocks that those with the first part wait for."""
    case = Case(cell, 128, 8, 6, "bfloat16")
    geometry = grid(8, 8, warps_k=2, polled=1)
    assert persistent_error(case, geometry, seed=seed) < tolerance("bfloat16", 6)


@pytest.mark.usefixtures("short_turns")
def test_padding_of_k_is_no_value_that_somebody_waits_for() -> None:
    case = Case("lstm", 41, 5, 17, "tf32")
    assert persistent_error(case, grid(6, 8, warps_k=2, polled=1)) < tolerance("tf32", 17)


def test_no_part_of_k_is_padding_alone() -> None:
    """Its warp would wait for nobody."""
    for warps_k, possible in ((2, True), (4, False)):  # three blocks of K
        geometry = geometry_of(step("lstm", 41, "tf32"), "tf32", **grid(6, 8, warps_k=warps_k, polled=1))
        assert geometry.possible == possible


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (10, 8 + 2)])
@pytest.mark.usefixtures("short_turns")
def test_rows_past_the_batch_are_not_published(exchanges: list[np.ndarray], batch: int, rows: int) -> None:
    case = Case("lstm", 64, batch, 4, "bfloat16")
    assert persistent_error(case, grid(2, 8, warps_k=2, polled=1)) < tolerance("bfloat16", 4)
    (exchange,) = exchanges
    written = np.count_nonzero(exchange != 0xFFFFFFFF)
    assert written == 4 * rows * 64 // 2  # the initial state and all steps' but the last one's, two numbers a word


@pytest.mark.broad
@pytest.mark.parametrize("options", [{"lengths": True}, {"reset": True, "reverse": True}])
@pytest.mark.usefixtures("short_turns")
def test_also_with_lengths_and_resets(options: dict[str, bool]) -> None:
    case = Case("lstm", 64, 9, 13, "bfloat16")
    assert persistent_error(case, grid(2, 16, warps_k=2, polled=1), **options) < tolerance("bfloat16", 13)


def test_what_is_missing_is_asked_for_again() -> None:
    geometry = geometry_of(step("lstm", 64), "bfloat16", **grid(2, 8, polled=1))
    text = text_of(persistent.kernel("k", geometry, layout_of("lstm", 64)))
    body = text[text.index("{") :]
    # Two K blocks: asked for, and again in a loop, in even and odd steps.
    assert body.count("ld_vec_relaxed_gpu_global_v4_b32(") == 2 * 2 * 2
    assert body.count("fence_acq_rel_gpu") == 1 and "red_release" not in body


def test_few_steps_have_fewer_places() -> None:
    assert exchange_by_polling.slots("T") == f"std::min<int64_t>(T + 1, {3 * exchange_by_polling.TURN})"
