"""Numbers from block to block, on the emulator: each block adds one to what the one before it has published."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import run
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.linear.published import Awaited, publish, wait
from tvm_rnn.tir.index import wide

BLOCKS, THREADS = 5, 32
FULL = {"float32": "uint32", "float64": "uint64"}


def passed_on(dtype: str, lanes: int) -> Kernel:
    """Block 0 has `first`; each thread hands on numbers side by side."""

    def body(w: Writer) -> None:
        block = I.cta_id([w["count"]])
        thread = w.keep(I.thread_id([THREADS]))
        own = [w.local(1, dtype) for _ in range(lanes)]
        for e, register in enumerate(own):
            w.store(register, w["first"][thread * lanes + e], 0)
        with w.when(block > 0):
            before = Awaited(w, "numbers", dtype, wide((block - 1) * THREADS + thread) * lanes, lanes)
            wait([before])
            for register, value in zip(own, before.values(), strict=True):
                w.store(register, value + tirx.const(1.0, dtype), 0)
        publish(w, "numbers", dtype, wide(block * THREADS + thread) * lanes, [register[0] for register in own])

    return write("passed_on", [("first", dtype), ("numbers", dtype)], [("count", "int32")], body, threads=THREADS)


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 2), ("float32", 1), ("float64", 1)])
def test_each_waits_for_the_one_before(dtype: str, lanes: int) -> None:
    count = THREADS * lanes
    bits = np.random.default_rng(lanes).standard_normal(count).astype(dtype).view(FULL[dtype])
    bits[3] = np.iinfo(FULL[dtype]).max  # a NaN with the bits of what is not there yet
    first = bits.view(dtype)
    numbers = np.full(BLOCKS * count, np.iinfo(FULL[dtype]).max, FULL[dtype]).view(dtype)
    run(passed_on(dtype, lanes), {"first": first, "numbers": numbers}, {"count": BLOCKS}, BLOCKS)
    expected = [first]
    for _ in range(BLOCKS - 1):
        expected.append(expected[-1] + np.ones((), dtype))
    assert np.array_equal(numbers.reshape(BLOCKS, count), np.array(expected), equal_nan=True)
    assert numbers.view(FULL[dtype]).max() < np.iinfo(FULL[dtype]).max
