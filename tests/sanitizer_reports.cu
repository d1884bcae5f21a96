// Kernels that are in order, for what compute-sanitizer says of them: see test_sanitizers.py.
//
// `given`: threads fill a block's shared memory, by stores or by cp.async that they wait for; behind a barrier of the
// cluster other blocks write there. `apart`: two kinds of warps meet at a barrier, each at an instruction of its own,
// with the number of threads that meet, as PTX's bar.sync allows. `handed`: warps in pairs, one that writes sums and
// arrives or waits, one that waits and reads them; then all of the block meet between what they write and read.
// `beside`: warps that compute meet twice at a barrier of their own; in each step they write what warps beside them read
// behind the barrier of all, each kind at an instruction of its own. `counted`: threads stage what blocks of a cluster
// write into the memory of all by st.async, whose bytes an mbarrier counts.

#include <cstdint>
#include <cstdio>
#include <cstring>

__device__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <bool COPIES> __global__ void __cluster_dims__(4) given(const float* x, float* y) {
  extern __shared__ __align__(16) float words[];
  uint32_t own = (uint32_t)__cvta_generic_to_shared(words) + threadIdx.x * 16, rank, far;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (COPIES) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(own), "l"(x + threadIdx.x * 4));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  } else {
    asm volatile("st.shared.v4.f32 [%0], {%1, %1, %1, %1};" ::"r"(own), "f"(1.0f) : "memory");
  }
  meet();
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(own), "r"((rank + 1) % 4));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %1, %1, %1};" ::"r"(far), "f"(2.0f) : "memory");
  meet();
  y[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x * 4];
}

__global__ void apart(float* y) {
  __shared__ float words[256];
  words[threadIdx.x] = 2.0f;
  if (threadIdx.x < 128) {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    y[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x + 128];
  } else {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    y[blockIdx.x * blockDim.x + threadIdx.x] = words[threadIdx.x - 128] * 1.0f;
  }
}

template <bool ARRIVES> __global__ void handed(float* y) {
  __shared__ float sums[256];
  __shared__ uint16_t words[256];
  uint32_t number = threadIdx.x / 64 + 1;
  float total = 0.0f;
  for (int step = 0; step < 6; step++) {
    if (threadIdx.x / 32 % 2) {
      sums[threadIdx.x] = 0.0f;
      if (ARRIVES) asm volatile("bar.arrive %0, 64;" ::"r"(number) : "memory");
      else asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory");
    } else {
      asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory");
      total += sums[threadIdx.x + 32];
    }
    words[threadIdx.x] = (uint16_t)step;
    __syncthreads();
    total += words[(threadIdx.x + 160) % 256] == step ? 1.0f : 0.0f;
    __syncthreads();
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total == 6.0f ? 2.0f : 0.0f;
}

__global__ void beside(float* y) {
  __shared__ float words[2][128];
  float total = 0.0f;
  if (threadIdx.x < 128) {
    words[0][threadIdx.x] = 0.0f;
    for (int twice = 0; twice < 2; twice++) asm volatile("bar.sync 15, 128;" ::: "memory");
    for (int step = 0; step < 6; step++) {
      asm volatile("barrier.sync 0, 256;" ::: "memory");
      words[(step + 1) % 2][threadIdx.x] = (float)(step + 1);
    }
    asm volatile("barrier.sync 0, 256;" ::: "memory");
    total = 6.0f;
  } else {
    for (int step = 0; step < 6; step++) {
      asm volatile("barrier.sync 0, 256;" ::: "memory");
      if (step) total += words[step % 2][(threadIdx.x + 32) % 128] == step ? 1.0f : 0.0f;
    }
    asm volatile("barrier.sync 0, 256;" ::: "memory");
    total += words[0][(threadIdx.x + 32) % 128] == 6 ? 1.0f : 0.0f;
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total == 6.0f ? 2.0f : 0.0f;
}

__global__ void __cluster_dims__(4) counted(float* y) {
  __shared__ __align__(16) float staged[2][256 * 4], words[2][256 * 4];
  __shared__ __align__(8) uint64_t barriers[2];
  uint32_t rank;
  float total = 0.0f;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  for (int i = 0; i < 2 && threadIdx.x == 0; i++)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(&barriers[i]))
                 : "memory");
  meet();
  for (int step = 0; step < 6; step++) {
    uint32_t own = (uint32_t)__cvta_generic_to_shared(words[step % 2]) + (rank * 64 + threadIdx.x % 64) * 16;
    uint32_t far, far_full, done = 0;
    uint32_t full = (uint32_t)__cvta_generic_to_shared(&barriers[step % 2]);
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(own), "r"(threadIdx.x / 64));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_full) : "r"(full), "r"(threadIdx.x / 64));
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;" ::"r"(full) : "memory");
    for (int i = 0; i < 4; i++) staged[step % 2][i * 256 + threadIdx.x] = (float)step;
    __syncthreads();
    float4 value = ((const float4*)staged[step % 2])[threadIdx.x];
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(far),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(far_full)
                 : "memory");
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(full), "r"(step / 2 % 2)
                   : "memory");
    total += words[step % 2][(threadIdx.x * 4 + 36) % 1024] == (float)step ? 1.0f : 0.0f;
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total == 6.0f ? 2.0f : 0.0f;
  meet();
}

// A cluster of one block: what it writes by st.async is its own.
__global__ void __cluster_dims__(1) alone(float* y) {
  __shared__ __align__(16) float words[256 * 4];
  __shared__ __align__(8) uint64_t barrier;
  uint32_t own = (uint32_t)__cvta_generic_to_shared(words), full = (uint32_t)__cvta_generic_to_shared(&barrier);
  uint32_t done = 0, to, to_full;
  asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(own + threadIdx.x * 16));
  asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to_full) : "r"(full));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(full) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;" ::"r"(full) : "memory");
  }
  __syncthreads();
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %1, %1, %1}, [%2];" ::"r"(to),
               "r"(0x40000000), "r"(to_full)
               : "memory");
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(full)
                 : "memory");
  y[blockIdx.x * blockDim.x + threadIdx.x] = words[(threadIdx.x * 4 + 36) % 1024];
}

int main(int, char** arguments) {
  float *x, *y, found[16 * 256];
  cudaMalloc(&x, 256 * 16);
  cudaMemset(x, 0, 256 * 16);
  cudaMalloc(&y, sizeof found);
  if (!strcmp(arguments[1], "stores")) given<false><<<16, 256, 4096>>>(x, y);
  if (!strcmp(arguments[1], "copies")) given<true><<<16, 256, 4096>>>(x, y);
  if (!strcmp(arguments[1], "apart")) apart<<<16, 256>>>(y);
  if (!strcmp(arguments[1], "arrive")) handed<true><<<16, 256>>>(y);
  if (!strcmp(arguments[1], "wait")) handed<false><<<16, 256>>>(y);
  if (!strcmp(arguments[1], "beside")) beside<<<16, 256>>>(y);
  if (!strcmp(arguments[1], "counted")) counted<<<16, 256>>>(y);
  if (!strcmp(arguments[1], "alone")) alone<<<16, 256>>>(y);
  cudaMemcpy(found, y, sizeof found, cudaMemcpyDeviceToHost);
  for (float value : found)
    if (value != 2.0f) return 1;
  return cudaGetLastError() != cudaSuccess;
}
