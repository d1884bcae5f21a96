"""Tiles: what a block is made of."""

from __future__ import annotations

import pytest
from tvm import tirx

from tvm_rnn.cuda.linear.chunk_tile import REGISTERS, ChunkTile, further, piece_bytes, row_pitch, swizzled, turned
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


@pytest.mark.parametrize("size", [32, 64, 96, 128, 160, 256, 384])
def test_eight_rows_lie_in_other_banks(size: int) -> None:
    """The same 16 bytes of each; and all pieces of a row are still its own."""
    pitch = row_pitch(size)
    for piece in range(size // 16):
        found = [row * pitch + number(swizzled(pitch, tirx.const(row, "int32"), 16 * piece)) for row in range(8)]
        assert len({at % 128 // 16 for at in found}) == 8
    for row in range(8):
        every = {number(swizzled(pitch, tirx.const(row, "int32"), at)) for at in range(size)}
        assert every == set(range(size))


@pytest.mark.parametrize("size", [32, 64, 96, 128, 160, 256, 384])
def test_what_is_further_in_a_row(size: int) -> None:
    pitch = row_pitch(size)
    for row in range(8):
        for half in (0, 16):
            first = row * pitch + number(swizzled(pitch, tirx.const(row, "int32"), half))
            for k in range(size // 32):
                at = row * pitch + number(swizzled(pitch, tirx.const(row, "int32"), 32 * k + half))
                assert number(further(pitch, tirx.const(1024 + first, "uint32"), k)) == 1024 + at


OPERATIONS = {"Add": int.__add__, "Mul": int.__mul__, "BitwiseXor": int.__xor__}


def number(value: object) -> int:
    """Of constants; nobody else works out `^` of unsigned ones."""
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value)
    return OPERATIONS[type(value).__name__](number(value.a), number(value.b))
