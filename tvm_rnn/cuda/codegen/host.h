// What every host program is made of: calls of kernels, streams, residency, memory for callers without an allocator.
//
// cuda_text.py puts this file in front of TVM's launch wrappers and of the generated functions, in one C++ file per arch.
// Needs: tvm_ffi's C API and the CUDA runtime (linked statically). All state is per loaded module; every function may be
// called by several threads at once.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

#define RUN(statement) \
  do {                 \
    if ((statement) != 0) return -1; \
  } while (0)

// What TVM's wrappers stand between: an exception does not leave them.
#define TVM_FFI_SAFE_CALL_BEGIN() try {
#define TVM_FFI_SAFE_CALL_END()                                   \
  }                                                               \
  catch (const std::exception& thrown) {                          \
    TVMFFIErrorSetRaisedFromCStr("InternalError", thrown.what()); \
    return -1;                                                    \
  }                                                               \
  return 0

namespace host {

using Wrapper = int32_t (*)(void*, void*, int32_t, void*);
using std::max;
using std::min;

constexpr int kDevices = 64;

// A kernel: TVM's wrapper that launches it, and what one block takes (for residency).
struct Kernel {
  Wrapper wrapper;
  void** handle;  // where the wrapper reads the kernel's handle
  const char* name;
  int threads, shared_bytes, cluster;
  bool resident;
};

inline int fail(const std::string& text, const char* kind = "RuntimeError") {
  TVMFFIErrorSetRaisedFromCStr(kind, text.c_str());
  return -1;
}

inline int check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return 0;
  cudaGetLastError();
  return fail(std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

// --- what the current call works on ------------------------------------------------------------------------------

// Set for the duration of a call, per thread; kernels are launched by TVM's wrappers, which know nothing of it.
inline thread_local const Kernel* launching = nullptr;
inline thread_local std::string refusal;
inline thread_local int device = 0;
inline thread_local cudaStream_t stream = nullptr;

inline int use_stream(cudaStream_t now) {
  stream = now;
  return TVMFFIEnvSetStream(kDLCUDA, device, now, nullptr);
}

// The device and the stream of a call; what was current before comes back at its end.
class Current {
 public:
  Current(int64_t device_index, cudaStream_t now) : device_before_(0), outer_device_(device), outer_stream_(stream) {
    status = check(cudaGetDevice(&device_before_), "there is no GPU for this module");
    if (status == 0 && device_before_ != device_index)
      status = check(cudaSetDevice(int(device_index)), "this GPU cannot be used");
    if (status != 0) return;
    device = int(device_index);
    TVMFFIStreamHandle before = nullptr;
    status = TVMFFIEnvSetStream(kDLCUDA, device, now, &before);
    env_before_ = before;
    stream = now;
    set_ = status == 0;
  }
  ~Current() {
    if (!set_) return;
    TVMFFIEnvSetStream(kDLCUDA, device, env_before_, nullptr);
    if (device_before_ != device) cudaSetDevice(device_before_);
    device = outer_device_;
    stream = outer_stream_;
  }
  int status;

 private:
  int device_before_, outer_device_;
  cudaStream_t outer_stream_;
  void* env_before_ = nullptr;
  bool set_ = false;
};

// --- kernels -----------------------------------------------------------------------------------------------------

struct Shape {  // of a launch, as far as residency depends on it
  int threads, shared_bytes, cluster;
  bool operator==(const Shape& other) const {
    return threads == other.threads && shared_bytes == other.shared_bytes && cluster == other.cluster;
  }
};

// A kernel's limit on the current device, which TVM's wrappers set before each launch: once is enough, and never lowered
// below what another thread's launch needs.
inline cudaError_t set_attribute(const void* handle, cudaFuncAttribute attribute, int value) {
  struct Known {
    const void* handle;
    int device, attribute, value;
  };
  static std::mutex guard;
  static std::vector<Known> known;
  std::lock_guard<std::mutex> lock(guard);
  for (auto& one : known) {
    if (one.handle != handle || one.attribute != attribute || one.device != device) continue;
    if (one.value >= value) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(handle, attribute, value);
    if (error == cudaSuccess) one.value = value;
    return error;
  }
  const cudaError_t error = cudaFuncSetAttribute(handle, attribute, value);
  if (error == cudaSuccess) known.push_back({handle, device, int(attribute), value});
  return error;
}

// In the place of a kernel that no call needs for which the module was compiled.
inline int32_t left_out(void*, void*, int32_t, void*) {
  return fail(std::string("kernel ") + launching->name +
              " was left out: this module is for calls of one size alone; compile one for every call");
}

// How many blocks of a kernel can be on the current device at once, with nothing else on it. Negative: an error is raised.
inline int64_t occupancy(const Kernel& kernel, Shape shape) {
  static std::mutex guard;
  static std::unordered_map<const Kernel*, std::vector<std::pair<Shape, int64_t>>> known[kDevices];
  std::lock_guard<std::mutex> lock(guard);
  auto& rows = known[device % kDevices][&kernel];
  for (const auto& row : rows)
    if (row.first == shape) return row.second;
  const void* handle = *kernel.handle;
  if (shape.shared_bytes > 0 &&
      check(set_attribute(handle, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes), kernel.name))
    return -1;
  int64_t blocks = 0;
  if (shape.cluster > 1) {
    if (shape.cluster > 8 &&
        check(set_attribute(handle, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), kernel.name))
      return -1;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(shape.cluster);
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (check(cudaOccupancyMaxActiveClusters(&clusters, handle, &config), kernel.name)) return -1;
    blocks = int64_t(clusters) * shape.cluster;
  } else {
    int per_sm = 0, sms = 0;
    auto error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, handle, shape.threads, shape.shared_bytes);
    if (check(error, kernel.name)) return -1;
    if (check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), kernel.name)) return -1;
    blocks = int64_t(per_sm) * sms;
  }
  rows.emplace_back(shape, blocks);
  return blocks;
}

