// What generated CUDA text calls: CUDA's own functions, and TVM's functions around PTX, in C++. In: the kernels' text after
// `emulator.py` has taken out TVM's. See emulate.h for the machine.
#pragma once
#include "emulate_matrices.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
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
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __int_as_float(int x) { float y; return std::memcpy(&y, &x, 4), y; }
inline int __float_as_int(float x) { int y; return std::memcpy(&y, &x, 4), y; }
template <class T> T __shfl_sync(unsigned mask, T v, int from, int = 32) { return emu::shuffle(mask, v, from); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __ballot_sync(unsigned mask, int v) {
  unsigned found = 0;
  for (int lane = 0; lane < 32; ++lane) found |= unsigned(emu::shuffle(mask, v, lane) != 0) << lane;
  return found;
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int other, int = 32) { return emu::shuffle(mask, v, emu::now->lane() ^ other); }
template <class T> T __shfl_down_sync(unsigned mask, T v, int n, int = 32) {
  return emu::shuffle(mask, v, emu::now->lane() + n < 31 ? emu::now->lane() + n : 31);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, int n, int = 32) {
  return emu::shuffle(mask, v, emu::now->lane() > n ? emu::now->lane() - n : 0);
}

// --- what TVM calls for PTX --------------------------------------------------------------------------------------------
#define W uint32_t
#define GLOBAL(x, n) emu::aligned(x, n)
#define LOADED(x, n) emu::loaded(x, n)
inline int32_t tvm_builtin_ptx_fetch_register_clusterid_x() { return emu::now->block->cluster->id; }
inline int32_t tvm_builtin_ptx_fetch_register_ctaid_x() { return int32_t(blockIdx.x); }
namespace emu {
inline uint64_t ticks = 0;  // a clock that goes on whenever a thread reads it: who waits sees the others' time
}
inline unsigned long long tvm_builtin_clock64() { return ++emu::ticks; }
inline int64_t tvm_builtin_ptx_fetch_register_globaltimer() { return 2 * ++emu::ticks; }
inline void tvm_builtin_ptx_red_global_add_u64(const void* place, uint64_t value) { *(uint64_t*)GLOBAL(place, 8) += value; }
inline unsigned tvm_builtin_cluster_ctaid_x() { return emu::now->block->rank; }
inline unsigned tvm_builtin_cuda_cvta_generic_to_shared(const void* p) { return unsigned((char*)p - emu::now->block->begin); }
inline void tvm_builtin_cuda_cta_sync() { __syncthreads(); }
inline void tvm_builtin_cuda_warp_sync() { emu::warp_sync(); }
inline void tvm_builtin_wait_for_bytes(W p, W phase) { emu::wait([&] { return emu::passed(p, phase); }); }
inline void tvm_builtin_ptx_bar_arrive_arrive(W id, W count) { emu::meet(emu::now->block->named[id], count, false); }
inline void tvm_builtin_ptx_bar_sync_count_sync(W id, W count) { emu::meet(emu::now->block->named[id], count, true); }
inline void tvm_builtin_ptx_barrier_sync_count_sync(W id, W count) { emu::meet(emu::now->block->named[id], count, true); }
inline void tvm_builtin_ptx_barrier_cluster_arrive_cluster_arrive_release_aligned() {
  emu::Cluster* c = emu::now->block->cluster;
  emu::now->meeting = c->meeting.generation;
  emu::meet(c->meeting, c->threads, false);
}
inline void tvm_builtin_ptx_barrier_cluster_wait_cluster_wait_acquire_aligned() {
  emu::wait([] { return emu::now->block->cluster->meeting.generation != emu::now->meeting; });
}
inline void tvm_builtin_ptx_cp_async_cg_async_cg_shared_global_16(W to, const void* from) { emu::copy(to, from, 16); }
inline void tvm_builtin_ptx_cp_async_cg_src_size_async_cg_shared_global_16(W to, const void* from, W size) { emu::copy(to, from, size); }
inline void tvm_builtin_ptx_cp_async_ca_src_size_async_ca_shared_global_4(W to, const void* from, W size) { emu::copy(to, from, size, 4); }
inline void tvm_builtin_ptx_cp_async_ca_src_size_async_ca_shared_global_8(W to, const void* from, W size) { emu::copy(to, from, size, 8); }
inline void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() { emu::commit_copies(); }
inline void tvm_builtin_ptx_cp_async_mbarrier_arrive_async_mbarrier_arrive_noinc_shared_b64(W p) { emu::arrive_with_copies(p); }
// Copies may be repeated until another thread has stored.
#define WAIT(n) inline void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_##n() { emu::wait_copies(n), emu::yield(); }
WAIT(0) WAIT(1) WAIT(2) WAIT(3) WAIT(4) WAIT(5) WAIT(6) WAIT(7) WAIT(8)
#define BULK tvm_builtin_ptx_cp_async_bulk_g2s_cluster_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes
inline void BULK(W to, const void* from, W size, W barrier) { emu::bulk(to, from, size, barrier); }
#undef BULK
#define BULK tvm_builtin_ptx_cp_async_bulk_g2s_cluster_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint
inline void BULK(W to, const void* from, W size, W barrier, uint64_t) { emu::bulk(to, from, size, barrier); }
#undef BULK
#define BULK tvm_builtin_ptx_cp_async_bulk_g2s_cluster_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster
inline void BULK(W to, const void* from, W size, W barrier, W blocks) { emu::bulk_multicast(to, from, size, barrier, blocks); }
#undef BULK
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline half __float2half_rn(float x) { return half(x); }
inline float __half2float(half x) { return float(x); }
inline float __bfloat162float(nv_bfloat16 x) { return x; }
inline W two(uint16_t low, uint16_t high) { return W(low) | W(high) << 16; }
template <class T> uint16_t bits(T x) { uint16_t y; return std::memcpy(&y, &x, 2), y; }
inline void tvm_builtin_ptx_cvt_bf16x2_f32_rn_bf16x2_f32(W& d, float a, float b) { d = two(bits(__float2bfloat16_rn(b)), bits(__float2bfloat16_rn(a))); }
inline void tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(W& d, float a, float b) { d = two(bits(__float2half_rn(b)), bits(__float2half_rn(a))); }
inline void tvm_builtin_ptx_prmt_b32(W& d, W a, W b, W selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  d = 0;
  for (int i = 0; i < 4; ++i) d |= W(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
}
inline float e4m3(unsigned code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent ? std::ldexp(1.f + mantissa / 8.f, exponent - 7) : std::ldexp(mantissa / 8.f, -6);
  return (code & 0x7F) == 0x7F ? NAN : code & 0x80 ? -size : size;
}
inline void tvm_builtin_ptx_cvt_f16x2_f8x2_rn_f16x2_e4m3x2(W& d, uint16_t a) {
  d = two(bits(half(e4m3(a & 0xFF))), bits(half(e4m3(a >> 8))));
}
inline float widened(W top) { float x; return std::memcpy(&x, &top, 4), x; }
inline void tvm_builtin_ptx_mul_half_rn_bf16x2(W& d, W a, W b) {
  d = two(bits(nv_bfloat16(widened(a << 16) * widened(b << 16))),
          bits(nv_bfloat16(widened(a & 0xFFFF0000) * widened(b & 0xFFFF0000))));
}
inline void tvm_builtin_ptx_shl_b32(W& d, W a, W n) { d = a << n; }
inline void tvm_builtin_ptx_mad_int_lo_u32(W& d, W a, W b, W c) { d = a * b + c; }
inline void tvm_builtin_ptx_shf_r_wrap_b32(W& d, W low, W high, W n) { d = W((uint64_t(high) << 32 | low) >> (n & 31)); }
inline void tvm_builtin_ptx_shr_b32(W& d, W a, W n) { d = a >> n; }
inline void tvm_builtin_ptx_lop3_b32_192(W& d, W a, W b, W) { d = a & b; }
inline void tvm_builtin_ptx_lop3_b32_234(W& d, W a, W b, W c) { d = (a & b) | c; }
inline void tvm_builtin_ptx_cvt_tf32_f32_rna_tf32_f32(W& d, float a) {
  std::memcpy(&d, &a, 4);
  if (a != a) d = 0x7FFFFFFF; else if (std::isfinite(a)) d = (d + 0x1000) & 0xFFFFE000u;
}
inline void tvm_builtin_ptx_fence_acq_rel_gpu() { emu::yield(); }
inline void tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster() {}
inline void tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta() {}
inline void tvm_builtin_ptx_fence_proxy_proxy_async_global() {}
inline void tvm_builtin_ptx_ld_acquire_gpu_global_u32(W& d, const void* p) { emu::yield(); d = *(const W*)p; }
inline void tvm_builtin_ptx_ld_global_f32(float& d, const void* p) { emu::get(LOADED(p, 4), d); }
inline void tvm_builtin_ptx_ld_global_f64(double& d, const void* p) { emu::get(LOADED(p, 8), d); }
inline void tvm_builtin_ptx_ld_global_b32(W& d, const void* p) { emu::get(LOADED(p, 4), d); }
inline void tvm_builtin_ptx_ld_vec_global_nc_v4_b32(W& a, W& b, W& c, W& d, const void* p) { emu::get(LOADED(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_ld_vec_relaxed_gpu_global_v4_b32(W& a, W& b, W& c, W& d, const void* p) {
  emu::yield();  // such a load may be repeated until another thread has stored
  emu::get(GLOBAL(p, 16), a, b, c, d);
}
inline void tvm_builtin_ptx_ld_relaxed_gpu_global_b32(W& a, const void* p) {
  emu::yield();
  emu::get(GLOBAL(p, 4), a);
}
inline void tvm_builtin_ptx_ld_relaxed_gpu_global_b64(std::uint64_t& a, const void* p) {
  emu::yield();
  emu::get(GLOBAL(p, 8), a);
}
inline void tvm_builtin_ptx_ld_vec_relaxed_gpu_global_v2_b32(W& a, W& b, const void* p) {
  emu::yield();
  emu::get(GLOBAL(p, 8), a, b);
}
inline void tvm_builtin_ptx_ld_vec_global_v2_b32(W& a, W& b, const void* p) { emu::get(LOADED(p, 8), a, b); }
inline void tvm_builtin_ptx_ld_vec_global_v4_b32(W& a, W& b, W& c, W& d, const void* p) { emu::get(LOADED(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_ld_vec_global_v2_f32(float& a, float& b, const void* p) { emu::get(LOADED(p, 8), a, b); }
inline void tvm_builtin_ptx_ld_vec_global_v4_f32(float& a, float& b, float& c, float& d, const void* p) { emu::get(LOADED(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_createpolicy_fractional_fractional_L2__evict_first_b64(std::uint64_t& policy) { policy = 1; }
inline void tvm_builtin_ptx_createpolicy_fractional_fractional_L2__evict_last_b64(std::uint64_t& policy) { policy = 2; }
inline void tvm_builtin_ptx_ld_global_L2__cache_hint_b32(W& a, const void* p, std::uint64_t) { emu::get(LOADED(p, 4), a); }
inline void tvm_builtin_ptx_ld_vec_global_L2__cache_hint_v2_f32(float& a, float& b, const void* p, std::uint64_t) {
  emu::get(LOADED(p, 8), a, b);
}
inline void tvm_builtin_ptx_ld_shared_f32(float& a, W p) { emu::get(emu::at(p, 4), a); }
inline void tvm_builtin_ptx_ld_shared_b32(W& a, W p) { emu::get(emu::at(p, 4), a); }
inline void tvm_builtin_ptx_ld_vec_shared_v2_f32(float& a, float& b, W p) { emu::get(emu::at(p, 8), a, b); }
inline void tvm_builtin_ptx_ld_vec_shared_v2_f64(double& a, double& b, W p) { emu::get(emu::at(p, 16), a, b); }
inline void tvm_builtin_ptx_ld_vec_shared_v2_b32(W& a, W& b, W p) { emu::get(emu::at(p, 8), a, b); }
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
inline void tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(W& a, W& b, W& c, W& d, W p) {
  emu::Matrices own{{&a, &b, &c, &d}, p, 4};
  emu::ldmatrix_trans(own);
}
inline void tvm_builtin_ptx_movmatrix_sync_aligned_m8n8_trans_b16(W& d, W a) {
  emu::Matrices own{{&d, nullptr, nullptr, nullptr}, a, 1};
  emu::movmatrix_trans(own);
}
inline void tvm_builtin_ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(W p, W a, W b, W c, W d) {
  emu::Matrices own{{&a, &b, &c, &d}, p, 4};
  emu::stmatrix_trans(own);
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
  emu::pause();
  emu::send(p, {a, b, c, d}, bar);
}
inline void tvm_builtin_ptx_st_async_vec_weak_shared__cluster_mbarrier__complete_tx__bytes_v2_b32(W p, W a, W b, W bar) {
  emu::send(p, {a, b}, bar);
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
inline void tvm_builtin_ptx_griddepcontrol_wait() { emu::wait_for_launch_before(); }
inline void tvm_builtin_ptx_griddepcontrol_launch_dependents() { emu::let_next_begin(); }
inline void tvm_builtin_ptx_prefetch_global_L2(const void*) {}
inline void tvm_builtin_ptx_red_release_gpu_global_add_u32(const void* p, W value) { *(W*)p += value, ++emu::progress; }
inline void tvm_builtin_ptx_st_global_f32(const void* p, float a) { emu::put((char*)GLOBAL(p, 4), a); }
inline void tvm_builtin_ptx_st_global_f64(const void* p, double a) { emu::put((char*)GLOBAL(p, 8), a); }
inline void tvm_builtin_ptx_st_global_b32(const void* p, W a) { emu::put((char*)GLOBAL(p, 4), a); }
inline void tvm_builtin_ptx_st_vec_global_v2_f32(const void* p, float a, float b) { emu::put((char*)GLOBAL(p, 8), a, b); }
inline void tvm_builtin_ptx_st_global_L2__cache_hint_b32(const void* p, W a, std::uint64_t) {
  emu::put((char*)GLOBAL(p, 4), a);
}
inline void tvm_builtin_ptx_st_vec_global_L2__cache_hint_v2_f32(const void* p, float a, float b, std::uint64_t) {
  emu::put((char*)GLOBAL(p, 8), a, b);
}
inline void tvm_builtin_ptx_st_vec_global_v2_b32(const void* p, W a, W b) { emu::put((char*)GLOBAL(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_global_v4_b32(const void* p, W a, W b, W c, W d) { emu::put((char*)GLOBAL(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_relaxed_gpu_global_b32(const void* p, W a) { emu::put((char*)GLOBAL(p, 4), a), ++emu::progress; }
inline void tvm_builtin_ptx_st_relaxed_gpu_global_b64(const void* p, std::uint64_t a) {
  emu::put((char*)GLOBAL(p, 8), a), ++emu::progress;
}
inline void tvm_builtin_ptx_st_vec_relaxed_gpu_global_v2_b32(const void* p, W a, W b) {
  emu::put((char*)GLOBAL(p, 8), a, b), ++emu::progress;
}
inline void tvm_builtin_ptx_st_vec_relaxed_gpu_global_v4_b32(const void* p, W a, W b, W c, W d) {
  emu::put((char*)GLOBAL(p, 16), a, b, c, d), ++emu::progress;
}
inline void tvm_builtin_ptx_st_vec_global_v4_f32(const void* p, float a, float b, float c, float d) { emu::put((char*)GLOBAL(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_shared_b32(W p, W a) { emu::put(emu::at(p, 4), a); }
inline void tvm_builtin_ptx_st_shared_f32(W p, float a) { emu::put(emu::at(p, 4), a); }
inline void tvm_builtin_ptx_st_vec_shared_v2_f32(W p, float a, float b) { emu::put(emu::at(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_shared__cluster_v2_f32(W p, float a, float b) { emu::put(emu::at(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_shared__cluster_v4_f32(W p, float a, float b, float c, float d) { emu::put(emu::at(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_vec_shared__cluster_v2_f64(W p, double a, double b) { emu::put(emu::at(p, 16), a, b); }
inline void tvm_builtin_ptx_st_vec_shared_v2_f64(W p, double a, double b) { emu::put(emu::at(p, 16), a, b); }
inline void tvm_builtin_ptx_st_vec_shared_v2_b32(W p, W a, W b) { emu::put(emu::at(p, 8), a, b); }
inline void tvm_builtin_ptx_st_vec_shared_v4_b32(W p, W a, W b, W c, W d) { emu::put(emu::at(p, 16), a, b, c, d); }
inline void tvm_builtin_ptx_st_vec_shared_v4_f32(W p, float a, float b, float c, float d) { emu::put(emu::at(p, 16), a, b, c, d); }
inline void ptx_wgmma_encode_matrix_descriptor(uint64_t* to, const void* from, int lead, int stride, int swizzle) {
  *to = emu::descriptor(tvm_builtin_cuda_cvta_generic_to_shared(from), lead, stride, swizzle);
}
inline void tvm_builtin_ptx_wgmma_fence_fence_sync_aligned() { emu::warp_sync(); }
inline void tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned() { emu::commit_products(); }
inline void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0() { emu::wait_products(0); }
inline void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1() { emu::wait_products(1); }
inline void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_2() { emu::wait_products(2); }
#undef W
#undef WAIT
#undef MMA
