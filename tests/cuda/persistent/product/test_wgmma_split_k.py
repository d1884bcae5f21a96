"""Products of a cluster that shares K: the chunks of a step, the map of shared memory, packed weights, predicted time;
run on the CPU: no wait is missing, weights from anywhere, two and four blocks, odd sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated import Case, check_packed_once, persistent_error
from persistent_layers import GPU, ONE_QUICK, geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_mma_sync import calls
from tests.cuda.persistent.test_kernel import check, grid
from tvm_rnn.cuda.model.persistent_step_time import able_to_run, predict
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.wgmma_split_k import even
from tvm_rnn.oracle.tolerance import tolerance


def geometry(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    knobs = {"ctas": 16, "rows": 32, "warps_k": 4, "ring": 3, "together": 2, "register_words": 8, "pace": 1, **knobs}
    return geometry_of(step(name, hidden, precision), precision, "grid", **knobs)


def large(**knobs: Any) -> Geometry:
    """192 gates of a cluster, of which no block's weights fit on a multiprocessor."""
    shape = {"ctas": 108, "rows": 64, "warps_u": 3, "register_words": 64, "shared_words": 48}
    return geometry(hidden=2560, **{**shape, **knobs})


def test_a_block_multiplies_the_gates_of_its_cluster_by_its_part_of_k() -> None:
    made = large()
    ((phase, (share,)),) = made.shares.items()
    assert (made.threads, made.warpgroups, made.k_parts, made.gate_tiles(phase)) == (384, 3, 2, 1)
    assert made.gate_rows(phase) == 2 * 24 * 4 and made.own_groups(phase) == 12
    assert (share.kblocks, share.registers, share.shared, share.streamed) == (41, 8, 6, 27)
    assert made.k_parts * made.part_lanes == made.threads


@pytest.mark.parametrize(("pace", "ring"), [(1, 6), (2, 3), (4, 2)])
def test_every_block_of_k_goes_through_the_pipeline_once(pace: int, ring: int) -> None:
    made = large(pace=pace, ring=ring)
    ((phase, found),) = made.chunks.items()
    (share,) = made.shares[phase]
    assert sorted(c.first + i for c in found for i in range(c.count)) == list(range(41))
    assert all(c.streamed == (c.first >= share.registers + share.shared) for c in found)
    numbers = [c.turn * ring + c.slot for c in found]
    assert numbers == list(range(len(found))) and sum(made.uses) == len(found)
    for chunk in found:
        far = made.shared_weight_bytes(phase) if chunk.streamed else 0
        assert 0 < chunk.count * (made.operand_bytes + far) <= made.stage_bytes
    streamed = [i for i, c in enumerate(found) if c.streamed]
    assert streamed[0] == 0 and max(np.diff(streamed)) <= 2


