/* A program for gcc's thread sanitizer: two threads launch through the pool of pool.c, with pauses, failures, nesting. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
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

static void* work(void* argument) {
  int64_t sums[9]; /* the last tells task 1 to fail */
  for (int i = 0; i < 3000; ++i) {
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

int main(void) {
  TVMFFIAny size, result;
  memset(&size, 0, sizeof size);
  size.type_index = kTVMFFIInt;
  size.v_int64 = 4;
  if (__tvm_ffi_pool_resize(0, &size, 1, &result)) return 2;
  pthread_t other;
  void* said = 0;
  pthread_create(&other, 0, work, 0);
  void* here = work(0);
  pthread_join(other, &said);
  if (here || said) printf("%s\n", (const char*)(here ? here : said));
  return here || said ? 1 : 0;
}
