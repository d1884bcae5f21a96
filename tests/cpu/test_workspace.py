"""memory: padded strides, addresses and sizes of the workspace."""

from __future__ import annotations

import pytest
from tvm import tirx

from tvm_rnn.cpu.workspace import Array, Packed, Workspace, pad, row_stride, strides_of
from tvm_rnn.module_file import schema
from tvm_rnn.tir.index import int64


@pytest.mark.parametrize(("size", "padded"), [(1, 16), (15, 16), (16, 16), (17, 32), (0, 0)])
def test_pad(size: int, padded: int) -> None:
    assert pad(size, 16) == padded


@pytest.mark.parametrize(
    ("shape", "strides", "size"),
    [((), (), 16), ((1,), (1,), 16), ((17,), (1,), 32), ((3, 5), (16, 1), 48), ((2, 3, 20), (96, 32, 1), 192)],
)
def test_strides_pad_the_last_axis_only(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
    assert strides_of(shape, 16) == (strides, size)


def test_rows_are_never_whole_pages_apart() -> None:
    assert row_stride((1024,), 16, 4) == 1040
    assert row_stride((1000,), 16, 4) == 1008
    assert row_stride((512,), 8, 8) == 520


def test_addresses_are_64_bit_sums() -> None:
    array = Array("workspace", int64(100), 32, (16, 1), (2, 16))
    row, lane = tirx.Var("row", "int64"), tirx.Var("lane", "int32")
    text = str(array.address(row, (1, lane)))
    assert text.replace("T.int64(", "").replace(")", "").startswith("100 + row * 32 + ")
    assert str(array.address(row, (1, lane)).ty) == "int64"


def test_a_parameter_has_the_same_address_in_every_row() -> None:
    array = Array("packed", int64(7), 0, (1,), (5,))
    assert "row" not in str(array.address(tirx.Var("row", "int64"), (3,)))


def test_the_workspace_ends_behind_all_of_its_parts() -> None:
    workspace = Workspace(fixed=5, per_row=3, per_tile_row=2, per_sequence_row=1)
    sizes = workspace.sizes()
    assert sizes == schema.Workspace(5, 3, 2, 1)


def test_packed_offsets_follow_each_other() -> None:
    packed = Packed()
    assert [packed.reserve("a", 10), packed.reserve("b", 4), packed.size] == [0, 10, 14]
    assert packed.names == {"a": 0, "b": 10}
