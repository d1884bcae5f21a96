"""The chunks of a step in a cluster's pipeline, the map of shared memory, how weights are packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated import check_packed_once
from persistent_layers import GPU, geometry_of, step

from tvm_rnn.cuda.model.persistent_step_time import able_to_run, predict
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.wgmma_split_k_layout import (
    chunks,
    even,
    memory_map,
    split_k_us,
    stage_bytes,
    sum_bytes,
    uses,
)


def team(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    knobs = {"ctas": 16, "rows": 32, "warps_k": 4, "ring": 3, "together": 2, "register_words": 8, "pace": 1, **knobs}
    return geometry_of(step(name, hidden, precision), precision, "grid", **knobs)


def large(**knobs: Any) -> Geometry:
    """192 gates of a cluster, of which no block's weights fit on a multiprocessor."""
    shape = {"ctas": 108, "rows": 64, "warps_u": 3, "register_words": 64, "shared_words": 48}
    return team(hidden=2560, **{**shape, **knobs})


def test_a_block_multiplies_the_gates_of_its_cluster_by_its_part_of_k() -> None:
    made = large()
    ((phase, (share,)),) = made.shares.items()
    assert (made.threads, made.warpgroups, made.k_parts, made.group_tiles(phase)) == (384, 3, 2, 1)
    assert made.gate_rows(phase) == 2 * 24 * 4 and made.own_groups(phase) == 12
    assert (share.kblocks, share.registers, share.shared, share.streamed) == (41, 8, 6, 27)
    assert made.k_parts * made.part_lanes == made.threads


@pytest.mark.parametrize(("pace", "ring"), [(1, 6), (2, 3), (4, 2)])
def test_every_block_of_k_goes_through_the_pipeline_once(pace: int, ring: int) -> None:
    made = large(pace=pace, ring=ring)
    ((phase, found),) = chunks(made).items()
    (share,) = made.shares[phase]
    assert sorted(c.first + i for c in found for i in range(c.count)) == list(range(41))
    assert all(c.streamed == (c.first >= share.registers + share.shared) for c in found)
    numbers = [c.turn * ring + c.slot for c in found]
    assert numbers == list(range(len(found))) and sum(uses(made)) == len(found)
    for chunk in found:
        far = made.far_bytes(phase) if chunk.streamed else 0
        assert 0 < chunk.count * (made.operand_bytes + far) <= stage_bytes(made)
    streamed = [i for i, c in enumerate(found) if c.streamed]
    assert streamed[0] == 0 and max(np.diff(streamed)) <= 2


