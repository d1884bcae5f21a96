"""Products of a warp: every tile of sums with its fragments, emulated."""

from __future__ import annotations

import numpy as np
from compiled_kernels import text_of
from emulated import run
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.mma_product import MmaProduct

HIGH, BROAD = 2, 3


def kernel(buffer: int = 0) -> Kernel:
    """16 HIGH x 8 of a (in float32) times 8 x 8 BROAD of b, out of fragments as tf32 has them; other buffers are 0."""

    def body(w: Writer) -> None:
        I.cta_id([1])
        lane = w.bind(I.thread_id([32]))
        product = MmaProduct(w, "float32", HIGH, BROAD)
        product.take_fragments(buffer + 1)
        product.a.fill(tirx.const(0, "uint32"))
        product.b.fill(tirx.const(0, "uint32"))
        g, q = lane // 4, lane % 4
        for m in range(HIGH):
            for i in range(4):
                value = w["a"][(16 * m + i % 2 * 8 + g) * 8 + i // 2 * 4 + q]
                product.a.store(tirx.reinterpret("uint32", value), buffer, m, i)
        for n in range(BROAD):
            for i in range(2):
                value = w["b"][(i * 4 + q) * (8 * BROAD) + 8 * n + g]
                product.b.store(tirx.reinterpret("uint32", value), buffer, n, i)
        product.multiply(buffer)
        for m in range(HIGH):
            for n in range(BROAD):
                for half in range(2):
                    for odd, value in enumerate(product.acc[m, n, half]):
                        w.store(w["out"], value, (16 * m + 8 * half + g) * (8 * BROAD) + 8 * n + q * 2 + odd)

    return write("f", [("a", "float32"), ("b", "float32"), ("out", "float32")], [], body, threads=32)


def test_all_tiles_of_sums() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 8, (16 * HIGH, 8)).astype("f4"), rng.integers(-8, 8, (8, 8 * BROAD)).astype("f4")
    for buffer in range(2):
        out = np.full((16 * HIGH, 8 * BROAD), np.nan, "f4")
        run(kernel(buffer), {"a": a, "b": b, "out": out}, {}, 1)
        np.testing.assert_array_equal(out, a @ b)


def test_one_instruction_for_each_tile() -> None:
    assert text_of(kernel()).count("  tvm_builtin_ptx_mma") >= HIGH * BROAD
