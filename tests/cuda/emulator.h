// Runs the text of persistent kernels on a CPU: every GPU thread is a fiber, blocks of all clusters live at once.
//
// Fibers run in a random order that a seed decides, and bytes sent to another block arrive at a random later time, so that
// a missing wait shows as a wrong result. When no fiber can go on, the kernel hangs: that is an error, not a timeout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>
#include <ucontext.h>

typedef unsigned int uint;
typedef unsigned char uchar;
typedef _Float16 half;
using std::max;
using std::min;

struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() {}
  explicit nv_bfloat16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    bits = std::isnan(x) ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  }
  explicit operator float() const {
    uint32_t u = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
  }
};
static inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
static inline half __float2half_rn(float x) { return half(x); }
static inline float fast_expf(float x) { return expf(x); }
#define __expf fast_expf  // glibc has one of its own
static inline float __fdividef(float a, float b) { return a / b; }

struct Barrier { int arrived = 0; unsigned generation = 0; };
struct Mbarrier { int count = 0, pending = 0; long bytes = 0; unsigned phase = 0; };
struct Warp { Barrier meet; uint32_t words[32][16]; uint32_t results[32][4]; };
struct Block {
  std::vector<char> memory;
  std::map<uint32_t, Mbarrier> mbarriers;
  std::map<uint32_t, Barrier> named;
  Barrier all;
  std::vector<Warp> warps;
};
struct Fiber { ucontext_t context; std::vector<char> stack; int block, thread; bool done = false; unsigned cluster_wait = 0; };
struct Sent { uint32_t to, barrier; int cluster, words; uint32_t value[4]; };

