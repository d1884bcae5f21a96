// Runs generated CUDA kernels on the CPU, thread by thread, so that their results can be compared with the oracle where
// there is no GPU. In: the kernels' text after `emulator.py` has taken out TVM's functions around PTX; this file has the
// same functions in C++. Out: `emu::launch`, which the fake CUDA runtime calls.
//
// Every CUDA thread is a fiber; a fiber runs until it has to wait for others (barriers, votes of a warp, mbarriers,
// polling) and the order of fibers is shuffled. Blocks of a cluster, or of a whole grid that must be resident, run
// together; other blocks one after the other. Shared memory starts as NaN. What this cannot show: races that need
// instructions of one fiber to be reordered, and speed.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace emu {
constexpr size_t kStack = 256 << 10, kShared = 240 << 10;

struct Index { int x = 0, y = 0, z = 0; };
struct Warp {
  int arrived = 0;
  const void* operation = nullptr;
  uint64_t generation = 0;
  void* slots[32];
};
struct Named { int arrived = 0; uint64_t generation = 0; };
struct Barrier { long pending = 0, count = 0, bytes = 0; uint64_t phase = 0; };
struct Block {
  int rank = 0, threads = 0;
  Index index;
  std::unique_ptr<char[]> arena{new char[kShared]};
  size_t fixed = 0;
  std::map<const void*, char*> places;
  Named named[16];
  std::map<uint32_t, Barrier> barriers;
  std::vector<Warp> warps;
  struct Cluster* cluster = nullptr;
};
struct Cluster {
  int id = 0;
  std::vector<Block*> blocks;
  Named meeting;
};
struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  Block* block = nullptr;
  Index tid;
  bool done = false;
  uint64_t meeting = 0;
  int lane() const { return tid.x % 32; }
  Warp& warp() const { return block->warps[tid.x / 32]; }
};

inline Fiber* now = nullptr;
inline ucontext_t scheduler;
inline uint64_t progress = 0;
inline std::function<void()> body;
inline std::mt19937 random{1};

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s (block %d, thread %d)\n", what, now ? now->block->index.x : -1, now ? now->tid.x : -1);
  std::abort();
}
inline void yield() { swapcontext(&now->context, &scheduler); }
template <class Ready> void wait(Ready ready) {
  while (!ready()) yield();
  ++progress;
}
inline void entry() {
  body();
  now->done = true;
  ++progress;
  yield();
}

inline void run(std::vector<Block*>& blocks) {
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (Block* block : blocks)
    for (int t = 0; t < block->threads; ++t) {
      auto fiber = std::make_unique<Fiber>();
      fiber->block = block, fiber->tid.x = t;
      fiber->stack = (char*)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack, fiber->context.uc_stack.ss_size = kStack;
      makecontext(&fiber->context, entry, 0);
      fibers.push_back(std::move(fiber));
    }
  std::vector<Fiber*> alive;
  for (auto& fiber : fibers) alive.push_back(fiber.get());
  uint64_t seen = progress;
  for (int idle = 0; !alive.empty();) {
    const size_t turn = random() % alive.size();
    std::rotate(alive.begin(), alive.begin() + turn, alive.end());
    for (Fiber* fiber : alive) {
      now = fiber;
      swapcontext(&scheduler, &fiber->context);
    }
    alive.erase(std::remove_if(alive.begin(), alive.end(), [](Fiber* f) { return f->done; }), alive.end());
    idle = progress == seen ? idle + 1 : 0;
    seen = progress;
    if (idle > 1000) fail("deadlock: every thread waits");
  }
  for (auto& fiber : fibers) munmap(fiber->stack, kStack);
  now = nullptr;
}