inline int64_t resident(const Kernel& kernel) {
  if (kernel.handle == nullptr) return 0;
  return max<int64_t>(0, occupancy(kernel, {kernel.threads, kernel.shared_bytes, kernel.cluster}));
}

// Every launch of TVM's wrappers comes through here. Blocks that wait for each other must all be on the GPU: the driver
// places a cooperative grid whole or not at all, also beside other streams' work, and a grid that can never fit is an error.
inline cudaError_t launch(const void* handle, const cudaLaunchConfig_t* given, void** arguments) {
  const bool resident = launching != nullptr && launching->resident;
  if (!resident) return cudaLaunchKernelExC(given, handle, arguments);
  cudaLaunchAttribute attributes[8];
  cudaLaunchConfig_t config = *given;
  int cluster = 1;
  bool cooperative = false;
  for (unsigned i = 0; i < given->numAttrs && i < 7; ++i) {
    attributes[i] = given->attrs[i];
    if (attributes[i].id == cudaLaunchAttributeCooperative) cooperative = true;
    if (attributes[i].id == cudaLaunchAttributeClusterDimension) {
      const auto& size = attributes[i].val.clusterDim;
      cluster = int(size.x * size.y * size.z);
    }
  }
  config.attrs = attributes;
  if (!cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  const int64_t blocks = int64_t(config.gridDim.x) * config.gridDim.y * config.gridDim.z;
  const int threads = int(config.blockDim.x * config.blockDim.y * config.blockDim.z);
  const int64_t most = occupancy(*launching, {threads, int(config.dynamicSmemBytes), cluster});
  if (most < blocks) {
    refusal = std::string("kernel ") + launching->name + " needs " + std::to_string(blocks) +
              " blocks on the GPU at once, and there is room for " + std::to_string(max<int64_t>(most, 0));
    return cudaErrorCooperativeLaunchTooLarge;
  }
  return cudaLaunchKernelExC(&config, handle, arguments);
}

inline TVMFFIAny argument(char* pointer) {
  TVMFFIAny value = {};
  value.type_index = kTVMFFIOpaquePtr;
  value.v_ptr = pointer;
  return value;
}

inline TVMFFIAny argument(int64_t number) {
  TVMFFIAny value = {};
  value.type_index = kTVMFFIInt;
  value.v_int64 = number;
  return value;
}

// Launch on the current stream.
template <typename... Given>
int call(const Kernel& kernel, Given... given) {
  TVMFFIAny values[] = {argument(given)...}, result = {};
  launching = &kernel;
  const int status = kernel.wrapper(nullptr, values, int32_t(sizeof...(given)), &result);
  launching = nullptr;
  if (status == 0 || refusal.empty()) return status;
  const std::string text = std::move(refusal);
  refusal.clear();
  return fail(text);
}

inline int fill(char* place, int value, int64_t count) {
  return count <= 0 ? 0 : check(cudaMemsetAsync(place, value, size_t(count), stream), "memset");
}

inline int copy(char* target, const char* source, int64_t count) {
  if (count <= 0 || target == source) return 0;
  return check(cudaMemcpyAsync(target, source, size_t(count), cudaMemcpyDeviceToDevice, stream), "copy");
}

// Of sizes: as Python divides.
inline int64_t floordiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
inline int64_t floormod(int64_t a, int64_t b) { return a - floordiv(a, b) * b; }

// --- memory plan ---------------------------------------------------------------------------------------------------

inline int64_t reserve(int64_t& at, int64_t& most, int64_t count) {
  const int64_t place = at;
  at += (max<int64_t>(count, 0) + 255) / 256 * 256;
  most = max(most, at);
  return place;
}

// --- internal streams ----------------------------------------------------------------------------------------------

// Streams and events that calls borrow. They may go back as soon as a call has enqueued its work: a wait means the event
// as it was recorded when the wait was enqueued.
struct Pool {
  std::mutex guard;
  std::vector<cudaStream_t> streams[kDevices];
  std::vector<cudaEvent_t> events[kDevices];
};

inline Pool& pool() {
  static Pool* one = new Pool;  // never destroyed: the driver may be gone before static destructors run
  return *one;
}

// Whether a stream is being recorded into a CUDA graph. One that cannot be asked may be, and the status says why.
inline int is_captured(cudaStream_t asked, bool* found) {
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  const int status = check(cudaStreamIsCapturing(asked, &state), "the stream cannot be asked");
  *found = status || state != cudaStreamCaptureStatusNone;
  return status;
}

class CallState {
 public:
  explicit CallState(cudaStream_t caller) : caller_(caller) {}
  ~CallState() {
    std::lock_guard<std::mutex> lock(pool().guard);
    auto& streams = pool().streams[device % kDevices];
    auto& events = pool().events[device % kDevices];
    streams.insert(streams.end(), streams_.begin(), streams_.end());
    for (const auto& entry : events_) events.push_back(entry.second);
  }

  // Whether this call is being recorded into a CUDA graph.
  bool captured() const {
    bool found;
    is_captured(caller_, &found);
    return found;
  }

  int get(int64_t number, cudaStream_t* found) {
    *found = caller_;
    if (number <= 0) return 0;
    while (int64_t(streams_.size()) < number) {
      cudaStream_t one = nullptr;
      RUN(borrow(&one));
      streams_.push_back(one);
    }
    *found = streams_[size_t(number - 1)];
    return 0;
  }

  int record(int64_t number) {
    cudaEvent_t& event = events_[number];
    if (event == nullptr) RUN(borrow(&event));
    return check(cudaEventRecord(event, stream), "an event cannot be recorded");
  }

  int wait(int64_t number) {
    const auto found = events_.find(number);
    if (found == events_.end()) return 0;
    return check(cudaStreamWaitEvent(stream, found->second, 0), "an event cannot be waited for");
  }

  int fork(int64_t count) {
    RUN(record(-1));
    const cudaStream_t here = stream;
    for (int64_t i = 1; i <= count; ++i) {
      cudaStream_t other;
      RUN(get(i, &other));
      if (other == here) continue;
      RUN(check(cudaStreamWaitEvent(other, events_[-1], 0), "fork"));
    }
    return 0;
  }

  int join(int64_t count) {
    const cudaStream_t here = stream;
    for (int64_t i = 1; i <= count; ++i) {
      cudaStream_t other;
      RUN(get(i, &other));
      if (other == here) continue;
      stream = other;
      const int status = record(-1 - i);
      stream = here;
      RUN(status);
      RUN(wait(-1 - i));
    }
    return 0;
  }

 private:
  int borrow(cudaStream_t* found) {
    std::lock_guard<std::mutex> lock(pool().guard);
    auto& free = pool().streams[device % kDevices];
    for (size_t i = free.size(); i-- > 0;) {
      // A stream that is part of somebody's unfinished graph would drag this call into it.
      bool busy;
      is_captured(free[i], &busy);
      if (busy) continue;
      *found = free[i];
      free.erase(free.begin() + std::ptrdiff_t(i));
      return 0;
    }
    return check(cudaStreamCreateWithFlags(found, cudaStreamNonBlocking), "no more streams");
  }

  int borrow(cudaEvent_t* found) {
    std::lock_guard<std::mutex> lock(pool().guard);
    auto& free = pool().events[device % kDevices];
    if (free.empty()) return check(cudaEventCreateWithFlags(found, cudaEventDisableTiming), "no more events");
    *found = free.back();
    free.pop_back();
    return 0;
  }

  cudaStream_t caller_;
  std::vector<cudaStream_t> streams_;
  std::unordered_map<int64_t, cudaEvent_t> events_;
};

// What is enqueued during its life goes to an internal stream.
class OnStream {
 public:
  OnStream(CallState& state, int64_t number) : before_(stream) {
    cudaStream_t other;
    status = state.get(number, &other);
    if (status == 0) status = use_stream(other);
  }
  ~OnStream() { use_stream(before_); }
  int status;

 private:
  cudaStream_t before_;
};

}  // namespace host

// For TVM's wrappers, which are written for nvcc: that has this as a template for functions.
template <typename... Params>
static cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
  return host::set_attribute((const void*)kernel, attribute, value);
}
