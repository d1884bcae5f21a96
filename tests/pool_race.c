/* A program for gcc's thread sanitizer: threads launch through the pool of pool.c, with pauses, failures and
   nesting, while it grows. argv[1]: how many threads; argv[2]: how many launches each. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>

typedef struct { void* sync_handle; int32_t num_task; } TVMParallelGroupEnv;
typedef int (*Body)(int task_id, TVMParallelGroupEnv* env, void* data);
void* __TVMBackendParallelLaunch = 0; /* as generated code has it */
int tvm_rnn_pool_use(int threads);
int __tvm_ffi_pool_resize(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

static int launch(Body body, void* data, int num_task) {
  return ((int (*)(Body, void*, int))__TVMBackendParallelLaunch)(body, data, num_task);
}

static int body(int task, TVMParallelGroupEnv* env, void* data) {
  int64_t* sums = (int64_t*)data; /* plain memory: the launch must order it */
  sums[task] += task + 1;
  if (sums[8] && task == 1) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "as told");
    return -1;
  }
  return 0;
}

static int launches;

static void* work(void* argument) {
  int64_t sums[9]; /* the last tells task 1 to fail */
  for (int i = 0; i < launches; ++i) {
    memset(sums, 0, sizeof sums);
    int64_t fail = sums[8] = i % 50 == 7;
    tvm_rnn_pool_use(1 + i % 4);
    int status = launch(body, sums, 8);
    tvm_rnn_pool_use(1);
    if (status) {
      TVMFFIObjectHandle error = 0;
      TVMFFIErrorMoveFromRaised(&error);
      if (!error || !fail) return (void*)"no error object, or an error that nobody made";
      TVMFFIObjectDecRef(error);
    } else if (fail) {
      return (void*)"the error is lost";
    }
    for (int task = 0; task < 8; ++task)
      if (sums[task] != task + 1) return (void*)"a task did not run once";
    if (i % 100 == 0) usleep(200);
  }
  return 0;
}

static int resize(int threads) {
  TVMFFIAny size, result;
  memset(&size, 0, sizeof size);
  size.type_index = kTVMFFIInt;
  size.v_int64 = threads;
  return __tvm_ffi_pool_resize(0, &size, 1, &result);
}

int main(int argc, char** argv) {
  enum { MOST = 64 };
  pthread_t others[MOST];
  int callers = argc > 2 ? atoi(argv[1]) : 2;
  launches = argc > 2 ? atoi(argv[2]) : 3000;
  if (callers > MOST || resize(4)) return 2;
  for (int i = 1; i < callers; ++i) pthread_create(&others[i], 0, work, 0);
  for (int i = 5; i < 9; ++i)
    if (resize(i) || usleep(1000)) return 2;
  const char* said = (const char*)work(0);
  for (int i = 1; i < callers; ++i) {
    void* own = 0;
    pthread_join(others[i], &own);
    if (own) said = (const char*)own;
  }
  if (said) printf("%s\n", said);
  return said ? 1 : 0;
}
