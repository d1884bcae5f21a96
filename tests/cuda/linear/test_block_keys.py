"""Sums over the steps of a block, of a lane's key, on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import POISON, run
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.linear.block_keys import KeySums, Steps, factors, summed
from tvm_rnn.cuda.linear.blocks_layout import LINE_BYTES
from tvm_rnn.cuda.linear.chunk_tile import BLOCK

PITCH = LINE_BYTES // 4
SIZE = BLOCK * (1 + PITCH)  # a row of products, then scores, a line for each earlier step


@pytest.mark.broad
@pytest.mark.parametrize("backwards", [False, True])
def test_a_read_out(backwards: bool) -> None:
    def body(w: Writer) -> None:
        w.keep(I.cta_id([tirx.const(1, "int32")]))
        lane = w.keep(I.thread_id([32]))
        shared = I.alloc_buffer((SIZE,), "float32", scope="shared", align=16)
        with w.loop(SIZE) as i, w.when(tirx.EQ(lane, 0)):
            w.store(shared, w["given"][i], i)
        w.do(I.cuda.warp_sync())
        base = w.bind(I.cuda.cvta_generic_to_shared(shared.ptr_to([0])))
        decays, column = w.local(BLOCK), w.local(BLOCK)
        for t in range(BLOCK):
            w.store(decays, w["decays"][t], t)
            w.store(column, w["column"][t], t)
        sums = KeySums(w, base, base)
        found = (sums.read_gradient if backwards else sums.read)(Steps(decays, None, [column]), 0, [4 * BLOCK])
        with w.when(tirx.EQ(lane, 0)):
            for t in range(BLOCK):
                w.store(w["found"], found[t], t)

    names = ("given", "decays", "column", "found")
    kernel = write(f"read_{backwards}", [(name, "float32") for name in names], [], body, threads=32)
    rng = np.random.default_rng(0)
    arrays = {"given": rng.random(SIZE, "f4"), "decays": rng.random(BLOCK, "f4"), "column": rng.random(BLOCK, "f4")}
    arrays["found"] = np.full(BLOCK, POISON, "f4")
    run(kernel, arrays, {}, 1)
    products, scores = arrays["given"][:BLOCK], arrays["given"][BLOCK:].reshape(BLOCK, PITCH)
    for t in range(BLOCK):
        total = products[t]
        for s in range(BLOCK - 1, t, -1) if backwards else range(t):
            total = total * arrays["decays"][s] + arrays["column"][s] * scores[min(s, t), max(s, t)]
        assert arrays["found"][t] == pytest.approx(total, rel=1e-5)


def test_what_is_left_where_nothing_decays() -> None:
    found, total = factors(Writer(), Steps(None, None, []), False)
    assert [one.value for one in (*found, total)] == [1.0] * (BLOCK + 1)


def test_sums() -> None:
    terms: list[Any] = [1, 2, 4]
    assert summed(terms) == 7 and summed(terms[:1]) == 1
