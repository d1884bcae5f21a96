"""memory: padded strides, addresses and sizes of the workspace."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_rnn.cpu.workspace import Array, Packed, Workspace, each_element, pad, row_stride, rows_in, strides_of
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


LANES = 4


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 5), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_come_in(shape: tuple[int, ...], rows: int) -> None:
    stride = row_stride(shape, LANES, 4)
    array = Array("workspace", int64(8), stride, strides_of(shape, LANES)[0], shape)
    size = int(np.prod(shape, dtype=int))
    user = tirx.decl_buffer(((rows + 2) * size,), "float32", name="user")
    ws = tirx.decl_buffer((8 + rows * stride,), "float32", name="ws")
    body = rows_in(ws, user, array, int64(2), int64(rows))
    func = tirx.PrimFunc([user, ws], body).with_attr("global_symbol", "main")
    run = tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"]
    data = np.arange((rows + 2) * size, dtype="float32")
    work = tvm.runtime.tensor(np.full(int(ws.shape[0]), -1.0, "float32"))
    run(tvm.runtime.tensor(data), work)
    places = [
        8 + row * stride + sum(i * s for i, s in zip(index, array.strides, strict=True))
        for row in range(rows)
        for index in np.ndindex(shape)
    ]
    found = work.numpy()
    np.testing.assert_array_equal(found[places], data[2 * size :])
    assert (np.delete(found, places) == -1).all()


def test_each_visits_every_index_in_order() -> None:
    seen: list[str] = []

    def body(index: tuple[object, ...], flat: object) -> tirx.Stmt:
        seen.append(str(flat))
        return tirx.Evaluate(int64(len(index)))

    nest = each_element((2, 3), body)
    assert isinstance(nest, tirx.For) and isinstance(nest.body, tirx.For) and len(seen) == 1
