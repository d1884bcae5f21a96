/* The text of an error that generated code raised: ffi.c has one for each thread, alone.c one.

   In: the parts that the code gives, and where the text goes. Out: one text, cut where it has no room. */
#ifndef TVM_RNN_RAISED_H
#define TVM_RNN_RAISED_H
#include <stdint.h>
#include <string.h>

enum { MOST_TEXT = 512 };

static void append(char* raised, const char* text) {
  size_t used = strlen(raised), more = text ? strlen(text) : 0;
  if (more > MOST_TEXT - 1 - used) more = MOST_TEXT - 1 - used;
  if (more) memcpy(raised + used, text, more);
  raised[used + more] = 0;
}

static void raise_parts(char* raised, const char* kind, const char** parts, int32_t count) {
  raised[0] = 0;
  append(raised, kind);
  append(raised, ": ");
  for (int32_t i = 0; i < count; ++i) append(raised, parts[i]);
}
#endif
