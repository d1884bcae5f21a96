/* A module's functions written by hand, for tests of the runtime and of the pool without the compiler.

   The cell: h = in + decay * h, where `in` is x (+ a) for the first layer and the h below for the others. With EXTRA
   there are a second input, a scalar a, and a second state m that counts: m += layer + 1, of shape [2 + layer].
   Compile with -DREAL= -DLAYERS= -DDIRECTIONS= -DEXTRA= -DH=; two directions only with one layer.

   `sequence` also checks what the runtime promises: flat arrays, alignment, sizes, no overlap of states. `probe` runs
   parallel loops for the tests of pool.c. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define ARGUMENTS void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result
#define CHECK(condition) \
  if (!(condition)) return raise_error("tiny_cell: not so: " #condition)

typedef struct { void* sync_handle; int32_t num_task; } TVMParallelGroupEnv;
typedef int (*Body)(int task_id, TVMParallelGroupEnv* env, void* data);
void* __TVMBackendParallelLaunch = 0; /* as generated code has it */
int tvm_rnn_pool_use(int threads);

static int raise_error(const char* text) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
  return -1;
}

static int launch(Body body, void* data, int num_task) {
  return ((int (*)(Body, void*, int))__TVMBackendParallelLaunch)(body, data, num_task);
}

static const DLTensor* tensor(const TVMFFIAny* any) {
  if (any->type_index == kTVMFFIDLTensorPtr) return (const DLTensor*)any->v_ptr;
  return (const DLTensor*)((const char*)any->v_obj + sizeof(TVMFFIObject));
}

static char* data_of(const TVMFFIAny* any) { return (char*)tensor(any)->data + tensor(any)->byte_offset; }

static int is_flat(const TVMFFIAny* any, int64_t size, int bits) {
  const DLTensor* t = tensor(any);
  return t->ndim == 1 && t->shape[0] >= size && (t->shape[0] < 2 || !t->strides || t->strides[0] == 1) &&
         t->dtype.bits == bits && (uintptr_t)data_of(any) % (bits / 8) == 0;
}

enum { FIXED = 7, PER_ROW = 3, PER_TILE_ROW = 5, PER_SEQUENCE_ROW = 2, M_SIZE = 2 * LAYERS + LAYERS * (LAYERS - 1) / 2 };
#define H0 ((REAL)0.5)

struct call {
  int64_t T, B, has_lengths, has_reset;
  const REAL *x, *a, *h_in, *m_in, *packed;
  REAL *y, *h_out, *m_out;
  const int64_t* lengths;
  const uint8_t* reset;
};

static void run_row(const struct call* c, int64_t b, int d) {
  int64_t length = c->has_lengths ? c->lengths[b] : c->T;
  REAL h[LAYERS][H];
  REAL m[M_SIZE + 1] = {0};
  for (int l = 0; l < LAYERS; ++l) memcpy(h[l], c->h_in + ((l * DIRECTIONS + d) * c->B + b) * H, sizeof h[l]);
  for (int l = 0, at = 0; EXTRA && l < LAYERS; at += 2 + l++)
    memcpy(m + at, c->m_in + at * c->B + b * (2 + l), (2 + l) * sizeof(REAL));
  for (int64_t t = length; t < c->T; ++t) memset(c->y + ((t * c->B + b) * DIRECTIONS + d) * H, 0, sizeof h[0]);
  for (int64_t s = 0; s < length; ++s) {
    int64_t t = d ? length - 1 - s : s, marker = d ? t + 1 : t;
    int again = c->has_reset && marker < c->T && c->reset[marker * c->B + b];
    for (int l = 0, at = 0; l < LAYERS; at += 2 + l++) {
      for (int j = 0; j < H; ++j) {
        REAL in = l ? h[l - 1][j] : c->x[(t * c->B + b) * H + j] + (EXTRA ? c->a[t * c->B + b] : 0);
        h[l][j] = in + c->packed[(l * DIRECTIONS + d) * H + j] * (again ? H0 : h[l][j]);
      }
      for (int j = 0; EXTRA && j < 2 + l; ++j) m[at + j] = (again ? 0 : m[at + j]) + l + 1;
    }
    memcpy(c->y + ((t * c->B + b) * DIRECTIONS + d) * H, h[LAYERS - 1], sizeof h[0]);
  }
  for (int l = 0; l < LAYERS; ++l) memcpy(c->h_out + ((l * DIRECTIONS + d) * c->B + b) * H, h[l], sizeof h[l]);
  for (int l = 0, at = 0; EXTRA && l < LAYERS; at += 2 + l++)
    memcpy(c->m_out + at * c->B + b * (2 + l), m + at, (2 + l) * sizeof(REAL));
}

static int run_rows(int task, TVMParallelGroupEnv* env, void* data) {
  const struct call* c = (const struct call*)data;
  for (int64_t b = task; b < c->B; b += env->num_task)
    for (int d = 0; d < DIRECTIONS; ++d) run_row(c, b, d);
  return 0;
}

