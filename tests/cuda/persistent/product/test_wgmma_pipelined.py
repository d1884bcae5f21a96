"""Products by wgmma, run on the CPU: weights in registers, shared memory and the pipeline; phases, masks, odd sizes."""

from __future__ import annotations

from typing import Any

import pytest
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_bulk_copy_pipeline import pipelined
from tests.cuda.persistent.product.test_mma_sync import calls
from tests.cuda.persistent.test_kernel import check
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.product.wgmma_pipelined_layout import m_tiles

COPIES = 2  # of the loop's body: even and odd steps


@pytest.mark.broad
@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "tf32"))]
)
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
    expected = sum(s.kblocks * 2 * m_tiles(made, p) for p, s in made.weights)
    assert calls(code, "m64n64k16") == COPIES * expected
    assert {kind for kind in ("rs", "ss") if calls(code, f"wgmma_bf16_{kind}")} == set(kinds.split())


@pytest.mark.broad_after(1)
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
