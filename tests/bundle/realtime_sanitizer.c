/* Steps of any network inside of a section in which clang's realtime sanitizer ends the process at the first call that
   may wait. With an argument: one malloc there, which it must find.

   -DARRAYS: float x[..], ...; -DSTATES, -DGIVEN: its arrays as its functions take them. */
#include <stdio.h>
#include <stdlib.h>

#include "far.h"

#define SEVERAL(...) , ##__VA_ARGS__

void __rtsan_realtime_enter(void);
void __rtsan_realtime_exit(void);

static ARRAYS;

int main(int argc, char **argv) {
  far *handle;
  int failed = 0;
  (void)argv;
  if (far_open(NULL, &handle) || far_init_state(handle, 1 SEVERAL(STATES))) return puts(far_error()), 1;
  __rtsan_realtime_enter();
  if (argc > 1) *(void *volatile *)&handle = malloc(1);
  else
    for (int i = 0; i < 1000; ++i) failed |= far_step(handle, 1, GIVEN, y);
  __rtsan_realtime_exit();
  puts(failed ? far_error() : "steps");
  return failed;
}
