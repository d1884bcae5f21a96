"""Products in float32 by FFMA: which geometries can, sizes that fit, packed weights, every warp's pipeline, parts of K
that meet."""

from __future__ import annotations

import re
from typing import Any

import pytest
from emulated import Case, check_packed_once, layer, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.ffma import LIMIT, Ffma
from tvm_rnn.oracle.tolerance import tolerance

FMA: dict[str, Any] = {"exchange": "grid", "polled": 1, "register_words": 0, "fma": 2, "warps_k": 8}


def geometry(name: str = "lstm", hidden: int = 512, inputs: int = 512, **knobs: Any) -> Geometry:
    made = step_of(layer(name, hidden, "float32", inputs)[1]) if inputs else step(name, hidden, "float32")
    return geometry_of(made, "float32", **{**FMA, "ctas": 32, "rows": 64, "warps_u": 2, "warps_k": 4, **knobs})


def test_polled_grids_of_products_in_float32() -> None:
    assert geometry().possible and geometry("gru_reset_before").possible
    wrong = ({"warps_n": 2}, {"passes": 2}, {"register_words": 32}, {"fma": 1})
    for knobs in (*wrong, {"fma": 6}, {"rows": 72}):  # more copies ahead than an operand has blocks; too many sums
        assert not geometry(**knobs).possible
    assert not geometry("lstm_layer_norm", 64, 0, ctas=4, rows=8).possible
    tf32 = geometry_of(step("lstm", 512, "tf32"), "tf32", **{**FMA, "ctas": 32, "rows": 8})
    assert not tf32.possible


def test_a_tile_and_its_pipeline() -> None:
    made = geometry()
    (phase,) = made.step.phases
    assert made.columns(phase) == 64 and made.high == 8
    assert [share.operand.given for _, share in made.order] == [True, False]
    assert [share.kblocks for _, share in made.order] == [4, 4]
    assert made.stage_bytes == 8192 and made.weight_words == 0
    assert made.product_registers() == 128 + 32 + 32
    assert made.shared_bytes <= LIMIT and made.turns == 2


def test_sums_take_turns_where_there_is_no_room() -> None:
    few, many = geometry(rows=8), geometry(fma=3)
    assert few.turns == 1 and many.turns == 8
    for made in (few, many):
        assert made.partial_words * made.turns == made.warps * made.part_words
        assert made.shared_bytes <= LIMIT


def test_resident_weights_leave_the_pipeline() -> None:
    none, some, every = (geometry(rows=8, ctas=64, shared_words=n, warps_u=1, warps_k=8) for n in (0, 32, 1 << 20))
    assert none.weight_words == 0 and some.weight_words == 8 * 32 * 32
    assert [made.stage_bytes for made in (none, some, every)] == [2560, 2560, 512]
    assert every.weight_words == 32 * 1024  # 32 gates, K = 1024


@pytest.mark.parametrize(("name", "hidden", "inputs"), [("lstm", 36, 20), ("gru", 40, 24), ("gru_reset_before", 33, 0)])
def test_every_weight_is_packed_once(name: str, hidden: int, inputs: int) -> None:
    made = geometry(name, hidden, inputs, ctas=3, rows=8, warps_k=4)
    check_packed_once(made)


def test_registers() -> None:
    made = geometry()
    assert made.product_registers() + 30 < made.registers <= 255  # nvcc takes 255, without spills
    assert geometry(rows=32).registers < made.registers < geometry(rows=72).registers


def fma(ctas: int, rows: int, **knobs: Any) -> dict[str, Any]:
    return {**FMA, "ctas": ctas, "rows": rows, "warps_k": 2, **knobs}


def check(cell: str, hidden: int, batch: int, inputs: int, geometry: dict[str, Any], **how: Any) -> None:
    steps = how.pop("steps", 5)
    case = Case(cell, hidden, batch, steps, "float32", inputs=inputs)
    assert persistent_error(case, geometry, **how) < tolerance("float32", steps)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "inputs", "geometry"),
    [
        ("lstm", 36, 7, 20, fma(3, 8)),  # units past the last, K blocks that end early, an empty row
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("lstm", 64, 33, 64, fma(2, 16, fma=3)),  # two slices of the batch, two copies ahead
                ("gru_reset_before", 40, 9, 72, fma(5, 8)),  # the step's own values as operands
                ("lstm", 64, 9, 64, fma(2, 16, warps_u=2, shared_words=64)),  # one operand's weights are resident
                ("gru", 40, 13, 48, fma(5, 16, shared_words=16)),  # half of one's
                ("elman", 40, 1, 20, fma(5, 8, warps_k=4, shared_words=1 << 20)),
            )
        ),
    ],
)
@pytest.mark.parametrize("follows", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_operands_come_in_time(
    cell: str, hidden: int, batch: int, inputs: int, geometry: dict[str, Any], follows: bool
) -> None:
    check(cell, hidden, batch, inputs, geometry, follows=follows, seed=batch)


@pytest.mark.broad
@pytest.mark.parametrize("steps", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_few_steps(steps: int) -> None:
    check("gru", 24, 3, 20, fma(3, 8), steps=steps)


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
@pytest.mark.parametrize("inputs", [20, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("short_turns")
def test_places_are_used_again(inputs: int, seed: int) -> None:
    check("elman", 33, 9, inputs, fma(5, 8), steps=13, seed=seed)


def test_a_chunk_is_asked_for_once_and_looked_at() -> None:
    layout = layer("lstm", 64, "float32", 64)[1]
    text = text_of(persistent.kernel("k", geometry_of(step_of(layout), "float32", **fma(2, 16)), layout))
    body = text[text.index("{") :]
    # Two pieces of an operand per lane, zeros past the batch: of inputs before the first step, then in even and odd
    # steps of x (ahead, where poison was) and of h.
    zeros = "cp_async_cg_src_size_async_cg_shared_global_16("
    assert body.count(zeros) == 2 * (1 + 2 * (2 + 1))
    assert body.count("fence_acq_rel_gpu") == 1 and "red_release" not in body


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
    monkeypatch.setattr(Ffma, "turns", turns)
    check("elman", 40, 6 + turns, 24, fma(5, 16, warps_k=4), seed=turns)


def test_a_block_of_k_is_a_loop() -> None:
    """One copy of it for each operand in even and odd steps: 16 k of a tile are 8700 bytes of instructions."""
    layout = layer("lstm", 64, "float32", 64)[1]
    made = geometry_of(step_of(layout), "float32", **fma(2, 16))
    text = text_of(persistent.kernel("k", made, layout))
    slots = made.columns(made.step.phases[0]) // 4
    products = len(re.findall(r" = \(\w+\[\d+\] \+ \(\w+\[\d+\] \* \w+\[\d+\]\)\)", text))
    assert products == 2 * 2 * 4 * made.high * slots


def test_who_cannot_says_so() -> None:
    made = geometry_of(step("lstm", 64, "tf32"), "tf32", **fma(2, 8))
    with pytest.raises(ValueError, match="float32"):
        persistent.kernel("k", made, layout_of("lstm", 64, "tf32"))