// grid blocks of `threads`, in clusters; together: all at once.
inline void launch(int grid, int threads, int cluster, bool together, std::function<void()> kernel) {
  body = std::move(kernel);
  for (int first = 0; first < grid;) {
    const int count = together ? grid : cluster;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<Block*> all;
    for (int i = 0; i < count; ++i) {
      auto block = std::make_unique<Block>();
      if (i % cluster == 0) clusters.push_back(std::make_unique<Cluster>()), clusters.back()->id = (first + i) / cluster;
      std::memset(block->arena.get(), 0xFF, kShared);
      block->rank = i % cluster, block->threads = threads, block->index.x = first + i;
      block->warps.resize((threads + 31) / 32);
      block->cluster = clusters.back().get();
      clusters.back()->blocks.push_back(block.get());
      all.push_back(block.get());
      blocks.push_back(std::move(block));
    }
    run(all);
    first += count;
  }
}

// --- shared memory: an address is the offset in a block's arena, with the block's rank + 1 above for another block's ----
inline void* dynamic() { return now->block->arena.get(); }
inline void* fixed(const void* key, size_t size) {
  Block* block = now->block;
  auto& place = block->places[key];
  if (!place) {
    block->fixed += (size + 127) / 128 * 128;
    place = block->arena.get() + kShared - block->fixed;
  }
  return place;
}
inline Block* owner(uint32_t address) {
  const uint32_t rank = address >> 24;
  return rank ? now->block->cluster->blocks.at(rank - 1) : now->block;
}
inline char* at(uint32_t address, size_t size) {
  if ((address & 0xFFFFFF) + size > kShared) fail("shared memory: out of bounds");
  if (address % std::min<size_t>(size, 16)) fail("shared memory: misaligned");
  return owner(address)->arena.get() + (address & 0xFFFFFF);
}
inline const char* aligned(const void* place, size_t size) {
  if ((uintptr_t)place % size) fail("global memory: misaligned");
  return (const char*)place;
}
template <class T, class... Rest> void get(const char* from, T& first, Rest&... rest) {
  std::memcpy(&first, from, sizeof(T));
  if constexpr (sizeof...(rest) > 0) get(from + sizeof(T), rest...);
}
template <class T, class... Rest> void put(char* to, T first, Rest... rest) {
  std::memcpy(to, &first, sizeof(T));
  if constexpr (sizeof...(rest) > 0) put(to + sizeof(T), rest...);
}

// --- barriers ----------------------------------------------------------------------------------------------------------
inline void meet(Named& barrier, int count, bool stay) {
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.generation, ++progress;
  if (stay) wait([&] { return barrier.generation != generation; });
}
inline void complete(Barrier& barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) ++barrier.phase, barrier.pending = barrier.count, ++progress;
}
inline Barrier& barrier(uint32_t address) { return owner(address)->barriers[address & 0xFFFFFF]; }
inline void arrive(uint32_t address, long bytes) {
  Barrier& b = barrier(address);
  b.bytes += bytes, --b.pending;
  if (b.pending < 0) fail("mbarrier: more arrivals than expected");
  complete(b);
}
inline void received(uint32_t address, long bytes) {
  Barrier& b = barrier(address);
  b.bytes -= bytes;
  complete(b);
}
inline bool passed(uint32_t address, uint32_t parity) { return (barrier(address).phase & 1) != (parity & 1); }

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
struct Sync { int nothing; };
inline void warp_sync(unsigned mask = 0xFFFFFFFF) {
  Sync own{};
  together(own, __builtin_popcount(mask), [](Sync**) {});
}

