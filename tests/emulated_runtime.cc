// The fake runtime's launch, in place of the one that only notes it (which is weak).
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "emulate.h"

extern const emu::Kernel emulated_kernels[];  // of the module, ended by one without a name
extern "C" int fake_enqueue(cudaStream_t stream, int (*run)(void*), void* closure);

namespace {
struct Launched {
  const emu::Kernel* kernel = emulated_kernels;
  int grid, threads, cluster = 1;
  bool together = false;
  size_t shared;
  std::vector<std::string> values;
  std::vector<void*> arguments;  // to the values
};

int run(void* closure) {
  auto* own = (Launched*)closure;
  const char* failure =
      emu::launch(own->grid, own->threads, own->shared, own->cluster, own->together, own->kernel->thread, own->arguments.data());
  if (failure) std::fprintf(stderr, "%s: %s\n", own->kernel->name, failure);
  delete own;
  return int(failure ? cudaErrorLaunchFailure : cudaSuccess);
}
}  // namespace

extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  if (config->gridDim.y > 1 || config->gridDim.z > 1) return cudaErrorInvalidValue;
  auto* own = new Launched;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) own->cluster = config->attrs[i].val.clusterDim.x;
    if (config->attrs[i].id == cudaLaunchAttributeCooperative) own->together = true;
  }
  while (std::strcmp(own->kernel->name, (const char*)kernel)) ++own->kernel;
  own->grid = config->gridDim.x, own->threads = config->blockDim.x, own->shared = config->dynamicSmemBytes;
  for (const size_t* size = own->kernel->sizes; *size; ++size) own->values.emplace_back((const char*)*arguments++, *size);
  for (std::string& value : own->values) own->arguments.push_back(value.data());
  return (cudaError_t)fake_enqueue(config->stream, run, own);
}
