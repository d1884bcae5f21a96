"""Operands that stay in shared memory: what was loaded comes back, whatever its dtype."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import run
from tvm import tirx
from tvm.script.ir_builder import tirx as I
from vector_scans import linear

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import WARP
from tvm_rnn.cuda.linear.kept_operands import Kept
from tvm_rnn.cuda.linear.vector_loads import Loads, Row
from tvm_rnn.cuda.linear.vector_walk import Walk
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import wide

ROUNDS, WARPS = 3, 2


@pytest.mark.parametrize(("dtype", "side"), [("float32", 1), ("float32", 2), ("float16", 2), ("float16", 1)])
def test_what_was_loaded_comes_back(dtype: str, side: int) -> None:
    """Of rounds 1 and 2; there is no place for round 3, nor one for round 0."""
    size, each = np.dtype(dtype).itemsize, WARP * side
    place, bytes_ = Place(dtype, each), ROUNDS * WARPS * each * size - 1

    def body(w: Writer) -> None:
        walk = Walk(w, replace(linear(side)[0], kept=bytes_), masked=False)
        I.cta_id([1])
        thread = w.keep(I.thread_id([WARPS * WARP]))
        walk.part, walk.column = w.keep(tirx.truncdiv(thread, WARP)), w.keep(tirx.truncmod(thread, WARP))
        at = w.keep(wide(walk.column * side))
        loads = Loads(w, dtype, lambda place, at: (side, at, 0))

        def row(number: Expr) -> Row:
            first = w.keep(wide(number * WARPS + walk.part))
            return Row(w, first, 0, {}, {})

        loads.value(0, row(0), "given", place, at)
        kept = Kept(walk, [loads])
        assert kept.rounds == ROUNDS - 1
        with w.loop(ROUNDS + 1) as number:
            loads.ask(row(number))
            kept.store(number, [loads])
        with w.loop(ROUNDS + 1) as number:
            loads.ask(row(0))
            kept.load(number, [loads])
            loads.take()
            assert loads.taken is not None
            for e, value in enumerate(loads.taken[0]):
                w.store(w["found"], value, wide(number * WARPS + walk.part) * each + at + e)

    kernel = write("k", [("given", dtype), ("found", dtype)], [], body, threads=WARPS * WARP, shared_bytes=bytes_)
    given = np.arange((ROUNDS + 1) * WARPS * each).astype(dtype)
    found = np.zeros_like(given)
    run(kernel, {"given": given, "found": found}, {}, 1)
    rounds = given.reshape(ROUNDS + 1, -1)
    np.testing.assert_array_equal(found.reshape(rounds.shape), rounds[[0, 1, 2, 0]])
