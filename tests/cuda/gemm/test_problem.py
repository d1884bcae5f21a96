"""What kernels share: operands of any alignment."""

from __future__ import annotations

from compiled_kernels import text_of
from gemm_groups import hoisted, made


def test_both_ways_to_read_an_operand_are_in_one_kernel() -> None:
    aligned, odd = (text_of(made(hoisted(1, 8, [k])).variants[-1].kernel) for k in (64, 33))
    assert "& (uint64_t)15" in aligned and "async_cg_shared_global_16" in aligned and "st_vec_shared" in aligned
    assert "async_cg_shared_global_16" in odd and "st_vec_shared" in odd  # its weights, and its rows
