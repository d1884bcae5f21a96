"""index: indices are 64 bits wide."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.tir.index import INDEX, int64, wide


def test_indices_are_64_bits_wide() -> None:
    lane, row = tirx.Var("lane", "int32"), tirx.Var("row", INDEX)
    assert [str(value.ty) for value in (int64(3), wide(3), wide(lane), wide(row))] == ["int64"] * 4
    assert wide(row) is row and int(int64(1 << 40)) == 1 << 40
