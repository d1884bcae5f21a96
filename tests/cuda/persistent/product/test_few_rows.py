"""Groups of few batch rows: what they publish, what of the sums travels, and cells of one row of two."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import best_geometry, geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance

CASES = [
    ("lstm", "tf32", 41, grid(6, 1, warps_k=2)),  # of four blocks of K three are written
    ("gru_reset_before", "tf32", 64, grid(4, 1, warps_k=2, warps_u=2)),
    ("gru", "float16", 128, grid(4, 1, warps_k=4, register_words=0)),
    ("lstm", "bfloat16", 72, grid(9, 1)),
    ("elman", "tf32", 320, grid(5, 1, warps_k=2, warps_u=2)),  # ten blocks of K for each warp
    ("elman", "tf32", 72, grid(3, 2, warps_k=2)),  # three units' halves of two tiles
    ("lstm", "bfloat16", 41, grid(6, 2, warps_k=2)),
    ("gru", "tf32", 320, grid(20, 4, warps_k=2)),
    ("lstm", "float16", 64, grid(4, 4, warps_k=2, warps_u=2)),
]


@pytest.mark.parametrize(("cell", "precision", "hidden", "geometry"), [CASES[0], CASES[5]])
@pytest.mark.usefixtures("short_turns")
def test_a_group_whose_last_row_is_not_there(cell: str, precision: str, hidden: int, geometry: dict[str, Any]) -> None:
    case = Case(cell, hidden, 2 * geometry["rows"] - 1, 17, precision)
    assert persistent_error(case, geometry) < tolerance(precision, 17)


@pytest.mark.broad
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("batch", [1, 3, 6])
@pytest.mark.parametrize(("cell", "precision", "hidden", "geometry"), CASES)
@pytest.mark.usefixtures("short_turns")
def test_rows_in_groups(cell: str, precision: str, hidden: int, geometry: dict[str, Any], batch: int) -> None:
    case = Case(cell, hidden, batch, 17, precision)
    assert persistent_error(case, geometry, seed=batch) < tolerance(precision, 17)


@pytest.mark.broad
@pytest.mark.parametrize("options", [{"lengths": True}, {"reset": True, "reverse": True}])
@pytest.mark.usefixtures("short_turns")
def test_also_with_lengths_and_resets(options: dict[str, bool]) -> None:
    for precision, rows in (("bfloat16", 1), ("tf32", 1), ("tf32", 2)):
        case = Case("lstm", 64, 3, 13, precision)
        assert persistent_error(case, grid(4, rows, warps_k=2), **options) < tolerance(precision, 13)


@pytest.mark.parametrize(("precision", "hidden"), [("tf32", 256), ("bfloat16", 512)])
def test_a_warp_asks_once_for_all_that_it_multiplies(precision: str, hidden: int) -> None:
    """Eight blocks of K, asked for and asked for again, in even and odd steps."""
    geometry = geometry_of(step("lstm", hidden, precision), precision, **grid(hidden // 8, 1, warps_k=2))
    assert [share.kblocks for _, share in geometry.weights] == [8]
    text = text_of(persistent.kernel("k", geometry, layout_of("lstm", hidden, precision)))
    assert text[text.index("{") :].count("ld_vec_relaxed_gpu_global_v4_b32(") == 2 * 2


def test_cells_of_one_row() -> None:
    """Four activations and one of the state, in even and odd steps."""
    geometry = geometry_of(step("lstm", 64, "bfloat16"), "bfloat16", **grid(8, 1))
    text = text_of(persistent.kernel("k", geometry, layout_of("lstm", 64)))
    assert text.count("__expf(") == 2 * 5


def test_few_rows_are_a_group_of_their_own() -> None:
    for batch, rows in ((1, 1), (2, 2), (5, 8)):
        found = best_geometry("lstm", 971, "tf32", batch)
        assert found is not None and found[1].rows == rows and found[1].exchange.polls


def test_parts_of_many_blocks_of_k_are_for_few_rows() -> None:
    """Of 21: clusters that share K take 4.2 us, whatever the rows."""
    few, eight = (best_geometry("elman_relu", 2683, "tf32", batch) for batch in (2, 8))
    assert few is not None and eight is not None and few[0] < 4.2 < eight[0]