EXPORT int __tvm_ffi_sequence(ARGUMENTS) {
  enum { BITS = 8 * sizeof(REAL), X = 6, A = X + 1, Y = X + 1 + EXTRA, IN = Y + 1, OUT = IN + 1 + EXTRA,
         LENGTHS = OUT + 1 + EXTRA, RESET, PACKED, WORKSPACE, END };
  CHECK(count == END);
  int64_t T = args[0].v_int64, B = args[1].v_int64, n = args[2].v_int64, rows = T * B;
  int64_t elements = FIXED + PER_ROW * B + PER_TILE_ROW * n * B + PER_SEQUENCE_ROW * rows, h_size = LAYERS * DIRECTIONS * B * H;
  struct call c = {T, B, args[4].v_int64, args[5].v_int64, (REAL*)data_of(&args[X]), EXTRA ? (REAL*)data_of(&args[A]) : 0,
                   (REAL*)data_of(&args[IN]), (REAL*)data_of(&args[IN + EXTRA]), (REAL*)data_of(&args[PACKED]),
                   (REAL*)data_of(&args[Y]), (REAL*)data_of(&args[OUT]), (REAL*)data_of(&args[OUT + EXTRA]),
                   (int64_t*)data_of(&args[LENGTHS]), (uint8_t*)data_of(&args[RESET])};
  CHECK(T >= 1 && B >= 1 && n >= 1 && n <= T && args[3].v_int64 >= 1);
  CHECK(is_flat(&args[X], rows * H, BITS) && is_flat(&args[Y], rows * DIRECTIONS * H, BITS));
  CHECK(!EXTRA || (is_flat(&args[A], rows, BITS) && is_flat(&args[IN + EXTRA], M_SIZE * B, BITS)));
  CHECK(is_flat(&args[IN], h_size, BITS) && is_flat(&args[OUT], h_size, BITS));
  CHECK(c.h_in + h_size <= c.h_out || c.h_out + h_size <= c.h_in);
  CHECK(is_flat(&args[LENGTHS], c.has_lengths ? B : 1, 64) && is_flat(&args[RESET], c.has_reset ? rows : 1, 8));
  CHECK(is_flat(&args[PACKED], LAYERS * DIRECTIONS * H, BITS) && (uintptr_t)c.packed % 64 == 0);
  CHECK(is_flat(&args[WORKSPACE], elements, BITS) && (uintptr_t)data_of(&args[WORKSPACE]) % 64 == 0);
  memset(data_of(&args[WORKSPACE]), 0xab, elements * sizeof(REAL));
  memset(result, 0, sizeof *result);
  tvm_rnn_pool_use((int)args[3].v_int64);
  int status = launch(run_rows, &c, 0);
  tvm_rnn_pool_use(1);
  return status;
}

static int pack(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  CHECK(count == 3 && is_flat(&args[0], H, 8 * sizeof(REAL)));
  memcpy((REAL*)data_of(&args[1]) + args[2].v_int64, data_of(&args[0]), H * sizeof(REAL));
  memset(result, 0, sizeof *result);
  return 0;
}

EXPORT int __tvm_ffi_pack_0(ARGUMENTS) { return pack(args, count, result); }
EXPORT int __tvm_ffi_pack_1(ARGUMENTS) { return pack(args, count, result); }

struct probe {
  int runs[1024], tasks, fail, nested, microseconds;
  pthread_t threads[1024];
};

static int probe_inner(int task, TVMParallelGroupEnv* env, void* data) {
  return __atomic_fetch_add((int*)data, env->num_task == 1 ? 1 : 1000, __ATOMIC_RELAXED) < 0;
}

static int probe_body(int task, TVMParallelGroupEnv* env, void* data) {
  struct probe* p = (struct probe*)data;
  struct timespec begin, now;
  int inner = 0;
  p->tasks = env->num_task;
  p->threads[task] = pthread_self();
  __atomic_fetch_add(&p->runs[task], 1, __ATOMIC_RELAXED);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < p->microseconds);
  if (p->nested && (launch(probe_inner, &inner, 0) || inner != 1)) return raise_error("nested launch is not serial");
  return task == p->fail ? raise_error("task failed as told") : 0;
}

static int ran; /* tasks of the last probe */

/* probe(threads, num_task, fail, nested, microseconds) -> 1000 * tasks + the number of different threads they ran on */
EXPORT int __tvm_ffi_probe(ARGUMENTS) {
  struct probe p = {{0}, 0, (int)args[2].v_int64, (int)args[3].v_int64, (int)args[4].v_int64, {0}};
  int different = 0;
  ran = 0;
  tvm_rnn_pool_use((int)args[0].v_int64);
  int status = launch(probe_body, &p, (int)args[1].v_int64);
  tvm_rnn_pool_use(1);
  for (int i = 0; i < p.tasks; ++i) ran += p.runs[i];
  if (status) return status;
  for (int i = 0; i < p.tasks; ++i) {
    int known = 0;
    CHECK(p.runs[i] == 1);
    for (int k = 0; k < i; ++k) known |= pthread_equal(p.threads[k], p.threads[i]);
    different += !known;
  }
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = 1000 * p.tasks + different;
  return 0;
}

EXPORT int __tvm_ffi_probe_ran(ARGUMENTS) {
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = ran;
  return 0;
}
