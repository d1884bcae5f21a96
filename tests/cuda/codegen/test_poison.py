"""Poison: no number is written with its bits."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import run
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.codegen.poison import BITS, written


@pytest.mark.parametrize("dtype", BITS)
def test_only_the_nan_with_its_bits_becomes_another_one(dtype: str) -> None:
    kind = f"uint{BITS[dtype]}"
    most = np.iinfo(kind).max

    def body(w: Writer) -> None:
        I.cta_id([1])
        thread = w.keep(I.thread_id([32]))
        w.store(w["bits"], written(w["values"][thread], dtype), thread)

    values = np.array([0.0, -0.0, 1.5, -np.inf, np.nan, *range(27)], dtype)
    values.view(kind)[7] = most
    bits = np.zeros(32, kind)
    kernel = write("k", [("values", dtype), ("bits", kind)], [], body, threads=32)
    run(kernel, {"values": values, "bits": bits}, {}, 1)
    assert bits[7] == most - 1 and np.isnan(bits.view(dtype)[7])
    assert np.array_equal(np.delete(bits, 7), np.delete(values.view(kind), 7))
