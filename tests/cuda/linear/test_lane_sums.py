"""Sums over the lanes of a warp, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import POISON, run
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.linear.lane_sums import reduce_scatter


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("count", [4, 32])
def test_every_sum_is_in_the_lanes_that_store_it(count: int) -> None:
    def body(w: Writer) -> None:
        w.keep(I.cta_id([tirx.const(1, "int32")]))
        lane = w.keep(I.thread_id([32]))
        parts = [w.keep(w["given"][lane * count + i]) for i in range(count)]
        total, number, same = reduce_scatter(w, lane, parts, (16, 8, 4, 2, 1))
        assert same + 1 == 32 // count
        with w.when(tirx.EQ(lane & same, 0)):
            w.store(w["sums"], total, number)

    kernel = write(f"sums_{count}", [("given", "float32"), ("sums", "float32")], [], body, threads=32)
    given = np.random.default_rng(0).integers(-9, 9, (32, count)).astype("f4")
    arrays = {"given": given, "sums": np.full(count, POISON, "f4")}
    run(kernel, arrays, {}, 1)
    assert np.array_equal(arrays["sums"], given.sum(0))
