// The functions of a module that are the same for every network: load, memory for callers without an allocator, waiting.
//
// Comes after host.h in the file that source.py writes. ARCH is the suffix of this arch's functions (sm_90a); every
// argument and result is an integer, addresses and streams included.
#pragma once

#define JOIN_WORDS(a, b) a##_##b
#define WITH_ARCH(name, arch) JOIN_WORDS(__tvm_ffi_##name, arch)
#define EXPORT(name) \
  extern "C" TVM_FFI_DLL_EXPORT int32_t WITH_ARCH(name, ARCH)(void*, const TVMFFIAny* args, int32_t count, \
                                                             TVMFFIAny* result)
#define EXPECT(number) \
  if (count != (number)) return host::fail("wrong number of arguments", "TypeError"); \
  host::return_int(result, 0)

namespace host {

inline char* clocks = nullptr;  // where kernels with clocks add their cycles

inline void return_int(TVMFFIAny* result, int64_t value) {
  *result = {};
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
}

inline cudaStream_t as_stream(const TVMFFIAny& value) { return reinterpret_cast<cudaStream_t>(value.v_int64); }
inline char* as_pointer(const TVMFFIAny& value) { return reinterpret_cast<char*>(value.v_int64); }

// The kernels' handles from the embedded cubins; once per process and program, and tried again where it failed.
inline int load_kernels(const char* const* cubins, const int* cubin_of, const Kernel* const* kernels,
                        const char* const* symbols, int count) {
  static std::mutex guard;
  static std::unordered_map<const void*, bool> loaded;
  std::lock_guard<std::mutex> lock(guard);
  bool& done = loaded[kernels];
  if (done) return 0;
  std::unordered_map<int, cudaLibrary_t> libraries;
  for (int i = 0; i < count; ++i) {
    cudaLibrary_t& library = libraries[cubin_of[i]];
    if (library == nullptr) {
      auto error = cudaLibraryLoadData(&library, cubins[cubin_of[i]], nullptr, nullptr, 0, nullptr, nullptr, 0);
      RUN(check(error, "kernels cannot be loaded"));
    }
    cudaKernel_t one;
    RUN(check(cudaLibraryGetKernel(&one, library, symbols[i]), symbols[i]));
    *kernels[i]->handle = static_cast<void*>(one);
  }
  done = true;
  return 0;
}

// Wait for a stream at most so many milliseconds; 0: as long as it takes.
inline int finish(cudaStream_t now, int64_t milliseconds) {
  if (milliseconds <= 0) return check(cudaStreamSynchronize(now), "the GPU failed");
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    const cudaError_t state = cudaStreamQuery(now);
    if (state != cudaErrorNotReady) return check(state, "the GPU failed");
    cudaGetLastError();
    if (std::chrono::steady_clock::now() > end)
      return fail("the watchdog stopped waiting: the GPU has not finished after " + std::to_string(milliseconds) + " ms");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace host

// devices() -> how many GPUs there are; 0 also where there is no driver.
EXPORT(devices) {
  EXPECT(0);
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess) {
    cudaGetLastError();
    found = 0;
  }
  host::return_int(result, found);
  return 0;
}

// capability(device) -> 90 for compute capability 9.0
EXPORT(capability) {
  EXPECT(1);
  int major = 0, minor = 0;
  RUN(host::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, int(args[0].v_int64)), "no such GPU"));
  RUN(host::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, int(args[0].v_int64)), "no such GPU"));
  host::return_int(result, 10 * major + minor);
  return 0;
}

// allocate(device, bytes) -> address, aligned to 256 bytes
EXPORT(allocate) {
  EXPECT(2);
  host::Current current(args[0].v_int64, nullptr);
  RUN(current.status);
  void* place = nullptr;
  RUN(host::check(cudaMalloc(&place, size_t(std::max<int64_t>(args[1].v_int64, 1))), "no memory on the GPU"));
  host::return_int(result, reinterpret_cast<int64_t>(place));
  return 0;
}

// release(device, address): waits for the work that uses it
EXPORT(release) {
  EXPECT(2);
  host::Current current(args[0].v_int64, nullptr);
  RUN(current.status);
  return host::check(cudaFree(host::as_pointer(args[1])), "memory cannot be freed");
}

// transfer(device, stream, target, source, bytes): in either direction; the host's memory may be reused at once
EXPORT(transfer) {
  EXPECT(5);
  host::Current current(args[0].v_int64, host::as_stream(args[1]));
  RUN(current.status);
  if (args[4].v_int64 <= 0) return 0;
  auto error = cudaMemcpyAsync(host::as_pointer(args[2]), host::as_pointer(args[3]), size_t(args[4].v_int64),
                               cudaMemcpyDefault, host::stream);
  RUN(host::check(error, "copy"));
  return host::check(cudaStreamSynchronize(host::stream), "copy");
}

// clocks(address): where kernels with clocks add their cycles, from now on
EXPORT(clocks) {
  EXPECT(1);
  host::clocks = host::as_pointer(args[0]);
  return 0;
}

// finish(device, stream, milliseconds): wait for all that is enqueued; 0: however long it takes
EXPORT(finish) {
  EXPECT(3);
  host::Current current(args[0].v_int64, host::as_stream(args[1]));
  RUN(current.status);
  return host::finish(host::stream, args[2].v_int64);
}

// settle(device): wait for everything on the GPU, whatever its stream
EXPORT(settle) {
  EXPECT(1);
  host::Current current(args[0].v_int64, nullptr);
  RUN(current.status);
  return host::check(cudaDeviceSynchronize(), "the GPU failed");
}

// capturing(device, stream) -> 1 where the stream is being recorded into a CUDA graph
EXPORT(capturing) {
  EXPECT(2);
  host::Current current(args[0].v_int64, host::as_stream(args[1]));
  RUN(current.status);
  bool found;
  RUN(host::is_captured(host::stream, &found));
  host::return_int(result, found);
  return 0;
}
