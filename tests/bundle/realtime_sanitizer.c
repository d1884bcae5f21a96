/* Calls of any network inside of a section in which clang's realtime sanitizer ends the process at the first call that
   may wait: a step of one row and of ROWS, a sequence, those that check nothing, and a generated one, all of which were
   reserved. With an argument: one malloc there, which it must find.

   -DARRAYS: float x[..], ..., of STEPS steps of one row; -DSTATES, -DGIVEN: the arrays as functions take them; -DUNCHECKED:
   there are such; -DGENERATED: what far_generate takes of one row, -DTOKEN: the kind of its y. */
#include <stdio.h>
#include <stdlib.h>

#include "far.h"

#define SEVERAL(...) , ##__VA_ARGS__
enum { ROWS = 4, REPEATS = 20 };

void __rtsan_realtime_enter(void);
void __rtsan_realtime_exit(void);

static ARRAYS;
#ifdef GENERATED
static TOKEN generated[STEPS * FAR_Y_PER_ROW];
static int64_t length;
#endif

static int calls(far *handle) {
  int failed = 0;
  for (int i = 0; i < REPEATS; ++i) {
#ifdef GENERATED
    failed |= far_generate(handle, STEPS, 1, GENERATED);
#else
    failed |= far_step(handle, 1, GIVEN, y);
    failed |= far_step(handle, ROWS, GIVEN, y);
    failed |= far_sequence(handle, STEPS, 1, GIVEN, y, NULL, NULL);
    failed |= far_sequence(handle, STEPS / ROWS, ROWS, GIVEN, y, NULL, NULL);
#ifdef UNCHECKED
    far_step_unchecked(handle, GIVEN, y);
    failed |= far_sequence_unchecked(handle, STEPS, GIVEN, y);
#endif
#endif
  }
  return failed;
}

int main(int argc, char **argv) {
  far *handle;
  int failed = 0;
  (void)argv;
  if (far_open(NULL, &handle) || far_reserve(handle, STEPS, ROWS) || far_init_state(handle, 1 SEVERAL(STATES)))
    return puts(far_error()), 1;
  __rtsan_realtime_enter();
  if (argc > 1) *(void *volatile *)&handle = malloc(1);
  else failed = calls(handle);
  __rtsan_realtime_exit();
  puts(failed ? far_error() : "calls");
  return failed;
}
