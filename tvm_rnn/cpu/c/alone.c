/* What a compiled module needs of tvm_ffi and of pool.c where it is linked to a program of one thread, without a loader.

   In: calls of generated code. Out: errors become a text, which tvm_rnn_last_error gives out; the tasks of a parallel loop
   run one after the other. C11 with GNU extensions. */
#include <stdint.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

#include "raised.h"

typedef struct { void* sync_handle; int32_t num_task; } TVMParallelGroupEnv;
typedef int (*Body)(int task_id, TVMParallelGroupEnv* env, void* data);

/* Present only where the generated code has a parallel loop. */
extern __attribute__((weak)) void* __TVMBackendParallelLaunch;

static char raised[MOST_TEXT];

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  raise_parts(raised, kind, parts, count);
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

/* The text of the last error, which is forgotten; "" where there is none. */
void tvm_rnn_last_error(char* text, int64_t size) {
  if (size < 1) return;
  size_t length = strlen(raised);
  if (length > (size_t)size - 1) length = (size_t)size - 1;
  memcpy(text, raised, length);
  text[length] = raised[0] = 0;
}

static int launch(Body body, void* data, int tasks) {
  TVMParallelGroupEnv env = {0, tasks < 1 ? 1 : tasks};
  int status = 0;
  for (int i = 0; i < env.num_task && !status; ++i) status = body(i, &env, data);
  return status;
}

int tvm_rnn_pool_use(int threads) {
  (void)threads;
  return 1;
}

int tvm_rnn_look(void) { return 0; }

#define ARGUMENTS void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result

static int answer(TVMFFIAny* result, int64_t value) {
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
  return 0;
}

int __tvm_ffi_pool_install(ARGUMENTS) {
  (void)self, (void)args, (void)count;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void*)launch;
  return answer(result, 1);
}

int __tvm_ffi_pool_size(ARGUMENTS) {
  (void)self, (void)args, (void)count;
  return answer(result, 1);
}

int __tvm_ffi_pool_resize(ARGUMENTS) {
  (void)self, (void)args, (void)count;
  return answer(result, 1);
}
