"""Tiles: what a block is made of."""

from __future__ import annotations

from tvm_rnn.cuda.linear.chunk_tile import REGISTERS, ChunkTile, piece_bytes, turned
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, Rows


def test_few_warps_fill_eight() -> None:
    for warps in (1, 2, 3):
        assert ChunkTile(warps=warps).threads == 256


def test_registers_are_handed_over() -> None:
    """Warps of fours, which have no more together than the block begins with."""
    for (scorers, warps), (few, many, rest) in REGISTERS.items():
        tile = ChunkTile(chunk=16 * scorers, warps=warps)
        assert tile.registers == (few, many, rest)
        begins = 65536 // tile.threads // 8 * 8 * (scorers + warps + tile.loaders)
        assert few * scorers + many * warps + rest * tile.loaders <= begins
        assert not any(n % 8 for n in (few, many, rest))


def test_pieces() -> None:
    assert piece_bytes(Rows(64, 128, "bfloat16")) == 16
    assert piece_bytes(Rows(20, 128, "bfloat16", 2)) == 4
    assert piece_bytes(Rows(17, 17, "bfloat16")) == 2


def test_who_sees_its_own_step() -> None:
    assert turned(AFTER) and not turned(BEFORE)
