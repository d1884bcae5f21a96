"""Products by wgmma out of a pipeline: how stages are used, where regions of shared memory lie, packed weights; run on
the CPU: weights in registers, shared memory and the pipeline; phases, masks, odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import check_packed_once
from persistent_layers import ONE_QUICK, geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_bulk_copy_pipeline import pipelined
from tests.cuda.persistent.product.test_mma_sync import calls
from tests.cuda.persistent.test_kernel import check
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry


def geometry(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    knobs = {"ctas": 16, "rows": 16, "warps_u": 2, "warps_k": 4, "ring": 3, **knobs}
    return geometry_of(step(name, hidden, precision), precision, "grid", **knobs)


def test_every_block_of_k_goes_through_the_pipeline_once() -> None:
    made = geometry(register_words=8, shared_words=8, rows=128)
    for phase, found in made.chunks.items():
        (share,) = made.shares[phase]
        assert (share.kblocks, share.registers, share.shared, share.streamed) == (4, 1, 1, 2)
        blocks = [c.first + i for c in found for i in range(c.count)]
        assert sorted(blocks) == list(range(share.kblocks))
        assert all(c.streamed == (c.first >= 2) and c.count == 1 for c in found if c.streamed)
    numbers = [c.turn * made.ring + c.slot for found in made.chunks.values() for c in found]
    assert numbers == list(range(len(numbers))) and sum(made.uses) == len(numbers)


def test_streamed_weights_are_spread() -> None:
    made = geometry(hidden=2048, ctas=128, rows=64, register_words=64, shared_words=64)
    (found,) = made.chunks.values()
    streamed = [i for i, c in enumerate(found) if c.streamed]
    assert len(streamed) == 16 and max(np.diff(streamed)) <= 2


@pytest.mark.parametrize(("ring", "apart"), [(2, True), (5, False)])
def test_sums_share_the_pipeline_where_room_is_short(ring: int, apart: bool) -> None:
    made = geometry(hidden=2048, ctas=128, rows=64, register_words=128, shared_words=96 if apart else 128, ring=ring)
    found = {name: 4 * word for name, word in made.memory_map.items()}
    assert made.sums_apart == apart and found["end"] == made.shared_bytes <= 232448
    assert found["pipeline"] == 0 and found["partial"] == (2 * ring * made.stage_bytes if apart else 0)
    assert found["weights"] % 1024 == 0 and found["barriers"] % 8 == 0
    assert found["weights"] >= 2 * ring * made.stage_bytes
    assert found["stage"] == found["weights"] + made.weight_words * 4


def test_half_a_warp_meets_no_bank_twice() -> None:
    for rows in range(16, 136, 8):
        stride = geometry(rows=rows).partial_stride
        banks = {(g * stride + 2 * q + e) % 32 for g in range(4) for q in range(4) for e in range(2)}
        assert len(banks) == 32, rows


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(("name", "hidden", "tiles"), [("lstm", 128, 1), ("gru", 72, 1), ("lstm", 200, 2)])
def test_every_weight_is_packed_once(name: str, hidden: int, tiles: int, precision: str) -> None:
    made = geometry(name, hidden, precision, ctas=8 if tiles == 1 else 7, register_words=16 * tiles)
    if hidden == 72:
        made = geometry(name, hidden, precision, ctas=5, register_words=16)
    assert all(made.gate_tiles(phase) == tiles for phase in made.shares)
    check_packed_once(made)


COPIES = 2  # of the loop's body: even and odd steps


@pytest.mark.broad
@pytest.mark.parametrize("precision", ONE_QUICK)
@pytest.mark.parametrize(
    ("register_words", "shared_words"),
    [(1000, 0), pytest.param(8, 1000, marks=pytest.mark.slow), (8, 8), pytest.param(0, 0, marks=pytest.mark.slow)],
)
def test_weights_come_from_anywhere(register_words: int, shared_words: int, precision: str) -> None:
    geometry = pipelined(16, 16, register_words=register_words, shared_words=shared_words)
    check("lstm", 256 if precision == "bfloat16" else 128, 9, precision, geometry, steps=3)


@pytest.mark.parametrize(("register_words", "kinds"), [(1000, "rs"), (0, "ss"), (8, "rs ss")])
def test_every_tile_is_multiplied_once(register_words: int, kinds: str) -> None:
    made = geometry_of(step("lstm", 256), "bfloat16", **pipelined(16, 64, register_words=register_words))
    code = text_of(persistent.kernel("k", made, layout_of("lstm", 256)))
    expected = sum(s.kblocks * 2 * made.gate_tiles(p) for p, s in made.weights)
    assert calls(code, "m64n64k16") == COPIES * expected
    assert {kind for kind in ("rs", "ss") if calls(code, f"wgmma_bf16_{kind}")} == set(kinds.split())


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision", "geometry"),
    [
        ("gru", 72, 9, "float16", pipelined(6, 8, ring=2, together=2)),
        ("lstm", 200, 20, "bfloat16", pipelined(7, 24, warps_u=4, warps_k=2)),
        ("gru", 64, 100, "bfloat16", pipelined(4, 128, warps_k=4)),  # sums in two turns
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("gru_reset_before", 72, 20, "bfloat16", pipelined(6, 24, warps_u=1, warps_k=8, ring=2, together=2)),
                ("lstm_layer_norm", 64, 9, "bfloat16", pipelined(4, 8, ring=4, together=2)),
                ("multiplicative_lstm", 64, 9, "tf32", pipelined(4, 8, ring=2, together=2)),
                ("lstm_projection", 72, 20, "bfloat16", pipelined(4, 16, warps_u=1, warps_n=2, ring=2)),
                ("slstm", 40, 9, "bfloat16", pipelined(3, 8, warps_u=1, warps_k=4)),
                ("lem", 24, 9, "bfloat16", pipelined(2, 8)),
                ("elman", 80, 40, "tf32", pipelined(5, 40, warps_k=2)),
            )
        ),
    ],
)
def test_cells_and_geometries(name: str, hidden: int, batch: int, precision: str, geometry: dict[str, Any]) -> None:
    check(name, hidden, batch, precision, geometry)


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_lengths_and_resets(seed: int) -> None:
    modes = [(True, True, True), (False, True, False)]
    check("gru", 72, 9, "bfloat16", pipelined(6, 8, together=2), modes=modes, seed=seed)