def test_runs_are_even() -> None:
    assert even(0, 0, 3, True) == [] and even(4, 5, 3, False) == [(4, 1, False)]
    for last in range(1, 30):
        runs = even(2, 2 + last, 4, True)
        assert len(runs) == -(-last // 4) and sum(count for _, count, _ in runs) == last
        assert max(count for _, count, _ in runs) - min(count for _, count, _ in runs) <= 1


def at(made: Geometry) -> dict[str, int]:
    """Where regions begin, in bytes."""
    return {name: 4 * word for name, word in made.memory_map.items()}


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_regions_do_not_overlap(name: str) -> None:
    made = geometry(name, 2560, ctas=108, warps_u=3, ring=4, shared_words=64)
    found, phase = at(made), next(iter(made.shares))
    # 32 rows of the block's own gates, in float32, from both blocks.
    assert found["sums"] == 0 and found["pipeline"] == made.sum_bytes(phase) == 2 * 24 * phase.gates * 32 * 4
    assert found["weights"] == found["pipeline"] + 4 * made.stage_bytes and found["weights"] % 512 == 0
    assert found["stage"] == found["weights"] + 4 * made.weight_words
    assert found["barriers"] >= found["stage"] + 4 * made.stage_words and found["end"] >= found["barriers"] + 8 * 2 * 4
    # Tiles of 64 rows are read past the last weights.
    assert found["end"] >= found["stage"] + made.register_weight_bytes(phase) - made.shared_weight_bytes(phase)
    assert made.shared_bytes == found["end"]
    together = at(replace(made, apart=0))
    assert (together["pipeline"], together["sums"], together["end"]) == (0, 0, found["end"] - found["pipeline"])


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
    made = geometry(name, hidden, precision, **knobs)
    check_packed_once(made)


@pytest.mark.parametrize(
    "knobs", [{"together": 1}, {"ring": 1}, {"ctas": 17}, {"warps_k": 1}, {"rows": 40}, {"pace": 0}]
)
def test_what_such_a_kernel_needs(knobs: dict[str, int]) -> None:
    assert geometry().possible and not geometry(**knobs).possible


def test_more_weights_want_more_registers() -> None:
    assert large(register_words=80).registers == large().registers + 16


# --- predicted time: what was measured is predicted within a fifth; more to read or to multiply takes more time ------


def timed(name: str, hidden: int, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    return geometry(name, hidden, precision, **{"pace": 2, "register_words": 128, "rows": 8, **knobs})


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
        return replace(made, **changes).product_us(phase)

    least = us()
    assert least < us(shared_words=0) < us(shared_words=0, register_words=0)
    assert least < us(rows=128) and us(rows=32) < least < us(apart=0) and least < us(pace=1)


def pooled(ctas: int, rows: int, **knobs: int) -> dict[str, Any]:
    own = {"warps_k": 4, "ring": 3, "together": 2, "pace": 1, "register_words": 8, "shared_words": 8}
    return grid(ctas, rows, **{**own, **knobs})


def text(**geometry: Any) -> str:
    made = geometry_of(step("lstm", 256), "bfloat16", **geometry)
    return text_of(persistent.kernel("k", made, layout_of("lstm", 256)))


def test_barriers_wait_for_all_that_is_copied() -> None:
    geometry = pooled(16, 32, warps_u=2, warps_k=2, register_words=16, shared_words=16)
    counts = set(map(int, re.findall(r"expect_tx_shared_b64\(.*, \(uint\)(\d+)\)", text(**geometry))))
    operand, weights = 32 * 64, 2 * 16 * 4 * 64
    # One block of K in registers and one in shared memory share a chunk; two are streamed.
    assert counts == {2 * operand, operand + weights}


def test_weights_are_asked_to_stay_in_l2() -> None:
    assert "L2__cache_hint" in text(**pooled(16, 32, warps_u=2, warps_k=2))
    assert "L2__cache_hint" not in text(**pooled(16, 32, warps_u=2, warps_k=2, shared_words=1000))


@pytest.mark.broad
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("together", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("apart", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ring", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4, 5))])
def test_no_stage_is_filled_or_read_too_early(ring: int, apart: int, together: int, seed: int) -> None:
    case = Case("lstm", 192, 9, 5, "bfloat16")
    geometry = pooled(24, 32, ring=ring, together=together, apart=apart, register_words=0)
    assert persistent_error(case, geometry, seed=seed) < tolerance("bfloat16", 5)


@pytest.mark.parametrize("apart", [0, 1])
def test_a_cluster_that_shares_k_allocates_what_it_needs(apart: int) -> None:
    found = geometry_of(step("lstm", 64), "bfloat16", **pooled(8, 32, apart=apart))
    code = text_of(persistent.kernel("k", found, layout_of("lstm", 64)))
    assert re.findall(r"extern __shared__ __align__\((\d+)\)", code) == ["1024"]


def test_a_group_of_other_than_whole_clusters_is_refused() -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", **pooled(9, 32))
    with pytest.raises(ValueError, match="clusters share K"):
        persistent.kernel("k", made, layout_of("lstm", 64))


COPIES = 2  # of the loop's body: even and odd steps


@pytest.mark.broad
@pytest.mark.parametrize("precision", ONE_QUICK)
@pytest.mark.parametrize(
    ("register_words", "shared_words"),
    [(1000, 0), pytest.param(0, 1000, marks=pytest.mark.slow), (16, 16), pytest.param(0, 0, marks=pytest.mark.slow)],
)
def test_weights_come_from_anywhere(register_words: int, shared_words: int, precision: str) -> None:
    geometry = pooled(12, 32, register_words=register_words, shared_words=shared_words)
    check("lstm", 192, 9, precision, geometry, steps=3)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("register_words", "kinds"), [(1000, "rs"), (0, "ss"), (16, "rs ss")])
def test_every_tile_is_multiplied_once(register_words: int, kinds: str) -> None:
    made = geometry_of(step("lstm", 256), "bfloat16", **pooled(16, 64, register_words=register_words))
    code = text_of(persistent.kernel("k", made, layout_of("lstm", 256)))
    expected = sum(s.kblocks * 2 * made.gate_tiles(p) for p, s in made.weights)
    assert calls(code, "m64n64k16") == COPIES * expected
    assert {kind for kind in ("rs", "ss") if calls(code, f"wgmma_bf16_{kind}")} == set(kinds.split())


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision", "geometry"),
    [
        ("gru", 72, 41, "float16", pooled(10, 32)),  # two slices; units, K and gates padded
        ("lstm", 192, 20, "bfloat16", pooled(8, 32, warps_u=3, pace=2)),  # three warpgroups
        ("lstm", 96, 33, "bfloat16", pooled(12, 64, together=4, ring=5, apart=0)),  # pairs of tiles are sent together
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("lstm", 130, 70, "bfloat16", pooled(18, 128, shared_words=100)),
                ("gru", 200, 7, "tf32", pooled(14, 16, warps_u=2, warps_k=2, register_words=0)),
                ("gru_reset_before", 72, 20, "bfloat16", pooled(10, 32, ring=5, apart=0)),
                (
                    "lstm",
                    320,
                    1,
                    "bfloat16",
                    pooled(20, 16, together=4, warps_u=2, warps_k=2),
                ),  # two tiles of gates each
                ("lstm_layer_norm", 64, 9, "bfloat16", pooled(8, 32, ring=4)),
                ("multiplicative_lstm", 64, 9, "tf32", pooled(8, 32, ring=2)),
                ("lstm_projection", 72, 20, "bfloat16", pooled(10, 32)),
                ("slstm", 40, 9, "bfloat16", pooled(6, 32)),
                ("lem", 24, 9, "bfloat16", pooled(4, 32)),
                ("elman", 80, 40, "tf32", pooled(10, 32)),
            )
        ),
    ],
)
def test_cells_and_geometries(name: str, hidden: int, batch: int, precision: str, geometry: dict[str, Any]) -> None:
    check(name, hidden, batch, precision, geometry)


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_lengths_and_resets(seed: int) -> None:
    check("gru", 72, 9, "bfloat16", pooled(10, 32), modes=[(True, True, True), (False, True, False)], seed=seed)


@pytest.mark.parametrize("knobs", [{"together": 1}, {"ring": 1}, {"ctas": 9}])
def test_what_a_pooled_kernel_needs(knobs: dict[str, int]) -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", **pooled(8, 32) | knobs)
    with pytest.raises(ValueError, match="clusters share K"):
        persistent.kernel("k", made, layout_of("lstm", 64))


def test_blocks_of_a_cluster_are_launched_together() -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", **pooled(8, 32, together=4))
    kernel = persistent.kernel("k", made, layout_of("lstm", 64))
    assert kernel.cluster == 4 and kernel.resident
