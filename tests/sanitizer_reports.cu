// Kernels that are in order, for what compute-sanitizer says of them: see test_sanitizers.py.
//
// `given`: threads fill a block's shared memory, by stores or by cp.async that they wait for; behind a barrier of the
// cluster other blocks write there. `apart`: two kinds of warps meet at a barrier, each at an instruction of its own,
// with the number of threads that meet, as PTX's bar.sync allows. `handed`: warps in pairs, one that writes sums and
// arrives or waits, one that waits and reads them; then all of the block meet between what they write and read.

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
  cudaMemcpy(found, y, sizeof found, cudaMemcpyDeviceToHost);
  for (float value : found)
    if (value != 2.0f) return 1;
  return cudaGetLastError() != cudaSuccess;
}
