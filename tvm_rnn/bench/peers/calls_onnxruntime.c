/* Time ONNX Runtime's C API, one call after the other, as a C program that serves a stream calls it.

   In, from the command line: its shared library, a model, how many calls are timed, the number of inputs; for each input
   its name, ONNX's number of its type, its shape (7x3; "-" of a scalar) and a file of its numbers; then names of outputs.
   Out: of each output its name and how many elements it has, then these, one a line; at last p50, p99 and p99.9 of the
   calls, as a bundle's example.c prints them. One thread. Outputs are made by the first call and written again by all
   others, which is the fastest way; or made by each call, where their shapes are not those that the model declares.

   The functions are looked up by their places in OrtApi, so no header is needed; version 1 of that table never changes.
   Source: https://github.com/microsoft/onnxruntime/blob/main/include/onnxruntime/core/session/onnxruntime_c_api.h */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GET_ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_SESSION_OPTIONS = 10, SET_THREADS = 24 };
enum { CREATE_TENSOR_WITH_DATA = 49, GET_DATA = 51, GET_ELEMENT_TYPE = 60, GET_COUNT = 64, GET_TYPE_AND_SHAPE = 65 };
enum { CREATE_CPU_MEMORY_INFO = 69, RELEASE_STATUS = 93, RELEASE_VALUE = 96 };
enum { WARNING = 2, DEVICE_ALLOCATOR = 0, DEFAULT_MEMORY = 0, MOST = 64 };
enum { FLOAT = 1, INT32 = 6, INT64 = 7, BOOL = 9, FLOAT16 = 10, DOUBLE = 11 };

typedef void (*Function)(void);
typedef void *Status;
typedef struct {
  const Function *(*get_api)(uint32_t);
  const char *(*get_version)(void);
} Base;

static const Function *api;

static void check(Status status) {
  if (!status) return;
  fprintf(stderr, "%s\n", ((const char *(*)(Status))api[GET_ERROR_MESSAGE])(status));
  exit(1);
}

static void refuse(const char *what, const char *which) {
  fprintf(stderr, "%s: %s\n", which, what);
  exit(1);
}

/* A tensor of all of a file. */
static void *tensor(const char *type, const char *shape, const char *path, void *info) {
  int64_t axes[8];
  size_t rank = 0;
  FILE *file = fopen(path, "rb");
  long bytes = -1;
  void *value = 0;
  for (const char *at = shape; *at >= '0' && *at <= '9' && rank < 8;) {
    char *end;
    axes[rank++] = strtoll(at, &end, 10);
    at = *end == 'x' ? end + 1 : end;
  }
  if (file && !fseek(file, 0, SEEK_END)) bytes = ftell(file);
  char *data = bytes < 0 ? 0 : malloc((size_t)bytes + 1);
  if (!data || fseek(file, 0, SEEK_SET) || fread(data, 1, (size_t)bytes, file) != (size_t)bytes)
    refuse("cannot be read", path);
  fclose(file);
  typedef Status (*Create)(void *, void *, size_t, const int64_t *, size_t, int, void **);
  check(((Create)api[CREATE_TENSOR_WITH_DATA])(info, data, (size_t)bytes, axes, rank, atoi(type), &value));
  return value;
}

