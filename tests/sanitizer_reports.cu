// Kernels in order, and beside each one that is not, for what compute-sanitizer says of them: see test_sanitizers.py.
//
// `given`: threads fill a block's shared memory, by stores or by cp.async that they wait for; behind a barrier of the
// cluster other blocks write there. `apart`: two kinds of warps meet at a barrier, each at an instruction of its own,
// with the number of threads that meet, as PTX allows: bar.sync wants all threads of a warp to come, barrier.sync does
// not. `handed`: warps in pairs, one that writes sums and arrives, one that waits and reads them; then all of the block
// meet between what they write and read. `beside`: warps that compute meet twice at a barrier of their own; in each step
// they write what warps beside them read behind the barrier of all. `passed`: of two warps one writes, they meet, the
// other reads, and says so in global memory, where the first one waits before it writes again. Barriers have the names
// that TVM gives them: counted_barriers.py finds them.

#include <cstdint>
#include <cstdio>
#include <cstring>

typedef unsigned int uint;

enum Kind { IN_ORDER, EARLY };

__device__ __forceinline__ void tvm_builtin_ptx_bar_sync_count_sync(uint32_t __a, uint32_t __b) {
  asm volatile("bar.sync %0, %1;" : : "r"(__a), "r"(__b) : "memory");
}
__device__ __forceinline__ void tvm_builtin_ptx_bar_arrive_arrive(uint32_t __a, uint32_t __b) {
  asm volatile("bar.arrive %0, %1;" : : "r"(__a), "r"(__b) : "memory");
}
__device__ uint32_t said[16 * 4];
__device__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <bool COPIES> __device__ void fill(const float* x, float* y, Kind kind) {
  extern __shared__ __align__(16) float words[];
  uint32_t own = (uint32_t)__cvta_generic_to_shared(words) + threadIdx.x * 16, rank, far;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (COPIES) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(own), "l"(x + threadIdx.x * 4));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  } else {
    asm volatile("st.shared.v4.f32 [%0], {%1, %1, %1, %1};" ::"r"(own), "f"(1.0f) : "memory");
  }
  if (kind == IN_ORDER) meet();
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(own), "r"((rank + 1) % 4));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %1, %1, %1};" ::"r"(far), "f"(2.0f) : "memory");
  meet();
  y[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x * 4];
}

extern "C" __global__ void __cluster_dims__(4) stores(const float* x, float* y, Kind kind) { fill<false>(x, y, kind); }
extern "C" __global__ void __cluster_dims__(4) copies(const float* x, float* y, Kind kind) { fill<true>(x, y, kind); }

template <bool ALIGNED> __device__ void meet_apart(float* y) {
  __shared__ float words[256];
  words[threadIdx.x] = 2.0f;
  if (threadIdx.x < 128) {
    if (ALIGNED) asm volatile("bar.sync 1, 256;" ::: "memory");
    else asm volatile("barrier.sync 1, 256;" ::: "memory");
    y[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x + 128];
  } else {
    if (ALIGNED) asm volatile("bar.sync 1, 256;" ::: "memory");
    else asm volatile("barrier.sync 1, 256;" ::: "memory");
    y[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x - 128] * 1.0f;
  }
}

extern "C" __global__ void aligned(const float*, float* y, Kind) { meet_apart<true>(y); }
extern "C" __global__ void apart(const float*, float* y, Kind) { meet_apart<false>(y); }

extern "C" __global__ void handed(const float*, float* y, Kind kind) {
  __shared__ float sums[256];
  __shared__ uint16_t words[256];
  uint32_t number = threadIdx.x / 64 + 1;
  float total = 0.0f;
  for (int step = 0; step < 6; step++) {
    if (threadIdx.x / 32 % 2) {
      if (kind == EARLY) tvm_builtin_ptx_bar_arrive_arrive(number, (uint)64);
      sums[threadIdx.x] = 0.0f;
      if (kind == IN_ORDER) tvm_builtin_ptx_bar_arrive_arrive(number, (uint)64);
    } else {
      tvm_builtin_ptx_bar_sync_count_sync(number, (uint)64);
      total += sums[threadIdx.x + 32];
    }
    words[threadIdx.x] = (uint16_t)step;
    __syncthreads();
    total += words[(threadIdx.x + 160) % 256] == step ? 1.0f : 0.0f;
    __syncthreads();
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total == 6.0f ? 2.0f : 0.0f;
}

extern "C" __global__ void beside(const float*, float* y, Kind kind) {
  __shared__ float words[2][128];
  float total = 0.0f;
  int place = kind == IN_ORDER;
  if (threadIdx.x < 128) {
    words[0][threadIdx.x] = 0.0f;
    for (int twice = 0; twice < 2; twice++) tvm_builtin_ptx_bar_sync_count_sync((uint)15, (uint)128);
    for (int step = 0; step < 6; step++) {
      tvm_builtin_ptx_bar_sync_count_sync((uint)0, (uint)256);
      words[(step + 1) % 2][threadIdx.x] = (float)(step + 1);
    }
    tvm_builtin_ptx_bar_sync_count_sync((uint)0, (uint)256);
    total = 6.0f;
  } else {
    for (int step = 0; step < 6; step++) {
      tvm_builtin_ptx_bar_sync_count_sync((uint)0, (uint)256);
      if (step) total += words[(step + !place) % 2][(threadIdx.x + 32) % 128] == step ? 1.0f : 0.0f;
    }
    tvm_builtin_ptx_bar_sync_count_sync((uint)0, (uint)256);
    total += words[0][(threadIdx.x + 32) % 128] == 6 ? 1.0f : 0.0f;
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total == 6.0f ? 2.0f : 0.0f;
}

extern "C" __global__ void passed(const float*, float* y, Kind kind) {
  __shared__ float words[256];
  uint32_t number = threadIdx.x / 64, *flag = &said[blockIdx.x * 4 + number], seen;
  float total = 0.0f;
  for (uint32_t step = 0; step < 6; step++) {
    if (threadIdx.x / 32 % 2) {
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      while (kind == IN_ORDER && seen < step);
      words[threadIdx.x] = (float)step;
      tvm_builtin_ptx_bar_sync_count_sync(number + 1, (uint)64);
    } else {
      tvm_builtin_ptx_bar_sync_count_sync(number + 1, (uint)64);
      total += words[threadIdx.x + 32] == (float)step ? 1.0f : 0.0f;
      __syncwarp();
      if (threadIdx.x % 32 == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(step + 1) : "memory");
    }
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total == (threadIdx.x / 32 % 2 ? 0.0f : 6.0f) ? 2.0f : 0.0f;
}

// NAME [early]: returns 1 where a result is wrong.
int main(int count, char** arguments) {
  float *x, *y, found[16 * 256];
  Kind kind = count > 2 ? EARLY : IN_ORDER;
  cudaMalloc(&x, 256 * 16);
  cudaMemset(x, 0, 256 * 16);
  cudaMalloc(&y, sizeof found);
#define RUN(name) \
  if (!strcmp(arguments[1], #name)) name<<<16, 256, 4096>>>(x, y, kind);
  RUN(stores) RUN(copies) RUN(aligned) RUN(apart) RUN(handed) RUN(beside) RUN(passed)
  cudaMemcpy(found, y, sizeof found, cudaMemcpyDeviceToHost);
  for (float value : found)
    if (value != 2.0f) return 1;
  return cudaGetLastError() != cudaSuccess;
}
