/* The part of the CUDA runtime that a host program uses, on the CPU, for tests without a GPU: "GPU memory" is malloc's,
   copies happen at once, and every operation on a stream is written to a log.

   FAKE_GPUS: their compute capabilities, "90,80"; none if unset. FAKE_STATE: "hang": streams never end; "capture": they
   are being captured; "fault": they end with an error. FAKE_BLOCKS: of a kernel, on a multiprocessor, at most (2).
   FAKE_AT_ONCE: a kernel has run when its launch returns; else when something else happens.
   FAKE_ORDER: streams run at last when somebody waits for them, in an order that events alone restrict. "early": as much
   as possible of the stream that was made first, the caller's; "late": of the last one; a number: at random, by turns. */
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

/* What waits: a record happens when it is reached, a wait is over when the record that it means has happened. */
enum { STREAMS = 64, EVENTS = 4096 };
enum { RUN, RECORD, WAIT };
struct Work {
  struct Work* next;
  int kind;
  long record; /* its number */
  struct Ahead { int (*run)(void*); int opens; } ahead;
  int (*run)(void*);
  void* closure;
};
static struct Queue {
  long stream;
  struct Work *first, *last;
} queues[STREAMS];
static long newest[EVENTS], records; /* of each event the number of its last record, from 1 on */
static char* happened;
static int queue_count;
static unsigned seed;
static cudaError_t status; /* of what has run */

static struct Work* put(cudaStream_t stream, int kind, long record, int (*run)(void*), void* closure) {
  int at = 0;
  while (at < queue_count && queues[at].stream != (long)stream) ++at;
  if (at == queue_count) queues[queue_count++] = (struct Queue){(long)stream, NULL, NULL};
  struct Work* work = malloc(sizeof *work);
  *work = (struct Work){NULL, kind, record, {NULL, 0}, run, closure};
  if (queues[at].first) queues[at].last->next = work;
  else queues[at].first = work;
  return queues[at].last = work;
}

static int ready(const struct Queue* queue) {
  return queue->first && (queue->first->kind != WAIT || happened[queue->first->record]);
}

static int chosen(const char* order) {
  int found = -1, count = 0, early = order && !strcmp(order, "early"), late = order && !strcmp(order, "late");
  for (int i = 0; i < queue_count; ++i) {
    if (!ready(&queues[i])) continue;
    seed = seed * 1664525u + 1013904223u;
    const int better = early ? queues[i].stream < queues[found < 0 ? i : found].stream
                       : late ? queues[i].stream > queues[found < 0 ? i : found].stream
                              : (seed >> 8) % (unsigned)++count == 0;
    if (found < 0 || better) found = i;
  }
  return found;
}

/* Programmatic dependent launch: what kernels do before they wait for the one before them happens before it, if it lets
   them begin (`opens`). What begins so says whether it lets the next one begin before it has waited itself. */
static void run_ahead(const struct Work* work) {
  int open = work->ahead.opens;
  while (open && (work = work->next) && work->ahead.run) open = work->ahead.run(work->closure);
}

/* Everything that waits. An error stays until somebody who waits is told. */
static cudaError_t flush(void) {
  const char* order = getenv("FAKE_ORDER");
  seed = order ? (unsigned)atoi(order) : 0;
  for (int at; (at = chosen(order)) >= 0;) {
    struct Work* work = queues[at].first;
    run_ahead(work);
    queues[at].first = work->next;
    if (work->kind == RECORD) happened[work->record] = 1;
    if (work->kind == RUN && work->run(work->closure)) status = cudaErrorLaunchFailure;
    free(work);
  }
  for (int i = 0; i < queue_count; ++i)
    if (queues[i].first) return cudaErrorUnknown; /* streams wait for each other */
  return status;
}

/* A kernel: in its turn, or before anything else happens. `run` frees its closure. ahead: of one that begins early, what
   it does before it waits. opens: it lets the next one begin early. */
LOGGED int fake_launch(cudaStream_t stream, int (*run)(void*), int (*ahead)(void*), int opens, void* closure) {
  static cudaStream_t last;
  const cudaError_t before = stream == last || getenv("FAKE_ORDER") ? cudaSuccess : flush();
  put(last = stream, RUN, 0, run, closure)->ahead = (struct Ahead){ahead, opens};
  return getenv("FAKE_AT_ONCE") ? flush() : before;
}
/* Now, or in its turn. */
static int enqueue(cudaStream_t stream, int (*run)(void*), void* closure) {
  if (getenv("FAKE_ORDER")) return put(stream, RUN, 0, run, closure), 0;
  const cudaError_t before = flush();
  const int own = run(closure);
  return before ? (int)before : own;
}

struct Bytes {
  void* to;
  const void* from;
  int value;
  size_t size;
};
static int move_bytes(void* closure) {
  struct Bytes* own = closure;
  if (own->from) memmove(own->to, own->from, own->size);
  else memset(own->to, own->value, own->size);
  return free(own), 0;
}
static cudaError_t enqueue_bytes(cudaStream_t stream, struct Bytes bytes) {
  struct Bytes* own = malloc(sizeof *own);
  return *own = bytes, (cudaError_t)enqueue(stream, move_bytes, own);
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
cudaError_t cudaFree(void* place) { return flush(), free(place), --allocated, cudaSuccess; }

cudaError_t cudaMemsetAsync(void* place, int value, size_t size, cudaStream_t stream) {
  note("set", stream, (long)size);
  return enqueue_bytes(stream, (struct Bytes){place, NULL, value, size});
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  note(kind == cudaMemcpyDeviceToDevice ? "copy" : "transfer", stream, (long)size);
  return size ? enqueue_bytes(stream, (struct Bytes){to, from, 0, size}) : cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  (void)flags;
  return *stream = (cudaStream_t)(long)(100 + streams++), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  return *event = (cudaEvent_t)(long)(1000 + events++), cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  note("record", stream, (long)event);
  if (!getenv("FAKE_ORDER")) return flush();
  happened = realloc(happened, (size_t)records + 2);
  happened[++records] = 0;
  newest[(long)event % EVENTS] = records;
  return put(stream, RECORD, records, NULL, NULL), cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  note("wait", stream, (long)event);
  if (!getenv("FAKE_ORDER")) return flush();
  if (newest[(long)event % EVENTS]) put(stream, WAIT, newest[(long)event % EVENTS], NULL, NULL);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  (void)stream;
  *status = state_is("capture") ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
static cudaError_t end(void) {
  const cudaError_t found = flush();
  status = cudaSuccess;
  if (found) return found;
  return state_is("fault") ? cudaErrorIllegalAddress : state_is("hang") ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return (void)stream, end(); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return (void)stream, state_is("hang") ? flush() : end(); }
cudaError_t cudaDeviceSynchronize(void) { return flush(); }

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
static int room(void) {
  const char* blocks = getenv("FAKE_BLOCKS");
  return blocks ? atoi(blocks) : 2;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads, size_t shared) {
  (void)kernel, (void)threads, (void)shared;
  return *blocks = room(), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config) {
  (void)kernel;
  return *clusters = 132 * room() / (int)config->attrs[0].val.clusterDim.x, cudaSuccess;
}
__attribute__((weak)) cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  (void)arguments;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeCooperative) note("cooperative", config->stream, 1);
  return note((const char*)kernel, config->stream, (long)config->gridDim.x), cudaSuccess;
}
