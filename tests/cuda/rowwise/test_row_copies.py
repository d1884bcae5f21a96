"""row_copies: rows that begin anywhere, as kernels copy them, run by the emulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulated import run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import THREADS
from tvm_rnn.cuda.rowwise.row_copies import RowCopy, row_copies

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@pytest.mark.parametrize(
    ("rows", "width", "source", "target"),
    [
        (5, 7, "bfloat16", "bfloat16"),
        (9, 7, "float32", "float32"),
        pytest.param(33, 129, "float32", "float16", marks=pytest.mark.slow),
    ],
)
def test_copies_have_the_values_and_zeros_behind_them(rows: int, width: int, source: str, target: str) -> None:
    lanes = 16 // np.dtype(DTYPES[target]).itemsize
    stride = -(-width // lanes) * lanes
    kernel = row_copies("k", [RowCopy(Place(source, width), Place(target, stride), width)])
    given = np.random.default_rng(0).standard_normal((rows, width)).astype(DTYPES[source])
    made = np.full((rows, stride), np.nan, DTYPES[target])
    run(kernel, {"source0": given, "target0": made}, {"rows": rows}, -(-rows * stride // lanes // THREADS))
    assert np.array_equal(made[:, :width], given.astype(DTYPES[target])) and not made[:, width:].any()


def test_several_arrays_are_copied_by_one_kernel() -> None:
    rows, widths = 11, (5, 131, 8)
    strides = [-(-width // 8) * 8 for width in widths]
    copies = [
        RowCopy(Place("float16", width + 1), Place("float16", stride), width)
        for width, stride in zip(widths, strides, strict=True)
    ]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((rows, width + 1)).astype(np.float16) for width in widths]
    made = [np.full((rows, stride), np.nan, np.float16) for stride in strides]
    arrays = {f"source{n}": value for n, value in enumerate(given)} | {f"target{n}": v for n, v in enumerate(made)}
    run(row_copies("k", copies), arrays, {"rows": rows}, -(-rows // (THREADS // (sum(strides) // 8))))
    for width, source, target in zip(widths, given, made, strict=True):
        assert np.array_equal(target[:, :width], source[:, :width]) and not target[:, width:].any()
