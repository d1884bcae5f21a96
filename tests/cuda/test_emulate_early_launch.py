"""What the emulator says of kernels that begin before the launch before them has ended."""

from __future__ import annotations

import ctypes

import emulated
import numpy as np
import pytest

# The launch before doubles 64 numbers; the one that begins early adds 1 to them. How it reads them says `how`.
KERNELS = """#include "emulate_ptx.h"
static void before(void** given) {
  float* x = (float*)given[0] + blockIdx.x * 32 + threadIdx.x;
  *x *= 2;
}
static void after(void** given) {
  const int how = *(int*)given[2], i = blockIdx.x * 32 + threadIdx.x;
  float *x = (float*)given[0] + i, *y = (float*)given[1] + i, read = 0;
  float* own = (float*)emu::dynamic() + threadIdx.x;
  const unsigned to = tvm_builtin_cuda_cvta_generic_to_shared(own);
  tvm_builtin_ptx_griddepcontrol_launch_dependents();
  if (how == 1) tvm_builtin_ptx_ld_global_f32(read, x);
  if (how == 2) tvm_builtin_ptx_cp_async_ca_src_size_async_ca_shared_global_4(to, x, 4);
  if (how == 3) read = *x;
  if (how == 4) tvm_builtin_ptx_ld_global_f32(read, y);
  tvm_builtin_ptx_griddepcontrol_wait();
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  if (how == 2) read = *own;
  if (how == 0 || how == 4) tvm_builtin_ptx_ld_global_f32(read, x);
  *y = read + 1;
}
extern "C" __attribute__((visibility("default"))) const char* launch(void* x, void* y, int how, int* opened) {
  void* given[] = {x, y, &how};
  emu::Launch* early = emu::prepare(2, 32, 256, 1, false, after, given);
  *opened = emu::ahead(*early);
  const char* failure = emu::launch(2, 32, 0, 1, false, before, given);
  return failure ? failure : emu::finish(early);
}
"""


def launched(how: int) -> tuple[str | None, np.ndarray]:
    x, y, opened = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32), ctypes.c_int()
    failure = emulated.library(KERNELS).launch(
        x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), how, ctypes.byref(opened)
    )
    assert opened.value == 1
    return failure and failure.decode(), y


@pytest.mark.parametrize("how", [0, 4], ids=["after the wait", "of what others leave alone"])
def test_what_the_launch_before_writes_is_read_after_the_wait(how: int) -> None:
    failure, y = launched(how)
    assert failure is None and np.array_equal(y, 2 * np.arange(1, 65) + 1)


@pytest.mark.parametrize("how", [1, 2], ids=["load", "asynchronous copy"])
def test_a_load_before_the_wait_of_what_the_launch_before_writes_is_told(how: int) -> None:
    failure, _ = launched(how)
    assert failure is not None and "before griddepcontrol.wait what a launch before it writes (block" in failure


def test_a_plain_read_before_the_wait_finds_what_was_there_before() -> None:
    _, y = launched(3)
    assert np.array_equal(y, np.arange(1, 65) + 1)
