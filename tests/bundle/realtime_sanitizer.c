/* Steps inside of a section in which clang's realtime sanitizer ends the process at the first call that may wait. With
   an argument: one malloc there, which it must find. */
#include <stdio.h>
#include <stdlib.h>

#include "lstm.h"

void __rtsan_realtime_enter(void);
void __rtsan_realtime_exit(void);

int main(int argc, char **argv) {
  lstm *handle;
  float x[LSTM_X_PER_ROW] = {0}, h[LSTM_H_PER_ROW], c[LSTM_C_PER_ROW], y[LSTM_Y_PER_ROW];
  int failed = 0;
  (void)argv;
  if (lstm_open(NULL, &handle) || lstm_init_state(handle, 1, h, c)) return puts(lstm_error()), 1;
  __rtsan_realtime_enter();
  if (argc > 1) *(void *volatile *)&handle = malloc(1);
  else
    for (int i = 0; i < 1000; ++i) failed |= lstm_step(handle, 1, x, h, c, y);
  __rtsan_realtime_exit();
  puts(failed ? lstm_error() : "steps");
  return failed;
}
