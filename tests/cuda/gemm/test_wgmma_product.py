"""Products of a warpgroup: which instruction, which descriptors, and where a stage's steps lie."""

from __future__ import annotations

from typing import Any

import pytest
from compiled_kernels import text_of
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.gemm.wgmma_product import STEPS, WgmmaProduct


def script(dtype: str = "bfloat16", columns: int = 64, first: bool = False, **options: Any) -> tuple[str, str]:
    def body(w: Writer) -> None:
        I.cta_id([1])
        I.thread_id([128])
        arena = I.alloc_buffer((65536,), "uint8", scope="shared.dyn", align=1024)
        product = WgmmaProduct(w, arena, columns, dtype, **options)
        more = w["turn"] > 0 if first else None
        product.multiply(w["turn"] * 2048, tirx.const(0, "uint64"), 1024, more)
        product.wait(0)
        w.store(w["out"], product.acc[0, 0][0], 0)

    kernel = write("f", [("out", "float32")], [("turn", "int32")], body, threads=128)
    return kernel.func.script(), text_of(kernel)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bfloat16", "m64n64k16_f32_bf16_bf16"),
        ("float16", "m64n64k16_f32_f16_f16"),
        ("float32", "m64n64k8_f32_tf32_tf32"),
    ],
)
def test_the_instruction_of_a_dtype(dtype: str, name: str) -> None:
    _, cuda = script(dtype)
    assert name in cuda


def test_a_stage_is_four_steps_of_32_bytes_along_k() -> None:
    tir, _ = script()
    for step in range(STEPS):
        assert f"T.uint64({1024 + 2 * step})" in tir
    assert f"T.uint64({1024 + 2 * STEPS})" not in tir


def test_turned_operands_step_over_16_rows() -> None:
    tir, _ = script(turned=True)
    for step in range(STEPS):
        assert f"T.uint64({1024 + 128 * step})" in tir


def test_sums_begin_at_zero_or_with_the_first_product() -> None:
    assert script(zero=True)[0].count("= T.float32(0.0)") == 32
    assert "T.float32(0.0)" not in script(first=True)[0]
    # The first step of a stage alone asks whether there are sums.
    assert script(first=True)[0].count("turn > 0") == 1 and "turn > 0" not in script()[0]
