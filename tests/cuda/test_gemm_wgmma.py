"""wgmma kernels: clusters that share weights, two operands, and what fits in shared memory."""

from __future__ import annotations

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, made

from tvm_rnn.cuda.gemm import Variant
from tvm_rnn.cuda.gemm_wgmma import WgmmaTile


def wide(precision: str, gates: int, width: int, *depths: int) -> Variant:
    found = [v for v in made(hoisted(gates, width, depths), precision).variants if v.kernel.name.endswith("_wide")]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bfloat16", "m64n256k16_f32_bf16_bf16"),
        ("float16", "m64n256k16_f32_f16_f16"),
        ("tf32", "m64n256k8_f32_tf32_tf32"),
    ],
)
def test_the_instruction_of_a_precision(precision: str, instruction: str) -> None:
    variant = wide(precision, 4, 256, 128)
    text = text_of(variant.kernel)
    assert instruction in text and "multicast__cluster" in text and "setmaxnreg" in text
    assert variant.kernel.cluster == 2 and variant.condition == "rows >= 512 && ((uintptr_t)x0 & 15) == 0"


def test_three_gates_and_two_operands() -> None:
    variant = wide("bfloat16", 3, 512, 64, 136)
    assert "m64n192k16" in text_of(variant.kernel)
    assert variant.condition.count("uintptr_t") == 2


def test_no_kernel_for_rows_that_are_not_aligned() -> None:
    names = [v.kernel.name for v in made(hoisted(4, 256, [33])).variants]
    assert names == ["kernel_many"]


@pytest.mark.parametrize("columns", [64, 128, 192, 256])
def test_the_ring_fits(columns: int) -> None:
    assert WgmmaTile(columns, 4).shared_bytes <= 227 << 10
