/* What a compiled module needs of tvm_ffi, so that it also runs where that is not: linked into every .so for a CPU.

   In: calls of generated code and of pool.c, which raise errors and look global functions up. Out: where libtvm_ffi is in
   the process (Python), its own functions are called. Where it is not, errors become a text of the thread that met them,
   which tvm_rnn_last_error gives out, and there are no global functions. All of it is hidden in the .so: a program may
   load libtvm_ffi beside it, sooner or later. C11 with GNU extensions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TVM_FFI_DLL __attribute__((visibility("hidden")))
#define TVM_FFI_DLL_EXPORT
#include <tvm/ffi/c_api.h>

#include "raised.h"

/* One row per function: its name there, and its type. */
#define FUNCTIONS(ROW)                                                                                  \
  ROW(ErrorMoveFromRaised, void, (TVMFFIObjectHandle*))                                                 \
  ROW(ErrorSetRaised, void, (TVMFFIObjectHandle))                                                       \
  ROW(ErrorSetRaisedFromCStr, void, (const char*, const char*))                                         \
  ROW(ErrorSetRaisedFromCStrParts, void, (const char*, const char**, int32_t))                          \
  ROW(FunctionCall, int, (TVMFFIObjectHandle, TVMFFIAny*, int32_t, TVMFFIAny*))                         \
  ROW(FunctionCreate, int, (void*, TVMFFISafeCallType, void (*)(void*), TVMFFIObjectHandle*))           \
  ROW(FunctionGetGlobal, int, (const TVMFFIByteArray*, TVMFFIObjectHandle*))                            \
  ROW(FunctionSetGlobal, int, (const TVMFFIByteArray*, TVMFFIObjectHandle, int))                        \
  ROW(ObjectDecRef, int, (TVMFFIObjectHandle))

#define POINTER(name, kind, arguments) kind(*name) arguments;
static struct { FUNCTIONS(POINTER) } there; /* libtvm_ffi's; all null where it is not */

static __thread char raised[MOST_TEXT]; /* touched by errors alone: the first time may take memory */

/* Before pool.c's constructor, which looks for the process's pool. */
__attribute__((constructor(101))) static void find(void) {
  int missing = 0;
#define FIND(name, kind, arguments) \
  missing |= !(*(void**)&there.name = dlsym(RTLD_DEFAULT, "TVMFFI" #name));
  FUNCTIONS(FIND)
  if (missing) memset(&there, 0, sizeof there);
}

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  if (there.ErrorSetRaisedFromCStrParts) {
    there.ErrorSetRaisedFromCStrParts(kind, parts, count);
    return;
  }
  raise_parts(raised, kind, parts, count);
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  if (there.ErrorSetRaisedFromCStr) there.ErrorSetRaisedFromCStr(kind, message);
  else TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

/* The pool takes an error from a worker's thread to the launching one; here it is a copy of the text. */
void TVMFFIErrorMoveFromRaised(TVMFFIObjectHandle* result) {
  if (there.ErrorMoveFromRaised) {
    there.ErrorMoveFromRaised(result);
    return;
  }
  *result = raised[0] ? strdup(raised) : 0;
  raised[0] = 0;
}

void TVMFFIErrorSetRaised(TVMFFIObjectHandle error) {
  if (there.ErrorSetRaised) {
    there.ErrorSetRaised(error);
    return;
  }
  raised[0] = 0;
  append(raised, (const char*)error);
}

int TVMFFIObjectDecRef(TVMFFIObjectHandle object) {
  if (there.ObjectDecRef) return there.ObjectDecRef(object);
  free(object);
  return 0;
}

int TVMFFIFunctionCall(TVMFFIObjectHandle function, TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return there.FunctionCall ? there.FunctionCall(function, args, count, result) : -1;
}

int TVMFFIFunctionCreate(void* self, TVMFFISafeCallType call, void (*deleter)(void*), TVMFFIObjectHandle* out) {
  return there.FunctionCreate ? there.FunctionCreate(self, call, deleter, out) : -1;
}

int TVMFFIFunctionGetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle* out) {
  *out = 0;
  return there.FunctionGetGlobal ? there.FunctionGetGlobal(name, out) : 0;
}

int TVMFFIFunctionSetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle function, int allow_override) {
  return there.FunctionSetGlobal ? there.FunctionSetGlobal(name, function, allow_override) : -1;
}

/* The text of this thread's error, which is forgotten; "" where there is none. */
__attribute__((visibility("default"))) void tvm_rnn_last_error(char* text, int64_t size) {
  const char* found = raised;
  int64_t length = 0;
  TVMFFIObjectHandle error = 0;
  if (there.ErrorMoveFromRaised) {
    there.ErrorMoveFromRaised(&error);
    TVMFFIByteArray message = {"", 0};
    if (error) message = ((TVMFFIErrorCell*)((char*)error + sizeof(TVMFFIObject)))->message;
    found = message.data;
    length = (int64_t)message.size;
  } else {
    length = (int64_t)strlen(raised);
  }
  if (size < 1) return;
  if (length > size - 1) length = size - 1;
  memcpy(text, found, (size_t)length);
  text[length] = 0;
  if (error) there.ObjectDecRef(error);
  else if (found == raised) raised[0] = 0;
}