struct Mma { float* d[4]; uint32_t a[4], b[2]; float c[4]; };
template <class Real> float real(uint32_t word, int half) {
  if constexpr (sizeof(Real) == 4) {
    float value;
    word &= 0xFFFFE000u;  // tf32
    return std::memcpy(&value, &word, 4), value;
  } else {
    Real value;
    const uint16_t bits = uint16_t(word >> (16 * half));
    return std::memcpy(&value, &bits, 2), float(value);
  }
}
template <class Real> void mma(Mma& own) {
  together(own, 32, [](Mma** lanes) {
    constexpr int per = sizeof(Real) == 4 ? 1 : 2;  // values per word
    constexpr int depth = 8 * per;
    float a[16][depth], b[depth][8];
    for (int l = 0; l < 32; ++l)
      for (int z = 0; z < 4; ++z)
        for (int e = 0; e < per; ++e) {
          const int row = l / 4 + 8 * (z % 2), k = (l % 4) * per + e + (z / 2) * 4 * per;
          a[row][k] = real<Real>(lanes[l]->a[z], e);
          if (z < 2) b[(l % 4) * per + e + z * 4 * per][l / 4] = real<Real>(lanes[l]->b[z], e);
        }
    for (int l = 0; l < 32; ++l)
      for (int z = 0; z < 4; ++z) {
        const int row = l / 4 + 8 * (z / 2), column = (l % 4) * 2 + z % 2;
        float sum = lanes[l]->c[z];
        for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
        *lanes[l]->d[z] = sum;
      }
  });
}
struct Matrices { uint32_t* r[4]; uint32_t address; int count; };
inline void ldmatrix(Matrices& own) {
  together(own, 32, [](Matrices** lanes) {
    for (int m = 0; m < lanes[0]->count; ++m)
      for (int l = 0; l < 32; ++l) std::memcpy(lanes[l]->r[m], at(lanes[8 * m + l / 4]->address, 16) + 4 * (l % 4), 4);
  });
}
}  // namespace emu

