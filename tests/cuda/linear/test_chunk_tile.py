"""Tiles: what a block is made of."""

from __future__ import annotations

from tvm_rnn.cuda.linear.chunk_tile import REGISTERS, ChunkTile, piece_bytes, turned
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, Rows


def test_registers_are_handed_over() -> None:
    """Of warps of fours."""
    for (scorers, warps), own in REGISTERS.items():
        assert ChunkTile(chunk=16 * scorers, warps=warps).registers == own
        assert not any(n % 8 for n in own)
    assert ChunkTile(warps=2).registers is None


def test_pieces() -> None:
    assert piece_bytes(Rows(64, 128, "bfloat16")) == 16
    assert piece_bytes(Rows(20, 128, "bfloat16", 2)) == 4
    assert piece_bytes(Rows(17, 17, "bfloat16")) == 2


def test_who_sees_its_own_step() -> None:
    assert turned(AFTER) and not turned(BEFORE)