static void print(const char *name, void *value) {
  typedef Status (*Get)(void *, void **);
  typedef Status (*Number)(void *, size_t *);
  typedef Status (*Kind)(void *, int *);
  void *shape = 0, *data = 0;
  size_t count = 0;
  int kind = 0;
  check(((Get)api[GET_TYPE_AND_SHAPE])(value, &shape));
  check(((Number)api[GET_COUNT])(shape, &count));
  check(((Kind)api[GET_ELEMENT_TYPE])(shape, &kind));
  check(((Get)api[GET_DATA])(value, &data));
  printf("%s %lu\n", name, (unsigned long)count);
  for (size_t i = 0; i < count; ++i) {
    if (kind == FLOAT) printf("%.9g\n", (double)((float *)data)[i]);
    else if (kind == FLOAT16) printf("%.9g\n", (double)((_Float16 *)data)[i]);
    else if (kind == DOUBLE) printf("%.17g\n", ((double *)data)[i]);
    else if (kind == INT64) printf("%lld\n", (long long)((int64_t *)data)[i]);
    else if (kind == INT32) printf("%d\n", (int)((int32_t *)data)[i]);
    else if (kind == BOOL) printf("%d\n", ((uint8_t *)data)[i]);
    else refuse("outputs of its type are not printed here", "an output");
  }
}

static int by_size(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void *session_of(const char *model) {
  void *env = 0, *options = 0, *session = 0;
  check(((Status(*)(int, const char *, void **))api[CREATE_ENV])(WARNING, "timing", &env));
  check(((Status(*)(void **))api[CREATE_SESSION_OPTIONS])(&options));
  check(((Status(*)(void *, int))api[SET_THREADS])(options, 1));
  check(((Status(*)(void *, const char *, void *, void **))api[CREATE_SESSION])(env, model, options, &session));
  return session;
}

int main(int argc, char **argv) {
  const char *names[MOST];
  void *inputs[MOST], *outputs[MOST] = {0}, *info = 0;
  if (argc < 6) refuse("LIBRARY MODEL CALLS INPUTS [NAME TYPE SHAPE FILE]... OUTPUT...", argv[0]);
  long calls = atol(argv[3]), given = atol(argv[4]), first = 5 + 4 * given, wanted = argc - first;
  if (given < 0 || given > MOST || wanted < 1 || wanted > MOST || calls < 1) refuse("too many or too few", argv[0]);
  void *library = dlopen(argv[1], RTLD_NOW);
  const Base *(*base)(void) = 0;
  if (library) *(void **)&base = dlsym(library, "OrtGetApiBase");
  if (!base || !(api = base()->get_api(1))) refuse("is not ONNX Runtime's library", argv[1]);
  void *session = session_of(argv[2]);
  check(((Status(*)(int, int, void **))api[CREATE_CPU_MEMORY_INFO])(DEVICE_ALLOCATOR, DEFAULT_MEMORY, &info));
  for (long i = 0; i < given; ++i) {
    char **own = argv + 5 + 4 * i;
    names[i] = own[0];
    inputs[i] = tensor(own[1], own[2], own[3], info);
  }
  typedef Status (*Run)(void *, void *, const char *const *, void *const *, size_t, const char *const *, size_t, void **);
  Run run = (Run)api[RUN];
  const char *const *ends = (const char *const *)argv + first;
  double *us = malloc((size_t)calls * sizeof *us);
  if (!us) refuse("no memory", argv[0]);
  check(run(session, 0, names, inputs, (size_t)given, ends, (size_t)wanted, outputs));
  for (long i = 0; i < wanted; ++i) print(ends[i], outputs[i]);
  void (*release_value)(void *) = (void (*)(void *))api[RELEASE_VALUE];
  Status refused = run(session, 0, names, inputs, (size_t)given, ends, (size_t)wanted, outputs);
  if (refused) ((void (*)(Status))api[RELEASE_STATUS])(refused);
  for (long i = 0; i < calls; ++i) {
    double start = now_us();
    for (long k = 0; refused && k < wanted; ++k) release_value(outputs[k]), outputs[k] = 0;
    check(run(session, 0, names, inputs, (size_t)given, ends, (size_t)wanted, outputs));
    us[i] = now_us() - start;
  }
  qsort(us, (size_t)calls, sizeof *us, by_size);
  printf("p50 %.2f us, p99 %.2f us, p99.9 %.2f us (%ld calls)\n", us[calls / 2], us[calls * 99 / 100],
         us[calls * 999 / 1000], calls);
  return 0;
}
