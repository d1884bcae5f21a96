"""What the emulator refuses: accesses beyond a block's shared memory, by plain reads and writes too."""

from __future__ import annotations

import ctypes

import emulated
import pytest

KERNELS = """#include "emulate_ptx.h"
extern "C" __attribute__((visibility("default"))) const char* launch(int bytes, int at, int what) {
  void* given[] = {&at, &what};
  return emu::launch(2, 32, bytes, 2, true, [](void** given) {
    const int at = *(int*)given[0], what = *(int*)given[1];
    int* own = (int*)emu::dynamic();
    int* fixed = (int*)emu::fixed("fixed", 256);
    emu::warp_sync();
    if (emu::now->tid.x != 7 || emu::now->block->rank != 1) return;
    volatile int read = 0;
    if (what == 0) read = own[at];
    if (what == 1) own[at] = 1;
    if (what == 2) read = fixed[at];
    if (what == 3) read = *(int*)emu::at(4 * at, 4);
    if (what == 4) emu::at(4 * at | 1 << 24, 4);
  }, given);
}
"""


def launched(size: int, at: int, what: int) -> str | None:
    failure: bytes | None = emulated.library(KERNELS).launch(size, at, what)
    return failure.decode() if failure else None


@pytest.mark.parametrize("words", [4, 1004, 28000, 56832])
@pytest.mark.parametrize("what", range(5), ids=["read", "write", "fixed", "address", "another block"])
def test_what_lies_beyond_is_refused(what: int, words: int) -> None:
    held = 64 if what == 2 else words
    assert launched(4 * words, 0, what) is None
    assert launched(4 * words, held - 1, what) is None
    if what != 2:
        failure = launched(4 * words, held, what)
        assert failure is not None and "out of bounds (block 1, thread 7)" in failure
        assert launched(4 * words, held - 1, what) is None


def test_a_fault_elsewhere_is_not_taken_for_one_of_shared_memory() -> None:
    """Python's own handler is there again after a launch."""
    before = ctypes.create_string_buffer(256)
    after = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None)
    libc.sigaction(11, None, before)
    launched(64, 16, 0)
    libc.sigaction(11, None, after)
    assert bytes(before[:8]) == bytes(after[:8])
