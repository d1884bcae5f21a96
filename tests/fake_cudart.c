/* The part of the CUDA runtime that a host program uses, on the CPU, for tests without a GPU: "GPU memory" is malloc's,
   copies happen at once, and every operation on a stream is written to a log.

   FAKE_GPUS: their compute capabilities, "90,80"; none if unset. FAKE_STATE: "hang": streams never end; "capture": they
   are being captured; "fault": they end with an error. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOGGED __attribute__((visibility("default")))
static char text[1 << 20];
static int device, streams, events;
static long allocated;

LOGGED const char* fake_log(void) { return text; }
LOGGED void fake_forget(void) { text[0] = 0; }
LOGGED long fake_allocated(void) { return allocated; }

static void note(const char* what, cudaStream_t stream, long value) {
  size_t used = strlen(text);
  snprintf(text + used, sizeof text - used, "%s(%ld, %ld) ", what, (long)stream, value);
}

static int state_is(const char* name) {
  const char* state = getenv("FAKE_STATE");
  return state && !strcmp(state, name);
}

static int capability(int index) {
  const char* at = getenv("FAKE_GPUS");
  for (; at && *at && index > 0; --index) at = strchr(at, ',') ? strchr(at, ',') + 1 : "";
  return at && *at ? atoi(at) : 0;
}

cudaError_t cudaGetDeviceCount(int* count) {
  for (*count = 0; capability(*count); ++*count) {}
  return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int index) {
  if (index < 0 || !capability(index)) return cudaErrorInvalidDevice;
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? capability(index) / 10
           : attribute == cudaDevAttrComputeCapabilityMinor ? capability(index) % 10
                                                            : 132;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) { return *index = device, cudaSuccess; }
cudaError_t cudaSetDevice(int index) {
  if (!capability(index)) return cudaErrorInvalidDevice;
  return device = index, cudaSuccess;
}

cudaError_t cudaMalloc(void** place, size_t size) {
  if (size >> 40) return cudaErrorMemoryAllocation;
  *place = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(*place, 0xff, size); /* NaN: nobody may count on zeros */
  return ++allocated, cudaSuccess;
}
cudaError_t cudaFree(void* place) { return free(place), --allocated, cudaSuccess; }

cudaError_t cudaMemsetAsync(void* place, int value, size_t size, cudaStream_t stream) {
  note("set", stream, (long)size);
  return memset(place, value, size), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  note(kind == cudaMemcpyDeviceToDevice ? "copy" : "transfer", stream, (long)size);
  return memmove(to, from, size), cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  (void)flags;
  return *stream = (cudaStream_t)(long)(100 + streams++), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  return *event = (cudaEvent_t)(long)(1000 + events++), cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return note("record", stream, (long)event), 0; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  return note("wait", stream, (long)event), cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  (void)stream;
  *status = state_is("capture") ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
static cudaError_t end(void) {
  return state_is("fault") ? cudaErrorIllegalAddress : state_is("hang") ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return (void)stream, end(); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return (void)stream, state_is("fault") ? end() : cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) { return error ? "an error of the fake runtime" : "no error"; }
const char* cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorFake" : "cudaSuccess"; }

/* Kernels: a handle is its name; launching one notes its grid. 132 multiprocessors hold 2 blocks each. */
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, enum cudaJitOption* a, void** b, unsigned c,
                                enum cudaLibraryOption* d, void** e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  return *library = (cudaLibrary_t)(void*)code, cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  (void)library;
  return *kernel = (cudaKernel_t)(void*)name, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* facts, const void* kernel) {
  (void)kernel;
  return memset(facts, 0, sizeof *facts), cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, enum cudaFuncAttribute attribute, int value) {
  (void)kernel, (void)attribute;
  return value > 232448 ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads, size_t shared) {
  (void)kernel, (void)threads, (void)shared;
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config) {
  (void)kernel;
  return *clusters = 264 / (int)config->attrs[0].val.clusterDim.x, cudaSuccess;
}
__attribute__((weak)) cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  (void)arguments;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeCooperative) note("cooperative", config->stream, 1);
  return note((const char*)kernel, config->stream, (long)config->gridDim.x), cudaSuccess;
}
