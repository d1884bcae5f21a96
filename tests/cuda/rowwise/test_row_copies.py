"""row_copies: rows that begin anywhere, as kernels copy them, run by the emulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulated import run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import THREADS
from tvm_rnn.cuda.rowwise.row_copies import row_copy

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@pytest.mark.parametrize(
    ("rows", "width", "source", "target"),
    [(5, 7, "bfloat16", "bfloat16"), pytest.param(33, 129, "float32", "float16", marks=pytest.mark.slow)],
)
def test_copies_have_the_values_and_zeros_behind_them(rows: int, width: int, source: str, target: str) -> None:
    stride = -(-width // 8) * 8
    kernel = row_copy("k", Place(source, width), Place(target, stride), width)
    given = np.random.default_rng(0).standard_normal((rows, width)).astype(DTYPES[source])
    made = np.full((rows, stride), np.nan, DTYPES[target])
    run(kernel, {"source": given, "target": made}, {"rows": rows}, -(-rows * stride // 8 // THREADS))
    assert np.array_equal(made[:, :width], given.astype(DTYPES[target])) and not made[:, width:].any()
