"""Shared memory of a chunk scan: parts that do not overlap, and what does not fit."""

from __future__ import annotations

from linear_steps import recurrence

from tvm_rnn.cuda.linear.chunk_layout import ChunkLayout
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import DECAYED


def layout(keys: int, values: int, **tile: int) -> ChunkLayout:
    return ChunkLayout("k", recurrence(2, keys, values, erase=DECAYED), ChunkTile(**tile))


def test_parts_follow_each_other() -> None:
    found = layout(20, 40)
    assert found.keys == 32 and found.tiles == 2
    assert found.vector_at("key") == 0 and found.vector_at("read_0") == 64 * found.key_pitch
    assert found.scores_at == 3 * found.stage_bytes and found.results_at == found.scores_at + 4 * found.score_bytes
    assert found.blocks(3, 5) == 2 * 2 * 3 * 5


def test_decays_of_keys_lie_behind_values() -> None:
    found = ChunkLayout("k", recurrence(2, 20, 40, decay=20), ChunkTile())
    assert found.part == 16 and layout(20, 40).part == 64
    assert found.decay_at == found.value_at + 64 * found.value_pitch
    assert found.stage_bytes == found.decay_at + 64 * (32 * 4 + 16)


def test_what_fits() -> None:
    assert layout(128, 128, warps=8).possible
    assert not layout(256, 128).possible
    assert layout(256, 128, chunk=32).possible
