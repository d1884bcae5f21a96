// The fake runtime's launch, in place of the one that only notes it (which is weak).
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "emulate.h"

extern const emu::Kernel emulated_kernels[];  // of the module, ended by one without a name
extern "C" int fake_launch(cudaStream_t stream, int (*run)(void*), int (*ahead)(void*), int opens, void* closure);

namespace {
struct Launched {
  const emu::Kernel* kernel = emulated_kernels;
  std::vector<std::string> values;
  std::vector<void*> arguments;  // to the values
  emu::Launch* launch;
};

int ahead(void* closure) { return emu::ahead(*((Launched*)closure)->launch); }
int run(void* closure) {
  auto* own = (Launched*)closure;
  const char* failure = emu::finish(own->launch);
  if (failure) std::fprintf(stderr, "%s: %s\n", own->kernel->name, failure);
  delete own;
  return int(failure ? cudaErrorLaunchFailure : cudaSuccess);
}
}  // namespace

extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  if (config->gridDim.y > 1 || config->gridDim.z > 1) return cudaErrorInvalidValue;
  int cluster = 1;
  bool together = false, early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& given = config->attrs[i];
    if (given.id == cudaLaunchAttributeClusterDimension) cluster = given.val.clusterDim.x;
    if (given.id == cudaLaunchAttributeCooperative) together = true;
    if (given.id == cudaLaunchAttributeProgrammaticStreamSerialization) early = given.val.programmaticStreamSerializationAllowed;
  }
  auto* own = new Launched;
  while (std::strcmp(own->kernel->name, (const char*)kernel)) ++own->kernel;
  for (const size_t* size = own->kernel->sizes; *size; ++size) own->values.emplace_back((const char*)*arguments++, *size);
  for (std::string& value : own->values) own->arguments.push_back(value.data());
  own->launch = emu::prepare(config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes, cluster, together,
                             own->kernel->thread, own->arguments.data());
  return (cudaError_t)fake_launch(config->stream, run, early ? ahead : nullptr, own->kernel->opens, own);
}
