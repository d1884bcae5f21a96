"""Kernels without tensor cores: every gate count, float32 and float64, few rows and many."""

from __future__ import annotations

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, lstm_step, made

from tvm_rnn.cuda.gemm.ffma import LanesTile


@pytest.mark.parametrize("gates", [1, 2, 3, 5, 8])
def test_every_number_of_gates(gates: int) -> None:
    text = text_of(made(hoisted(gates, 20), "float32").variants[-1].kernel)
    assert "mma" not in text and "ld_vec_shared_v4_f32" in text


def test_float64_is_float64() -> None:
    text = text_of(made(lstm_step(8, 8), "float64").variants[0].kernel)
    assert "ld_vec_shared_v2_f64" in text and "float " not in text.split("{", 1)[1]


def test_threads_of_a_tile() -> None:
    tile = LanesTile(64, split=8, across=4, high=8)
    assert (tile.down, tile.lanes, tile.threads) == (8, 4, 256)
    assert LanesTile(128).threads == 256
