"""A row without tensor cores: every weight has its lane, and gates come to the cells that want them."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, check_packed_once, persistent_error
from persistent_layers import best_geometry, geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.product.row_by_lanes import RowByLanes
from tvm_rnn.oracle.tolerance import tolerance

CASES = [
    ("gru_reset_before", 64, grid(4, 1, warps_k=2, warps_u=2)),  # of two products
    ("lstm", 41, grid(6, 1, warps_k=2)),
    ("lstm", 64, grid(4, 1, warps_u=2)),
    ("gru", 80, grid(5, 1, warps_k=4, shared_words=1 << 20, register_words=64)),  # two gates of a lane
    ("elman", 320, grid(5, 1, warps_k=2, warps_u=2)),
]


@pytest.mark.broad_after(1)
@pytest.mark.slow_after(3)
@pytest.mark.parametrize(("cell", "hidden", "geometry"), CASES)
@pytest.mark.usefixtures("short_turns")
def test_a_row(cell: str, hidden: int, geometry: dict[str, Any]) -> None:
    for seed in range(2):
        error = persistent_error(Case(cell, hidden, 1, 17, "tf32"), {**geometry, "by_lanes": 1}, seed=seed)
        assert error < tolerance("tf32", 17)


def test_every_weight_is_packed_once() -> None:
    for cell, hidden, geometry in CASES:
        check_packed_once(geometry_of(step(cell, hidden, "tf32"), "tf32", **geometry, by_lanes=1))


def test_no_tensor_cores_and_one_sum_for_each_gate() -> None:
    made = geometry_of(step("lstm", 64, "tf32"), "tf32", **grid(8, 1, warps_k=2), by_lanes=1)
    text = text_of(persistent.kernel("k", made, layout_of("lstm", 64, "tf32")))
    body = text[text.index("{") :]
    assert "mma_sync" not in body and body.count("__shfl_sync(") == 1 + 2 * 4  # the first: the number of the warp
    assert body.count("st_shared_f32(") == 2


def test_what_it_is_for() -> None:
    """One row of tf32; a lane without a gate costs as much as one with."""
    found = best_geometry("lstm", 971, "tf32", 1)
    assert found is not None and isinstance(found[1], RowByLanes)
    for precision, rows in (("bfloat16", 1), ("tf32", 2)):
        made = geometry_of(step("lstm", 64, precision), precision, **grid(8, rows), by_lanes=1)
        assert not made.possible
    gru, lstm = (geometry_of(step(cell, 64, "tf32"), "tf32", **grid(8, 1), by_lanes=1) for cell in ("gru", "lstm"))
    assert [made.block_words(made.step.phases[0]) for made in (gru, lstm)] == [16, 16]