using uchar = unsigned char;
#define CUDART_INF_F INFINITY
#define CUDART_INF INFINITY
#define CUDART_NAN_F NAN
#define CUDART_NAN NAN
template <class A, class B> auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmax(C(a), C(b));
  else return C(a) > C(b) ? C(a) : C(b);
}
template <class A, class B> auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmin(C(a), C(b));
  else return C(a) < C(b) ? C(a) : C(b);
}
#define threadIdx (emu::now->tid)
#define blockIdx (emu::now->block->index)
inline void __syncthreads() { emu::meet(emu::now->block->named[0], emu::now->block->threads, true); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFF) { emu::warp_sync(mask); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __int_as_float(int x) { float y; return std::memcpy(&y, &x, 4), y; }
inline int __float_as_int(float x) { int y; return std::memcpy(&y, &x, 4), y; }
template <class T> T __shfl_sync(unsigned mask, T v, int from, int = 32) { return emu::shuffle(mask, v, from); }
template <class T> T __shfl_xor_sync(unsigned mask, T v, int other, int = 32) { return emu::shuffle(mask, v, emu::now->lane() ^ other); }
template <class T> T __shfl_down_sync(unsigned mask, T v, int n, int = 32) {
  return emu::shuffle(mask, v, std::min(31, emu::now->lane() + n));
}
template <class T> T __shfl_up_sync(unsigned mask, T v, int n, int = 32) {
  return emu::shuffle(mask, v, std::max(0, emu::now->lane() - n));
}

// --- what TVM calls for PTX --------------------------------------------------------------------------------------------
#define W uint32_t
#define GLOBAL(x, n) emu::aligned(x, n)
inline int32_t tvm_builtin_ptx_fetch_register_clusterid_x() { return emu::now->block->cluster->id; }
inline unsigned tvm_builtin_cluster_ctaid_x() { return emu::now->block->rank; }
inline unsigned tvm_builtin_cuda_cvta_generic_to_shared(const void* p) { return unsigned((char*)p - emu::now->block->arena.get()); }
inline void tvm_builtin_cuda_cta_sync() { __syncthreads(); }
inline void tvm_builtin_cuda_warp_sync() { emu::warp_sync(); }
inline void tvm_builtin_cuda_mbarrier_wait_acquire_cluster(void* b, int phase) {
  const W address = tvm_builtin_cuda_cvta_generic_to_shared(b);
  emu::wait([&] { return emu::passed(address, phase); });
}
inline void tvm_builtin_ptx_bar_arrive_arrive(W id, W count) { emu::meet(emu::now->block->named[id], count, false); }
inline void tvm_builtin_ptx_bar_sync_count_sync(W id, W count) { emu::meet(emu::now->block->named[id], count, true); }
inline void tvm_builtin_ptx_barrier_cluster_arrive_cluster_arrive_release_aligned() {
  emu::Cluster* c = emu::now->block->cluster;
  emu::now->meeting = c->meeting.generation;
  emu::meet(c->meeting, int(c->blocks.size()) * emu::now->block->threads, false);
}
inline void tvm_builtin_ptx_barrier_cluster_wait_cluster_wait_acquire_aligned() {
  emu::wait([] { return emu::now->block->cluster->meeting.generation != emu::now->meeting; });
}
inline void tvm_builtin_ptx_cp_async_cg_async_cg_shared_global_16(W to, const void* from) { std::memcpy(emu::at(to, 16), GLOBAL(from, 16), 16); }
inline void tvm_builtin_ptx_cp_async_cg_src_size_async_cg_shared_global_16(W to, const void* from, W size) {
  std::memset(emu::at(to, 16), 0, 16);
  std::memcpy(emu::at(to, 16), size ? GLOBAL(from, 16) : (const char*)from, size);
}
inline void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() {}
template <int> void waited() {}
#define WAIT(n) inline void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_##n() {}
WAIT(0) WAIT(1) WAIT(2) WAIT(3) WAIT(4) WAIT(5) WAIT(6) WAIT(7) WAIT(8)
inline W two(uint16_t low, uint16_t high) { return W(low) | W(high) << 16; }
template <class T> uint16_t bits(T x) { uint16_t y; return std::memcpy(&y, &x, 2), y; }
inline void tvm_builtin_ptx_cvt_bf16x2_f32_rn_bf16x2_f32(W& d, float a, float b) { d = two(bits(__float2bfloat16_rn(b)), bits(__float2bfloat16_rn(a))); }
inline void tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(W& d, float a, float b) { d = two(bits(__float2half_rn(b)), bits(__float2half_rn(a))); }
inline void tvm_builtin_ptx_cvt_tf32_f32_rna_tf32_f32(W& d, float a) {
  std::memcpy(&d, &a, 4);
  if (a != a) d = 0x7FFFFFFF; else if (std::isfinite(a)) d = (d + 0x1000) & 0xFFFFE000u;
}
inline void tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster() {}
inline void tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta() {}
inline void tvm_builtin_ptx_ld_acquire_gpu_global_u32(W& d, const void* p) { emu::yield(); d = *(const W*)p; }
inline void tvm_builtin_ptx_ld_global_b32(W& d, const void* p) { emu::get(GLOBAL(p, 4), d); }
inline void tvm_builtin_ptx_ld_vec_global_nc_v4_b32(W& a, W& b, W& c, W& d, const void* p) { emu::get(GLOBAL(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_ld_vec_relaxed_gpu_global_v4_b32(W& a, W& b, W& c, W& d, const void* p) {
  emu::get(GLOBAL(p, 16), a, b, c, d);
  if (a == ~0u || b == ~0u || c == ~0u || d == ~0u) emu::yield();
}
inline void tvm_builtin_ptx_ld_vec_relaxed_gpu_global_v2_b32(W& a, W& b, const void* p) { emu::get(GLOBAL(p, 8), a, b); }
inline void tvm_builtin_ptx_ld_vec_global_v2_f32(float& a, float& b, const void* p) { emu::get(GLOBAL(p, 8), a, b); }
inline void tvm_builtin_ptx_ld_vec_global_v4_f32(float& a, float& b, float& c, float& d, const void* p) { emu::get(GLOBAL(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_ld_vec_shared_v2_f32(float& a, float& b, W p) { emu::get(emu::at(p, 8), a, b); }
inline void tvm_builtin_ptx_ld_vec_shared_v2_f64(double& a, double& b, W p) { emu::get(emu::at(p, 16), a, b); }
inline void tvm_builtin_ptx_ld_vec_shared_v4_b32(W& a, W& b, W& c, W& d, W p) { emu::get(emu::at(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_ld_vec_shared_v4_f32(float& a, float& b, float& c, float& d, W p) { emu::get(emu::at(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x2_shared_b16(W& a, W& b, W p) {
  emu::Matrices own{{&a, &b, nullptr, nullptr}, p, 2};
  emu::ldmatrix(own);
}
inline void tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(W& a, W& b, W& c, W& d, W p) {
  emu::Matrices own{{&a, &b, &c, &d}, p, 4};
  emu::ldmatrix(own);
}
inline void tvm_builtin_ptx_mapa_u32_shared__cluster_u32(W& d, W address, W rank) { d = (address & 0xFFFFFF) | (rank + 1) << 24; }
inline void tvm_builtin_ptx_mbarrier_init_init_shared_b64(W p, W count) { emu::barrier(p) = {long(count), long(count), 0, 0}; }
inline void tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(W p, W bytes) { emu::arrive(p, bytes); }
inline void tvm_builtin_ptx_mbarrier_arrive_nocount_arrive_shared_b64(W p) { emu::arrive(p, 0); }
inline void tvm_builtin_ptx_mbarrier_arrive_nocount_arrive_shared__cluster_b64(W p) { emu::arrive(p, 0); }
inline void tvm_builtin_ptx_mbarrier_try_wait_parity_no_hint_try_wait_parity_shared__cta_b64(W& done, W p, W phase) {
  done = emu::passed(p, phase);
  if (!done) emu::yield();
}
inline void tvm_builtin_ptx_st_async_vec_weak_shared__cluster_mbarrier__complete_tx__bytes_v4_b32(W p, W a, W b, W c, W d, W bar) {
  emu::put(emu::at(p, 16), a, b, c, d);
  emu::received(bar, 16);
}
inline void tvm_builtin_ptx_st_async_vec_weak_shared__cluster_mbarrier__complete_tx__bytes_v2_b32(W p, W a, W b, W bar) {
  emu::put(emu::at(p, 8), a, b);
  emu::received(bar, 8);
}
#define MMA(shape, type, Real)                                                                                         \
  inline void tvm_builtin_ptx_mma_sync_aligned_##shape##_row_col_f32_##type##_##type##_f32(                             \
      float& d0, float& d1, float& d2, float& d3, W a0, W a1, W a2, W a3, W b0, W b1, float c0, float c1, float c2,     \
      float c3) {                                                                                                      \
    emu::Mma own{{&d0, &d1, &d2, &d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                   \
    emu::mma<Real>(own);                                                                                               \
  }
MMA(m16n8k16, bf16, nv_bfloat16)
MMA(m16n8k16, f16, half)
MMA(m16n8k8, tf32, float)
template <class... Any> void ptx_wgmma_encode_matrix_descriptor(Any...) { emu::fail("wgmma is not emulated"); }
inline void tvm_builtin_ptx_prefetch_global_L2(const void*) {}
inline void tvm_builtin_ptx_red_release_gpu_global_add_u32(const void* p, W value) { *(W*)p += value, ++emu::progress; }
inline void tvm_builtin_ptx_st_global_b32(const void* p, W a) { emu::put((char*)GLOBAL(p, 4), a); }
inline void tvm_builtin_ptx_st_vec_global_v2_f32(const void* p, float a, float b) { emu::put((char*)GLOBAL(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_global_v2_b32(const void* p, W a, W b) { emu::put((char*)GLOBAL(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_global_v4_b32(const void* p, W a, W b, W c, W d) { emu::put((char*)GLOBAL(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_vec_relaxed_gpu_global_v4_b32(const void* p, W a, W b, W c, W d) {
  emu::put((char*)GLOBAL(p, 16), a, b, c, d), ++emu::progress;
}
inline void tvm_builtin_ptx_st_vec_global_v4_f32(const void* p, float a, float b, float c, float d) { emu::put((char*)GLOBAL(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_vec_shared_v2_f32(W p, float a, float b) { emu::put(emu::at(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_shared_v2_f64(W p, double a, double b) { emu::put(emu::at(p, 16), a, b); }
inline void tvm_builtin_ptx_st_vec_shared_v4_b32(W p, W a, W b, W c, W d) { emu::put(emu::at(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_vec_shared_v4_f32(W p, float a, float b, float c, float d) { emu::put(emu::at(p, 16), a, b, c, d); }
#undef W
#undef WAIT
#undef MMA
