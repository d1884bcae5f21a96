"""Products of a cluster that shares K, run on the CPU: weights from anywhere, two and four blocks, odd sizes."""

from __future__ import annotations

from typing import Any

import pytest
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_mma_sync import calls
from tests.cuda.persistent.product.test_wgmma_split_k_pipeline import pooled
from tests.cuda.persistent.test_kernel import check
from tvm_rnn.cuda.persistent import kernel as persistent

COPIES = 2  # of the loop's body: even and odd steps


@pytest.mark.broad
@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "tf32"))]
)
@pytest.mark.parametrize(
    ("register_words", "shared_words"),
    [(1000, 0), pytest.param(0, 1000, marks=pytest.mark.slow), (16, 16), pytest.param(0, 0, marks=pytest.mark.slow)],
)
def test_weights_come_from_anywhere(register_words: int, shared_words: int, precision: str) -> None:
    geometry = pooled(12, 32, register_words=register_words, shared_words=shared_words)
    check("lstm", 192, 9, precision, geometry, steps=3)


@pytest.mark.parametrize(("register_words", "kinds"), [(1000, "rs"), (0, "ss"), (16, "rs ss")])
def test_every_tile_is_multiplied_once(register_words: int, kinds: str) -> None:
    made = geometry_of(step("lstm", 256), "bfloat16", **pooled(16, 64, register_words=register_words))
    code = text_of(persistent.kernel("k", made, layout_of("lstm", 256)))
    expected = sum(s.kblocks * 2 * made.group_tiles(p) for p, s in made.weights)
    assert calls(code, "m64n64k16") == COPIES * expected
    assert {kind for kind in ("rs", "ss") if calls(code, f"wgmma_bf16_{kind}")} == set(kinds.split())


@pytest.mark.broad_after(1)
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
