"""transfer: dense user arrays and padded rows, there and back."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_rnn.cpu.user_array_copies import each, rows_in, rows_out
from tvm_rnn.cpu.workspace import Array, row_stride, strides_of
from tvm_rnn.tir.index import int64

LANES = 4


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 5), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_there_and_back(shape: tuple[int, ...], rows: int) -> None:
    stride = row_stride(shape, LANES, 4)
    array = Array("workspace", int64(8), stride, strides_of(shape, LANES)[0], shape)
    size = int(np.prod(shape, dtype=int))
    user, back = (tirx.decl_buffer(((rows + 2) * size,), "float32", name=n) for n in ("user", "back"))
    ws = tirx.decl_buffer((8 + rows * stride,), "float32", name="ws")
    body = tirx.SeqStmt(
        [rows_in(ws, user, array, int64(2), int64(rows)), rows_out(ws, back, array, int64(1), int64(rows))]
    )
    func = tirx.PrimFunc([user, ws, back], body).with_attr("global_symbol", "main")
    run = tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"]
    data = np.arange((rows + 2) * size, dtype="float32")
    work, result = (tvm.runtime.tensor(np.full(int(b.shape[0]), -1.0, "float32")) for b in (ws, back))
    run(tvm.runtime.tensor(data), work, result)
    np.testing.assert_array_equal(result.numpy()[size : (1 + rows) * size], data[2 * size :])
    assert (result.numpy()[:size] == -1).all() and (result.numpy()[(1 + rows) * size :] == -1).all()
    assert (work.numpy()[:8] == -1).all()


def test_each_visits_every_index_in_order() -> None:
    seen: list[str] = []

    def body(index: tuple[object, ...], flat: object) -> tirx.Stmt:
        seen.append(str(flat))
        return tirx.Evaluate(int64(len(index)))

    nest = each((2, 3), body)
    assert isinstance(nest, tirx.For) and isinstance(nest.body, tirx.For) and len(seen) == 1
