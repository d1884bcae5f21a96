"""CUDA text whose barriers of some warps compute-sanitizer understands: mbarriers.

racecheck counts barriers per warp, whichever they are: what is ordered by one that some warps of a block come to more
often than others, or arrive at and do not wait, it takes for a race. synccheck wants one instruction where warps meet
at bar.sync; barrier.sync means the same where whole warps come.

In: CUDA text as it is compiled. Out: the same with barrier.sync; or where threads that meet at a barrier of a number
and a count, or arrive there, do so at an mbarrier of as many threads, and at barrier.sync where they are all of the
block.
"""

from __future__ import annotations

import re
from math import lcm

CALLS = re.compile(r"tvm_builtin_ptx_bar(?:rier)?_(?:sync_count_sync|arrive_arrive)\(.*, \(uint\)(\d+)\);")
BODIES = re.compile(r'asm volatile\("bar(?:rier)?\.(sync|arrive) %0, %1;" : *: "r"\(__a\), "r"\(__b\) : "memory"\);')
KINDS = re.compile(r"^ +if \(\d+ <= \(\(int\)threadIdx\.x\)\) \{", re.MULTILINE)  # the other kind of warps
KERNELS = re.compile(r'(extern "C" __global__ [^{;]*\{)')
ALL = "__syncthreads();"  # in the one function that TVM has for it
MOST = (1 << 20) - 1  # of arrivals, that an mbarrier counts
TEXT = """
#include <cstdint>
__device__ __forceinline__ uint64_t* own_barriers() {{
  __shared__ uint64_t barriers[16];
  return barriers;
}}
__device__ __forceinline__ void own_begin() {{
  if (threadIdx.x < 16) {{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(own_barriers() + threadIdx.x);
    asm volatile("mbarrier.init.shared.b64 [%0], {count};" ::"r"(at) : "memory");
  }}
  __syncthreads();
}}
__device__ __forceinline__ void own_meet(uint32_t number, uint32_t threads, bool stays) {{
  uint32_t at = (uint32_t)__cvta_generic_to_shared(own_barriers() + number), done = 0;
  uint64_t state;
  if (number == 0 && threads == blockDim.x) {{
    asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
    return;
  }}
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1], %2;" : "=l"(state) : "r"(at), "r"({count} / threads) : "memory");
  while (stays && !done)
    asm volatile("{{ .reg .pred p; mbarrier.try_wait.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }}"
                 : "=r"(done)
                 : "r"(at), "l"(state)
                 : "memory");
}}
"""


def unaligned(text: str) -> str:
    """All kernels of a text in which kinds of warps meet, with barrier.sync in place of bar.sync and __syncthreads."""
    if not (CALLS.search(text) or KINDS.search(text)):
        return text
    text = BODIES.sub(lambda found: found[0].replace(f'"bar.{found[1]}', f'"barrier.{found[1]}'), text)
    return text.replace(ALL, 'asm volatile("barrier.sync 0, %0;" ::"r"(blockDim.x) : "memory");')


def counted(text: str) -> str:
    """And barriers of some warps are mbarriers."""
    count = lcm(*map(int, CALLS.findall(text)))
    if count == 1:
        return text
    assert count <= MOST, count
    text = BODIES.sub(lambda found: f"own_meet(__a, __b, {int(found[1] == 'sync')});", unaligned(text))
    return TEXT.format(count=count) + KERNELS.sub(r"\1\n  own_begin();", text)
