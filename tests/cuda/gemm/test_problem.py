"""What kernels share: registers that stay registers, and operands of any alignment."""

from __future__ import annotations

from compiled_kernels import text_of
from gemm_groups import hoisted, made
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.gemm.problem import keep


def test_a_kept_value_is_computed_once() -> None:
    def body(w: Writer) -> None:
        I.cta_id([1])
        tx = I.thread_id([32])
        divided = keep(w, tirx.Cast("int64", tx) // w["n"])
        for i in range(3):
            w.store(w["out"], divided + i, divided * (i + 1))

    kernel = write("kernel", [("out", "int64")], [("n", "int64")], body, threads=32)
    assert text_of(kernel).count(" / ") <= 2  # the floor of a signed division


def test_both_ways_to_read_an_operand_are_in_one_kernel() -> None:
    aligned, odd = (text_of(made(hoisted(1, 8, [k])).variants[-1].kernel) for k in (64, 33))
    assert "& (uint64_t)15" in aligned and "async_cg_shared_global_16" in aligned and "st_vec_shared" in aligned
    assert "async_cg_shared_global_16" in odd and "st_vec_shared" in odd  # its weights, and its rows
