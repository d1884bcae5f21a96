"""Rows in the order of a large GEMM over all rows, emulated: swizzled squares, with zeros around them."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import decoded, encoded, run
from row_products import operand

from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.cuda.training.weight_gradient_pack import pack_kernel, rows_of_stage, squares


def packed(one: Operand, precision: str, rows: int, values: np.ndarray, spare: int, first: int) -> np.ndarray:
    """What the kernel makes of rows: [stage, square, line, chunk, element], chunks in their order again."""
    dtype = storage(precision)
    whole = np.full((rows + 1, one.place.row_stride), np.nan)
    first_column = one.offset or 0
    whole[:rows, first_column : first_column + one.depth] = values
    own, stages = squares(one.depth), -(-rows // rows_of_stage(precision))
    shape = (stages, own + spare, 64, 8, 16 // np.dtype(storage("float32") if precision == "tf32" else "f2").itemsize)
    into = encoded(np.full(shape, 7.0), dtype)
    kernel = pack_kernel("pack", one, precision, stage_squares=own + spare, first=first)
    run(kernel, {one.name: encoded(whole, one.place.dtype), "packed": into}, {"rows": rows}, stages * own)
    found = decoded(into, dtype).reshape(stages, own + spare, SQUARE_BYTES // 128, 8, -1)
    order = np.arange(8)[None, :] ^ np.arange(64)[:, None] % 8
    return np.take_along_axis(found, order[None, None, :, :, None], 3)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(
    ("depth", "stride", "offset", "rows"),
    [(130, 136, 0, 70), (64, 80, 16, 1), pytest.param(70, 74, 2, 129, marks=pytest.mark.slow)],
)
def test_every_element_has_its_place(precision: str, depth: int, stride: int, offset: int, rows: int) -> None:
    """Rows inside of others, of 16-byte pieces and of 4-byte ones; squares beside others, which stay as they are."""
    one = operand("r", depth, stride, storage(precision), offset)
    values = np.random.default_rng(1).normal(size=(rows, depth))
    found = packed(one, precision, rows, values, 2, 1)
    deep, own = rows_of_stage(precision), squares(depth)
    assert (found[:, 0] == 7).all() and (found[:, -1] == 7).all()
    expected = np.zeros((found.shape[0] * deep, own * 64))
    expected[:rows, :depth] = decoded(encoded(values, storage(precision)), storage(precision))
    squared = expected.reshape(-1, deep, own, 64).transpose((0, 2, 3, 1) if precision == "tf32" else (0, 2, 1, 3))
    limit = 2.0**-11 if precision == "tf32" else 0  # rounded to 10 bits of mantissa
    got = found[:, 1:-1].reshape(squared.shape)
    np.testing.assert_allclose(got, squared, rtol=limit, atol=0)
    if precision == "tf32":
        assert not (got.astype("f4").view("u4") & 0x1FFF).any()


@pytest.mark.broad
def test_nan_and_inf_stay() -> None:
    one = operand("r", 64, 64, "float32")
    values = np.ones((32, 64))
    values[3, 5], values[4, 6] = np.nan, -np.inf
    found = packed(one, "tf32", 32, values, 0, 0)[0, 0].reshape(64, 32)
    assert np.isnan(found[5, 3]) and found[6, 4] == -np.inf and np.isfinite(found).sum() == 64 * 32 - 2
