"""mma.sync kernels: the instruction of each dtype, and tiles that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import text_of
from emulated import run
from gemm_groups import hoisted, made
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.mma_sync import STEPS, MmaProduct, MmaTile


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bfloat16", "m16n8k16_row_col_f32_bf16"),
        ("float16", "m16n8k16_row_col_f32_f16"),
        ("tf32", "m16n8k8_row_col_f32_tf32"),
    ],
)
def test_the_instruction_of_a_precision(precision: str, instruction: str) -> None:
    made_for = made(hoisted(4, 32), precision, target="nvidia-a100")
    assert [v.condition for v in made_for.variants] == ["true"]
    text = text_of(made_for.variants[0].kernel)
    rows, split, stages, columns = (made_for.knobs[f"many_{k}"] for k in ("rows", "split", "stages", "columns"))
    tile = MmaTile(rows, split=split, stages=stages, columns=columns)
    assert text.count(instruction + "_") + text.count(instruction + "(") >= tile.high * tile.broad * STEPS


def test_a_tile_is_shared_among_warps() -> None:
    tile = MmaTile(64, split=2, columns=64, warps=2, along=2)
    assert (tile.threads, tile.high, tile.broad) == (256, 2, 4)


def test_sums_are_shared_out_by_item() -> None:
    """A split kernel has each accumulator in one item, of one block of the cluster."""
    tile = MmaTile(32, split=2, columns=64, warps=1, cluster=2)
    assert tile.parts == 4 and tile.sums == 2 * 8 * 16


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


@pytest.mark.broad
def test_all_tiles_of_sums() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 8, (16 * HIGH, 8)).astype("f4"), rng.integers(-8, 8, (8, 8 * BROAD)).astype("f4")
    for buffer in range(2):
        out = np.full((16 * HIGH, 8 * BROAD), np.nan, "f4")
        run(kernel(buffer), {"a": a, "b": b, "out": out}, {}, 1)
        np.testing.assert_array_equal(out, a @ b)


def test_one_instruction_for_each_tile() -> None:
    assert text_of(kernel()).count("  tvm_builtin_ptx_mma") >= HIGH * BROAD