namespace emu {
static std::vector<Fiber> fibers;
static std::vector<Block> blocks;
static std::vector<Barrier> clusters;
static std::vector<Sent> under_way;
static std::function<void()> body;
static ucontext_t scheduler;
static int current, cluster_size, threads;
static long progress;

static Fiber& me() { return fibers[current]; }
static Block& block() { return blocks[me().block]; }
static Warp& warp() { return block().warps[me().thread / 32]; }
static int lane() { return me().thread % 32; }
static void yield() { swapcontext(&me().context, &scheduler); }
template <typename F> static void until(F ready) {
  while (!ready()) yield();
  ++progress;
}
static void arrive(Barrier& barrier, int count) {
  ++progress;
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.generation;
}
static void meet(Barrier& barrier, int count) {
  const unsigned mine = barrier.generation;
  arrive(barrier, count);
  until([&] { return barrier.generation != mine; });
}
// Addresses in shared memory: the block's rank in its cluster in the upper 8 bits.
static int rank() { return me().block % cluster_size; }
static Block& owner(uint32_t address, int of = -1) {
  return blocks[(of < 0 ? me().block / cluster_size : of) * cluster_size + (address >> 24)];
}
static char* at(uint32_t address, int of = -1) { return owner(address, of).memory.data() + (address & 0xffffff); }
static Mbarrier& mbarrier(uint32_t address, int of = -1) { return owner(address, of).mbarriers[address & 0xffffff]; }
static void settle(Mbarrier& m) {
  ++progress;
  if (!m.pending && !m.bytes) m.pending = m.count, ++m.phase;
}
static void deliver(size_t n) {
  Sent s = under_way[n];
  under_way.erase(under_way.begin() + n);
  memcpy(at(s.to, s.cluster), s.value, 4 * s.words);
  Mbarrier& m = mbarrier(s.barrier, s.cluster);
  m.bytes -= 4 * s.words;
  settle(m);
}
static void enter() {
  body();
  me().done = true;
  ++progress;
  yield();
}
// 0: done. 1: hangs. 2: bytes were still under way when the kernel ended.
static int run(int count, int cluster, int per_block, size_t shared_bytes, unsigned seed, std::function<void()> kernel) {
  body = kernel, cluster_size = cluster, threads = per_block;
  blocks.assign(count, Block());
  clusters.assign(count / cluster, Barrier());
  fibers.assign(count * threads, Fiber());
  under_way.clear();
  for (auto& b : blocks) b.memory.assign(shared_bytes, char(0xff)), b.warps.resize(threads / 32);
  for (int i = 0; i < int(fibers.size()); ++i) {
    Fiber& f = fibers[i];
    f.block = i / threads, f.thread = i % threads, f.stack.resize(1 << 16);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size(), f.context.uc_link = &scheduler;
    makecontext(&f.context, enter, 0);
  }
  std::mt19937 random(seed);
  std::vector<int> order(fibers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  for (int idle = 0;;) {
    const long before = progress;
    std::shuffle(order.begin(), order.end(), random);
    bool left = false;
    for (int i : order) {
      if (fibers[i].done || (random() & 3) == 0) { left |= !fibers[i].done; continue; }
      current = i;
      swapcontext(&scheduler, &me().context);
      left |= !fibers[i].done;
      if (!under_way.empty() && (random() & 7) == 0) deliver(random() % under_way.size());
    }
    if (!left) return under_way.empty() ? 0 : 2;
    if (progress != before) idle = 0;
    else if (!under_way.empty()) deliver(random() % under_way.size());
    else if (++idle > 64) return 1;
  }
}
static void together() { meet(warp().meet, 32); }
}  // namespace emu

struct Index3 { int x; };
#define threadIdx (Index3{emu::me().thread})
#define blockIdx (Index3{emu::me().block})
#define __global__
#define __launch_bounds__(n)

static uint* emulated_shared() { return reinterpret_cast<uint*>(emu::block().memory.data()); }
static uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

template <typename T> static T shuffled(T value, int from) {
  memcpy(emu::warp().words[emu::lane()], &value, sizeof(T));
  emu::together();
  T found;
  memcpy(&found, emu::warp().words[from], sizeof(T));
  emu::together();
  return found;
}
template <typename T> static T __shfl_xor_sync(uint, T value, int distance, int) { return shuffled(value, emu::lane() ^ distance); }
template <typename T> static T __shfl_sync(uint, T value, int from, int) { return shuffled(value, from); }

// D = A B + C of one warp, where convert(word, n) is the n-th number of a word.
template <int PER_WORD, typename F>
static void mma(float& d0, float& d1, float& d2, float& d3, const uint32_t* a, const uint32_t* b, const float* c, F convert) {
  Warp& w = emu::warp();
  const int lane = emu::lane(), g = lane / 4, q = lane % 4;
  for (int i = 0; i < 4; ++i) w.words[lane][i] = a[i];
  for (int i = 0; i < 2; ++i) w.words[lane][4 + i] = b[i];
  emu::together();
  float* out[4] = {&d0, &d1, &d2, &d3};
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * q + i % 2;
    sums[i] = c[i];
    for (int k = 0; k < 8 * PER_WORD; ++k) {
      const int from = k % (4 * PER_WORD) / PER_WORD, part = k / (4 * PER_WORD), n = k % PER_WORD;
      const float x = convert(w.words[row % 8 * 4 + from][row / 8 + 2 * part], n);
      sums[i] += x * convert(w.words[column * 4 + from][4 + part], n);
    }
  }
  emu::together();
  for (int i = 0; i < 4; ++i) *out[i] = sums[i];
}
static float from_bf16(uint32_t word, int n) { return float_of(word >> (16 * n) << 16); }
static float from_f16(uint32_t word, int n) {
  uint16_t bits = word >> (16 * n);
  half h;
  memcpy(&h, &bits, 2);
  return float(h);
}
static float from_tf32(uint32_t word, int) { return float_of(word & ~0x1fffu); }
#define MMA(NAME, PER_WORD, CONVERT)                                                                                      \
  static void NAME(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,        \
                   uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {                                   \
    const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};                                                              \
    const float c[4] = {c0, c1, c2, c3};                                                                                 \
    mma<PER_WORD>(d0, d1, d2, d3, a, b, c, CONVERT);                                                                     \
  }
MMA(tvm_builtin_ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 2, from_bf16)
MMA(tvm_builtin_ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, 2, from_f16)
MMA(tvm_builtin_ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 1, from_tf32)

