/* Two threads with handles of their own that use several threads each, then a fork: all get the same results. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lstm.h"

enum { STEPS = 40, BATCH = 4 };
static float x[STEPS * BATCH * LSTM_X_PER_ROW], expected[STEPS * BATCH * LSTM_Y_PER_ROW];

static int sequence(lstm *handle, float *y) {
  float h[BATCH * LSTM_H_PER_ROW], c[BATCH * LSTM_C_PER_ROW];
  return lstm_init_state(handle, BATCH, h, c) || lstm_sequence(handle, STEPS, BATCH, x, h, c, y, NULL, NULL);
}

static void *work(void *from) {
  lstm *own;
  static float results[2][STEPS * BATCH * LSTM_Y_PER_ROW];
  static int number;
  float *y = results[__atomic_fetch_add(&number, 1, __ATOMIC_RELAXED)];
  if (lstm_share(from, &own) || lstm_set_threads(own, 2)) return "cannot share";
  for (int i = 0; i < 50; ++i)
    if (sequence(own, y) || memcmp(y, expected, sizeof expected)) return "differs";
  lstm_close(own);
  return 0;
}

int main(void) {
  lstm *handle;
  pthread_t threads[2];
  void *said;
  int status = 1;
  static float y[STEPS * BATCH * LSTM_Y_PER_ROW];
  for (size_t i = 0; i < sizeof x / sizeof *x; ++i) x[i] = (float)(i % 17) / 8 - 1;
  if (lstm_open(NULL, &handle) || sequence(handle, expected)) return 1;
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], 0, work, handle);
  for (int i = 0; i < 2; ++i) {
    pthread_join(threads[i], &said);
    if (said) return puts(said), 1;
  }
  if (lstm_set_threads(handle, 2) || sequence(handle, y)) return 1;
  if (!fork()) _exit(sequence(handle, y) || memcmp(y, expected, sizeof expected));
  if (wait(&status) < 0 || status) return puts("the child differs"), 1;
  puts("same");
  lstm_close(handle);
  return 0;
}
