"""Shared memory of a chunk scan: parts that do not overlap, and what does not fit."""

from __future__ import annotations

from linear_steps import recurrence

from tvm_rnn.cuda.linear.chunk_layout import ChunkLayout
from tvm_rnn.cuda.linear.chunk_tile import REGISTERS, ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED


def layout(keys: int, values: int, **tile: int) -> ChunkLayout:
    return ChunkLayout("k", recurrence(2, keys, values, erase=DECAYED), ChunkTile(**tile))


def test_parts_follow_each_other() -> None:
    found = layout(20, 40)
    assert found.keys == 32 and found.tiles == 2
    assert found.vector_at("key") == 0 and found.vector_at("read_0") == 64 * found.key_pitch
    assert found.scores_at == 3 * found.stage_bytes and found.results_at == found.scores_at + 2 * found.score_bytes
    assert found.blocks(3, 5) == 2 * 2 * 3 * 5


def test_scores_of_what_is_solved_are_blocks_on_the_diagonal() -> None:
    """What is erased is a result too: warps of states solve it, and of its scores they read these blocks alone."""
    erased = recurrence(2, 20, 40, erase=BEFORE, reads=(AFTER, BEFORE), same=(("read_1", "key"),))
    found = ChunkLayout("k", erased, ChunkTile(warps=4))
    assert [found.alone(i) for i in range(3)] == [False, False, True]
    assert found.score_at(2) == 2 * 64 * found.score_pitch == found.score_bytes - 16 * found.score_pitch


def test_decays_of_keys_lie_behind_values() -> None:
    found = ChunkLayout("k", recurrence(2, 20, 40, decay=20), ChunkTile())
    assert found.part == 16 and layout(20, 40).part == 64
    assert found.decay_at == found.value_at + 64 * found.value_pitch
    assert found.stage_bytes == found.decay_at + 64 * (32 * 4 + 16)


def test_what_fits() -> None:
    assert layout(128, 128, warps=8).possible
    assert not layout(256, 128).possible
    assert layout(256, 128, chunk=32).possible


def test_warps_that_read_stand_beside_few_of_states() -> None:
    """Each has what its warp of states hands on: S, [16 values][keys], and what was written, in 16 bits."""
    few, many = layout(128, 128, warps=2), layout(128, 128, warps=4)
    assert (few.readers, few.loaders, few.threads) == (2, 2, 320) and many.readers == 0
    assert few.handed_bytes == 2 * 16 * 128 + 2 * 16 * 64 and few.shared_bytes == few.handed_at + 2 * few.handed_bytes
    by_key = ChunkLayout("k", recurrence(2, 20, 40, decay=20), ChunkTile())
    solved = recurrence(others=("vector",), reads=(BEFORE,), same=(("read_0", "vector_0"),))
    assert by_key.readers == 0 == ChunkLayout("k", solved, ChunkTile()).readers
    assert ChunkLayout("k", recurrence(others=("vector",), reads=(AFTER,)), ChunkTile()).readers == 2


def test_without_readers_few_warps_fill_eight() -> None:
    for warps in (1, 2, 3):
        assert ChunkLayout("k", recurrence(reads=()), ChunkTile(warps=warps)).threads == 256


def test_registers_are_no_more_than_the_block_begins_with() -> None:
    for (scorers, warps), (few, many, rest) in REGISTERS.items():
        found = layout(64, 128, chunk=16 * scorers, warps=warps)
        begins = 65536 // found.threads // 8 * 8 * (found.threads // 32)
        assert few * scorers + many * warps + rest * found.loaders <= begins
