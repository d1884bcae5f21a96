// A GPU on the CPU: threads, blocks, clusters, barriers, shared memory, asynchronous copies and products of matrices.
// emulate.cc has what is not declared for the kernels' text alone; it is compiled once.
// `emulate_ptx.h` has what generated CUDA text calls, in terms of this; `emulator.py` prepares that text.
//
// Every CUDA thread is a fiber; a fiber runs until it has to wait for others (barriers, votes of a warp, mbarriers,
// polling) and the order of fibers is random. Blocks of a cluster, or of a whole grid that must be resident, run
// together; other blocks one after the other. Shared memory starts as NaN. What is asynchronous on a GPU happens at a
// random time between its start and the wait for it, so that a missing wait shows as a wrong result. When no fiber can
// go on, the kernel hangs: that is an error. One warp is slow: it goes on only when the others cannot. What this cannot
// show: races that need instructions of one fiber to be reordered, and speed.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <type_traits>

using half = _Float16;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  explicit nv_bfloat16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    bits = x != x ? 0x7FFF : uint16_t((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float x;
    return std::memcpy(&x, &word, 4), x;
  }
};

namespace emu {
struct Index { int x = 0, y = 0, z = 0; };
struct Warp {
  int arrived = 0;
  const void* operation = nullptr;
  uint64_t generation = 0;
  void* slots[32];
};
struct Named { int arrived = 0; uint64_t generation = 0; };
struct Barrier { long pending = 0, count = 0, bytes = 0; uint64_t phase = 0; };
struct Cluster {
  int id = 0, threads = 0;  // of all its blocks
  Named meeting;
};
struct Block {
  int rank = 0, threads = 0;
  Index index;
  char* begin = nullptr;  // of its shared memory
  Named named[16];
  Warp* warps = nullptr;
  Cluster* cluster = nullptr;
};
struct Fiber {
  Block* block = nullptr;
  Index tid;
  uint64_t meeting = 0;
  int lane() const { return tid.x % 32; }
  Warp& warp() const { return block->warps[tid.x / 32]; }
};

// sizes: of its arguments, then 0. opens: it lets the kernel behind it begin before it ends.
struct Kernel { const char* name; void (*thread)(void** arguments); const size_t* sizes; bool opens; };

extern Fiber* now;
extern uint64_t progress;

void seed(unsigned number);  // of the order of fibers and of when copies arrive
void yield();
[[noreturn]] void fail(const char* what);  // ends the launch: no fiber goes on
bool maybe(unsigned of);
void pause();  // between the instructions of a warp others may go on
template <class Ready> void wait(Ready ready) {
  while (!ready()) yield();
  ++progress;
}

// grid blocks of `threads`, in clusters; together: all at once. What went wrong, or null.
const char* launch(int grid, int threads, size_t shared, int cluster, bool together, void (*kernel)(void**), void** arguments);

// --- programmatic dependent launch --------------------------------------------------------------------------------------
// A launch in two parts. `ahead`, before the launches before it: until its threads wait for those, or get no further. What
// it loads then, but for what others poll, they must leave as it is: else `finish` says so. Whether the launch behind it
// may run ahead too. `finish`: the rest, once they have ended; as `launch`.
struct Launch;
Launch* prepare(int grid, int threads, size_t shared, int cluster, bool together, void (*kernel)(void**), void** arguments);
bool ahead(Launch& own);
const char* finish(Launch* own);
void let_next_begin();
void wait_for_launch_before();

// --- shared memory: an address is the offset in a block's arena, with the block's rank + 1 above for another block's ----
void* dynamic();
void* fixed(const void* key, size_t size);
char* at(uint32_t address, size_t size);
const char* aligned(const void* place, size_t size);
const char* loaded(const void* place, size_t size);  // global memory, aligned
template <class T, class... Rest> void get(const char* from, T& first, Rest&... rest) {
  std::memcpy(&first, from, sizeof(T));
  if constexpr (sizeof...(rest) > 0) get(from + sizeof(T), rest...);
}
template <class T, class... Rest> void put(char* to, T first, Rest... rest) {
  std::memcpy(to, &first, sizeof(T));
  if constexpr (sizeof...(rest) > 0) put(to + sizeof(T), rest...);
}

// --- barriers ----------------------------------------------------------------------------------------------------------
void meet(Named& barrier, int count, bool stay);
Barrier& barrier(uint32_t address);
void arrive(uint32_t address, long bytes);
bool passed(uint32_t address, uint32_t parity);

// --- a warp acts together ----------------------------------------------------------------------------------------------
template <class Args, class Act> void together(Args& own, int count, Act act) {
  static const char operation = 0;  // one address per kind of operation
  Warp& warp = now->warp();
  if (warp.arrived == 0) warp.operation = &operation;
  if (warp.operation != &operation) fail("the threads of a warp are at different operations");
  const uint64_t generation = warp.generation;
  warp.slots[now->lane()] = &own;
  if (++warp.arrived == count) {
    act(reinterpret_cast<Args**>(warp.slots));
    warp.arrived = 0, ++warp.generation, ++progress;
  } else {
    wait([&] { return warp.generation != generation; });
  }
}
template <class T> struct Shuffle { T value, result; int from; };
template <class T> T shuffle(unsigned mask, T value, int from) {
  Shuffle<T> own{value, value, from};
  together(own, __builtin_popcount(mask), [mask](Shuffle<T>** lanes) {
    for (int i = 0; i < 32; ++i)
      if (mask >> i & 1) lanes[i]->result = mask >> (lanes[i]->from & 31) & 1 ? lanes[lanes[i]->from & 31]->value : lanes[i]->value;
  });
  return own.result;
}
void warp_sync(unsigned mask = 0xFFFFFFFF);

// --- asynchronous copies: bytes arrive at any time before the wait for them ends ----------------------------------------
void send(uint32_t to, std::initializer_list<uint32_t> words, uint32_t at_barrier);
void bulk(uint32_t to, const void* from, uint32_t size, uint32_t at_barrier);
void bulk_multicast(uint32_t to, const void* from, uint32_t size, uint32_t at_barrier, unsigned blocks);
void copy(uint32_t to, const void* from, uint32_t size, uint32_t whole = 16);
void arrive_with_copies(uint32_t at_barrier);  // when this thread's are done
void commit_copies();
void wait_copies(size_t n);  // until at most n groups are under way
}  // namespace emu
