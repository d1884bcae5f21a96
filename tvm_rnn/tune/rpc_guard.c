/* What tuning loads first on a device of TVM's RPC tracker, so that no candidate takes the device with it.

   In: calls from tune_rpc_worker.py, before the files of candidates are loaded. Out: a process that ends with exit code
   0 where generated code crashes, or takes longer than it may. TVM's server runs each session in a process of its own,
   and stops listening, for good, where one ends with any other code (tvm/rpc/server.py, _serving); one that ends with 0
   it takes for a client that has left, and tells the tracker that it is free. C11 with GNU extensions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
#define ARGUMENTS UNUSED void *self, UNUSED const TVMFFIAny *args, UNUSED int32_t count, UNUSED TVMFFIAny *result

static char stack[1 << 16]; /* a crash may have used up the other one */

static void leave(UNUSED int number) { _exit(0); }

static int refuse(const char* expected) {
  TVMFFIErrorSetRaisedFromCStr("TypeError", expected);
  return -1;
}

/* guard_install(): from here on a fatal signal ends the process in order. */
EXPORT int __tvm_ffi_guard_install(ARGUMENTS) {
  static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
  stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_handler = leave, .sa_flags = SA_ONSTACK};
  sigaltstack(&other, 0);
  for (size_t i = 0; i < sizeof fatal / sizeof *fatal; ++i) sigaction(fatal[i], &action, 0);
  return 0;
}

/* guard_arm(seconds): the process ends unless it is armed anew by then; 0: it has all the time. */
EXPORT int __tvm_ffi_guard_arm(ARGUMENTS) {
  if (count != 1 || args[0].type_index != kTVMFFIInt) return refuse("guard_arm takes seconds");
  alarm((unsigned)args[0].v_int64);
  return 0;
}

/* guard_clear(array): zeros in all of it, which need not travel. */
EXPORT int __tvm_ffi_guard_clear(ARGUMENTS) {
  if (count != 1 || args[0].type_index != kTVMFFIDLTensorPtr) return refuse("guard_clear takes an array");
  const DLTensor* array = (const DLTensor*)args[0].v_ptr;
  size_t bytes = array->dtype.bits / 8;
  for (int i = 0; i < array->ndim; ++i) bytes *= (size_t)array->shape[i];
  memset((char*)array->data + array->byte_offset, 0, bytes);
  return 0;
}