static uint32_t tvm_builtin_cuda_cvta_generic_to_shared(void* p) {
  return uint32_t(static_cast<char*>(p) - emu::block().memory.data()) | uint32_t(emu::rank()) << 24;
}
static void tvm_builtin_ptx_mapa_u32_shared__cluster_u32(uint32_t& d, uint32_t address, uint32_t rank) {
  d = (address & 0xffffff) | rank << 24;
}
static int tvm_builtin_ptx_fetch_register_clusterid_x() { return emu::me().block / emu::cluster_size; }
static uint tvm_builtin_cluster_ctaid_x() { return emu::rank(); }
static void tvm_builtin_cuda_cta_sync() { emu::meet(emu::block().all, emu::threads); }
static void tvm_builtin_cuda_warp_sync() { emu::together(); }
static void tvm_builtin_ptx_bar_sync_count_sync(uint32_t id, uint32_t count) { emu::meet(emu::block().named[id], count); }
static void tvm_builtin_ptx_bar_arrive_arrive(uint32_t id, uint32_t count) { emu::arrive(emu::block().named[id], count); }
static void tvm_builtin_ptx_barrier_cluster_arrive_cluster_arrive_release_aligned() {
  Barrier& b = emu::clusters[emu::me().block / emu::cluster_size];
  emu::me().cluster_wait = b.generation;
  emu::arrive(b, emu::cluster_size * emu::threads);
}
static void tvm_builtin_ptx_barrier_cluster_wait_cluster_wait_acquire_aligned() {
  emu::until([] { return emu::clusters[emu::me().block / emu::cluster_size].generation != emu::me().cluster_wait; });
}
static void tvm_builtin_ptx_mbarrier_init_init_shared_b64(uint32_t address, uint32_t count) {
  emu::mbarrier(address) = {int(count), int(count), 0, 0};
}
static void tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster() {}
static void tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(uint32_t address, uint32_t bytes) {
  Mbarrier& m = emu::mbarrier(address);
  m.bytes += bytes, --m.pending;
  emu::settle(m);
}
static void tvm_builtin_cuda_mbarrier_wait_acquire_cluster(void* barrier, int parity) {
  Mbarrier& m = emu::mbarrier(tvm_builtin_cuda_cvta_generic_to_shared(barrier));
  emu::until([&] { return int(m.phase & 1) != parity; });
}
static void send(uint32_t to, std::vector<uint32_t> words, uint32_t barrier) {
  Sent s{to, barrier, emu::me().block / emu::cluster_size, int(words.size()), {}};
  std::copy(words.begin(), words.end(), s.value);
  emu::under_way.push_back(s);
}
static void tvm_builtin_ptx_st_async_vec_weak_shared__cluster_mbarrier__complete_tx__bytes_v2_b32(
    uint32_t to, uint32_t a, uint32_t b, uint32_t barrier) { send(to, {a, b}, barrier); }
static void tvm_builtin_ptx_st_async_vec_weak_shared__cluster_mbarrier__complete_tx__bytes_v4_b32(
    uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t barrier) { send(to, {a, b, c, d}, barrier); }

template <typename T> static void load(const void* from, std::initializer_list<T*> into) {
  const T* p = static_cast<const T*>(from);
  for (T* x : into) memcpy(x, p++, sizeof(T));
}
static void tvm_builtin_ptx_ld_vec_shared_v4_b32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t p) { load<uint32_t>(emu::at(p), {&a, &b, &c, &d}); }
static void tvm_builtin_ptx_ld_vec_shared_v2_b32(uint32_t& a, uint32_t& b, uint32_t p) { load<uint32_t>(emu::at(p), {&a, &b}); }
static void tvm_builtin_ptx_ld_vec_shared_v4_f32(float& a, float& b, float& c, float& d, uint32_t p) { load<float>(emu::at(p), {&a, &b, &c, &d}); }
static void tvm_builtin_ptx_ld_vec_global_nc_v4_b32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* p) { load<uint32_t>(p, {&a, &b, &c, &d}); }
static void tvm_builtin_ptx_ld_vec_relaxed_gpu_global_v4_b32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* p) {
  emu::yield();  // such a load may be repeated until another thread has stored
  load<uint32_t>(p, {&a, &b, &c, &d});
}
static void tvm_builtin_ptx_ld_vec_relaxed_gpu_global_v2_b32(uint32_t& a, uint32_t& b, const void* p) {
  emu::yield();
  load<uint32_t>(p, {&a, &b});
}
static void tvm_builtin_ptx_st_vec_shared_v4_b32(uint32_t p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  memcpy(emu::at(p), words, 16);
}
static void tvm_builtin_ptx_st_vec_shared_v4_f32(uint32_t p, float a, float b, float c, float d) {
  tvm_builtin_ptx_st_vec_shared_v4_b32(p, bits_of(a), bits_of(b), bits_of(c), bits_of(d));
}
static void tvm_builtin_ptx_st_vec_global_v4_b32(const void* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  memcpy(const_cast<void*>(p), words, 16);
}
static void tvm_builtin_ptx_st_vec_relaxed_gpu_global_v4_b32(const void* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  tvm_builtin_ptx_st_vec_global_v4_b32(p, a, b, c, d);
  ++emu::progress;
}
static void tvm_builtin_ptx_st_vec_global_v2_b32(const void* p, uint32_t a, uint32_t b) {
  const uint32_t words[2] = {a, b};
  memcpy(const_cast<void*>(p), words, 8);
}
static void tvm_builtin_ptx_prefetch_global_L2(const void*) {}
static void tvm_builtin_ptx_cvt_tf32_f32_rna_tf32_f32(uint32_t& d, float x) {
  d = std::isnan(x) ? 0x7fffffff : (bits_of(x) + 0x1000) & ~0x1fffu;
}
static void tvm_builtin_ptx_red_release_gpu_global_add_u32(const void* p, uint32_t value) {
  *static_cast<uint32_t*>(const_cast<void*>(p)) += value;
  ++emu::progress;
}
static void tvm_builtin_ptx_ld_acquire_gpu_global_u32(uint32_t& d, const void* p) {
  emu::yield();
  d = *static_cast<const uint32_t*>(p);
}
