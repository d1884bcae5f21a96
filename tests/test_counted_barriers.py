"""counted_barriers: barriers of some warps become mbarriers, and nothing else changes."""

from __future__ import annotations

from counted_barriers import counted, unaligned

KERNEL = """__device__ void tvm_builtin_ptx_bar_arrive_arrive(uint32_t __a, uint32_t __b) {
  asm volatile("bar.arrive %0, %1;" :  : "r"(__a), "r"(__b) : "memory");
}
extern "C" __global__ void __launch_bounds__(96, 1) k(float* y) {
  tvm_builtin_ptx_bar_arrive_arrive((uint)1, (uint)64);
  tvm_builtin_ptx_barrier_sync_count_sync((uint)2, (uint)96);
}
"""


def test_warps_arrive_at_mbarriers_of_as_many_threads() -> None:
    text = counted(KERNEL)
    assert "bar.arrive %0" not in text and "own_meet(__a, __b, 0);" in text
    assert "[%0], 192;" in text and "192 / threads" in text  # arrivals of 64 and of 96 threads complete it
    assert text.index("own_begin();\n  tvm_builtin") > text.index("__global__")


def test_other_text_is_as_it_was() -> None:
    other = 'extern "C" __global__ void k(float* y) { __syncthreads(); }'
    assert counted(other) == unaligned(other) == other


def test_barriers_are_not_aligned() -> None:
    text = unaligned(KERNEL + "void all() { __syncthreads(); }")
    assert '"barrier.arrive %0, %1;"' in text and "__syncthreads" not in text and "own_" not in text


def test_kinds_of_warps_that_meet_at_the_barrier_of_all() -> None:
    text = "  if (((int)threadIdx.x) < 32) {\n    __syncthreads();\n  }\n  if (32 <= ((int)threadIdx.x)) {\n"
    assert "barrier.sync 0" in unaligned(text) and counted(text) == text