def test_runs_are_even() -> None:
    assert even(0, 0, 3, True) == [] and even(4, 5, 3, False) == [(4, 1, False)]
    for last in range(1, 30):
        runs = even(2, 2 + last, 4, True)
        assert len(runs) == -(-last // 4) and sum(count for _, count, _ in runs) == last
        assert max(count for _, count, _ in runs) - min(count for _, count, _ in runs) <= 1


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_regions_do_not_overlap(name: str) -> None:
    made = team(name, 2560, ctas=108, warps_u=3, ring=4, shared_words=64)
    found, phase = memory_map(made), next(iter(made.shares))
    # 32 rows of the block's own gates, in float32, from both blocks.
    assert found.sums == 0 and found.pipeline == sum_bytes(made, phase) == 2 * 24 * phase.gates * 32 * 4
    assert found.weights == found.pipeline + 4 * stage_bytes(made) and found.weights % 512 == 0
    assert found.stage == found.weights + 4 * made.weight_words
    assert found.barriers >= found.stage + 4 * made.stage_words and found.end >= found.barriers + 8 * 2 * 4
    # Tiles of 64 rows are read past the last weights.
    assert found.end >= found.stage + made.near_bytes(phase) - made.far_bytes(phase)
    assert made.shared_bytes == found.end
    together = memory_map(replace(made, apart=0))
    assert (together.pipeline, together.sums, together.end) == (0, 0, found.end - found.pipeline)


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(
    ("name", "hidden", "knobs"),
    [
        ("lstm", 128, {"ctas": 8, "warps_u": 2, "warps_k": 2}),
        ("gru", 72, {"ctas": 10, "register_words": 0}),
        ("lstm", 130, {"ctas": 20, "together": 4, "shared_words": 8}),
        ("gru_reset_before", 200, {"ctas": 14, "warps_u": 2, "warps_k": 2, "register_words": 24}),
    ],
)
def test_every_weight_is_packed_once(name: str, hidden: int, knobs: dict[str, int], precision: str) -> None:
    made = team(name, hidden, precision, **knobs)
    check_packed_once(made)


@pytest.mark.parametrize(
    "knobs", [{"together": 1}, {"ring": 1}, {"ctas": 17}, {"warps_k": 1}, {"rows": 40}, {"pace": 0}]
)
def test_what_such_a_kernel_needs(knobs: dict[str, int]) -> None:
    assert team().possible and not team(**knobs).possible


def test_more_weights_want_more_registers() -> None:
    assert large(register_words=80).registers() == large().registers() + 16


# --- predicted time: what was measured is predicted within a fifth; more to read or to multiply takes more time ------


def timed(name: str, hidden: int, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    return team(name, hidden, precision, **{"pace": 2, "register_words": 128, "rows": 8, **knobs})


LSTM = {"ctas": 108, "warps_u": 3, "register_words": 64}
GRU = {"ctas": 118, "warps_u": 3, "register_words": 96, "rows": 32}
MEASURED = [
    (11.4, 64, timed("lstm", 2560, rows=64, shared_words=48, **LSTM)),
    (12.2, 64, timed("lstm", 2560, rows=64, shared_words=16, **{**LSTM, "pace": 3})),
    (8.25, 16, timed("lstm", 2560, rows=32, shared_words=72, **{**LSTM, "register_words": 72})),
    (7.12, 32, timed("gru", 2816, shared_words=120, **GRU)),
    (7.59, 32, timed("gru", 2816, shared_words=136, apart=0, **GRU)),
    (11.44, 64, timed("lstm", 2560, rows=64, shared_words=80, apart=0, **LSTM)),
    (15.76, 64, timed("lstm", 3072, rows=64, shared_words=80, apart=0, **{**LSTM, "ctas": 128})),
    (9.96, 128, timed("lstm", 2048, ctas=128, rows=128, warps_u=2, register_words=80, shared_words=120, apart=0)),
    (10.4, 128, timed("lstm", 2048, ctas=128, rows=128, warps_u=2, register_words=80, shared_words=104, pace=1)),
    (5.79, 64, timed("lstm", 2048, ctas=128, rows=64, warps_u=2, register_words=128, shared_words=128)),
    (9.03, 128, timed("gru", 2048, ctas=128, rows=128, warps_u=2, register_words=96, shared_words=160)),
    (17.64, 64, timed("lstm", 3072, rows=64, shared_words=48, **{**LSTM, "ctas": 128})),
    (12.52, 64, timed("lstm", 2048, "tf32", ctas=128, rows=64, warps_u=2, register_words=128, shared_words=104)),
]


@pytest.mark.parametrize(("us", "batch", "made"), MEASURED, ids=range(len(MEASURED)))
def test_what_was_measured(us: float, batch: int, made: Geometry) -> None:
    assert predict(made, batch, GPU) == pytest.approx(us, rel=1 / 5)
    assert able_to_run(made, GPU)


def test_what_takes_longer() -> None:
    made = MEASURED[0][2]
    (phase,) = made.shares

    def us(**changes: int) -> float:
        return split_k_us(replace(made, **changes), phase)

    least = us()
    assert least < us(shared_words=0) < us(shared_words=0, register_words=0)
    assert least < us(rows=128) and us(rows=32) < least < us(apart=0) and least < us(pace=1)
