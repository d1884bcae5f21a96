"""Geometry: weights in fragments' order, what stays on the chip, and whose batch tiles are whose."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from emulated import check_packed_once, packed
from persistent_layers import TENSOR_CORES, geometry_of, step

from tvm_rnn.cuda.persistent.geometry import LANES, Geometry

SHAPES = [
    # cell, H, geometry
    ("lstm", 40, {"ctas": 2, "rows": 8}),
    ("lstm", 72, {"ctas": 1, "rows": 16, "warps_u": 2, "warps_k": 2}),
    ("gru", 33, {"ctas": 3, "rows": 16, "warps_n": 2, "warps_k": 4}),  # an odd number of gates, and padded units
    ("gru_reset_before", 24, {"ctas": 1, "rows": 8, "warps_k": 4}),  # two products
    ("lstm_projection", 40, {"ctas": 2, "rows": 8}),  # widths of 24 and 40
]


def geometry(name: str = "lstm", hidden: int = 40, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    knobs = {"exchange": "cluster", "ctas": 1, "rows": 8, **knobs}
    return geometry_of(step(name, hidden, precision), precision, **knobs)


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(("name", "hidden", "knobs"), SHAPES)
def test_every_weight_is_packed_once_and_the_rest_is_padding(
    name: str, hidden: int, knobs: dict[str, int], precision: str
) -> None:
    check_packed_once(geometry(name, hidden, precision, **knobs))


@pytest.mark.slow
@pytest.mark.parametrize("precision", [*TENSOR_CORES, "float32"])
@pytest.mark.parametrize("name", ["elman", "gru", "lstm", "lstm_layer_norm", "nas", "rhn", "slstm"])
@pytest.mark.parametrize("hidden", [8, 50, 96])
def test_weights_of_all_geometries(name: str, hidden: int, precision: str) -> None:
    for ctas, warps_u, warps_k in product((1, 3), (1, 2), (1, 4)):
        check_packed_once(geometry(name, hidden, precision, ctas=ctas, warps_u=warps_u, warps_k=warps_k))


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(("name", "hidden", "knobs"), SHAPES)
def test_fragments_times_operands_are_the_product(
    name: str, hidden: int, knobs: dict[str, int], precision: str
) -> None:
    """What mma.sync does with the packed words, in NumPy: each lane's words of both factors meet the same k."""
    made, rng = geometry(name, hidden, precision, **knobs), np.random.default_rng(0)
    for phase, share in made.weights:
        weight = rng.normal(size=share.operand.weight.shape)
        element, halves = 4 // made.itemsize, len(made.halves(phase))
        pieces = packed(made, phase, share, weight).reshape(-1, halves, 8, 4, 2, 2, element)
        whole, alone = pieces[:, : halves // 2 * 2], pieces[:, halves // 2 * 2 :]
        # Of a half alone a lane's words are of both MMA steps; the other half is 0.
        steps = np.stack([np.moveaxis(alone, 4, 1), np.zeros_like(np.moveaxis(alone, 4, 1))], axis=-2)
        fragments = np.concatenate([whole, steps.reshape(len(steps), -1, *whole.shape[2:])], axis=1)
        order = (made.ctas, made.warps_u, made.warps_k, share.kblocks, made.m_tiles(phase), 2, 8, 4, 2, 2, element)
        operand = np.zeros((made.warps_k * share.kblocks * made.block_k, made.rows))
        operand[: share.operand.depth] = rng.normal(size=(share.operand.depth, made.rows))
        blocks = operand.reshape(made.warps_k, share.kblocks, 4, 2, 2, element, made.rows)
        # c cta, u warp of units, w warp of K, b block of K, m tile, s MMA step, g and q of the lane, f further half of
        # the step, h half of the tile, e element, r batch row
        sums = np.einsum("cuwbmsgqfhe,wbqsfer->cumhgr", fragments.reshape(order), blocks)
        stacked = weight.reshape(phase.gates, phase.width, -1) @ operand[: share.operand.depth]
        for cta, warp_u in product(range(made.ctas), range(made.warps_u)):
            for half, (gate, block) in enumerate(made.halves(phase)):
                unit = cta * made.units(phase.width) + (warp_u * made.blocks(phase.width) + block) * 8
                expected = np.zeros((8, made.rows))
                there = stacked[gate, unit : unit + 8]
                expected[: len(there)] = there
                np.testing.assert_allclose(sums[cta, warp_u, half // 2, half % 2], expected, atol=1e-9)


@pytest.mark.parametrize("register_words", [0, 32, 100, 160, 1000])
@pytest.mark.parametrize("shared_words", [0, 32, 1 << 20])
@pytest.mark.parametrize("name", ["lstm", "gru_reset_before", "lstm_projection"])
def test_shares_add_up(name: str, register_words: int, shared_words: int) -> None:
    made = geometry(name, 72, warps_k=2, register_words=register_words, shared_words=shared_words)
    words = {"registers": 0, "shared": 0}
    for phase, share in made.weights:
        assert share.registers + share.shared + share.streamed == share.kblocks
        assert min(share.registers, share.shared, share.streamed) >= 0
        assert share.kblocks * made.warps_k * made.block_k >= share.operand.depth
        for place in words:
            words[place] += getattr(share, place) * len(made.halves(phase)) * 4
    assert words["registers"] <= register_words and words["shared"] <= shared_words
    assert made.weight_words == words["shared"] * made.warps_u * made.warps_k * LANES
    if shared_words == 1 << 20:
        assert not any(share.streamed for _, share in made.weights)


@pytest.mark.parametrize("warps_k", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("tiles", range(1, 13))
def test_each_tile_has_one_owner(warps_k: int, tiles: int) -> None:
    for passes in (n for n in range(1, 5) if tiles % n == 0):
        made = geometry(rows=8 * tiles, warps_k=warps_k, passes=passes)
        found = []
        for warp_k, j in product(range(warps_k), range(made.own_tiles)):
            owned = made.owned(j, warp_k)
            if owned is None or owned:
                found.append(made.own_tile(j, warp_k))
        assert sorted(found) == list(range(tiles))


def test_units_are_covered_by_blocks_of_eight() -> None:
    for ctas, warps_u, width in product((1, 2, 7, 16), (1, 2, 4), (1, 8, 65, 512)):
        made = geometry(ctas=ctas, warps_u=warps_u)
        assert made.ctas * made.units(width) >= width
        assert made.ctas * (made.units(width) - 8 * warps_u) < width  # no block too many


def test_values_of_even_and_odd_steps_lie_side_by_side() -> None:
    made = geometry("gru_reset_before", 40, ctas=2)
    first, second = made.published
    assert (made.value_at[first], made.value_at[second]) == (0, 2 * made.value_words(first))
    assert made.exchange_words == 2 * (made.value_words(first) + made.value_words(second))


def test_reductions_have_memory_of_their_own() -> None:
    made = geometry("lstm_layer_norm", 40, ctas=2, warps_u=2)
    assert made.reductions and made.parts == 4
    assert made.exchange_words - made.reduce_at == 2 * made.reduce_words >= 2 * made.parts * made.rows


def test_what_fits() -> None:
    assert geometry("lstm", 64, ctas=8, register_words=64).fits()
    assert not geometry("lstm", 1024, ctas=1, shared_words=1 << 20).fits()  # 8 MB of weights on one multiprocessor
    assert not geometry("lstm", 64, rows=512, warps_u=8, warps_n=8).fits()  # 2048 threads
    assert not geometry("lstm", 1024, ctas=8, register_words=100_000).fits()


def test_more_work_takes_more_registers() -> None:
    wide = {"ctas": 8, "warps_u": 4, "shared_words": 1 << 20}
    plain = geometry("lstm", 256, register_words=32, **wide).registers
    for knobs in ({"register_words": 64}, {"register_words": 32, "rows": 16}, {"register_words": 32, "ahead": 5}):
        assert geometry("lstm", 256, **{**wide, **knobs}).registers > plain
