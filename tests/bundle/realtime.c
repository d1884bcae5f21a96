/* Count what a step calls, or a call that generates: every function of the C library that takes memory or a lock, starts a thread or asks the
   system. They are replaced here, in the program, for the whole process; calls count while a thread is `watched`.

   Prints "steps: N", the calls in 2000 steps of fresh threads, and "control: 1" where one malloc was seen as such. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef GENERATES /* calls of the network of test_generate.py */
#include "tok.h"
#define OPEN(handle) tok_open(NULL, &handle) || tok_init_state(handle, 1, h)
#define CALL(handle) tok_generate(handle, 40, 1, NULL, 0, h, y, &length, NULL, 1, 0)
#define CLOSE tok_close
static tok *handle;
static float h[TOK_H_PER_ROW];
static int32_t y[40];
static int64_t length;
#else
#include "lstm.h"
#define OPEN(handle) lstm_open(NULL, &handle) || lstm_init_state(handle, 1, h, c)
#define CALL(handle) lstm_step(handle, 1, x, h, c, y)
#define CLOSE lstm_close
static lstm *handle;
static float x[LSTM_X_PER_ROW], h[LSTM_H_PER_ROW], c[LSTM_C_PER_ROW], y[LSTM_Y_PER_ROW];
#endif

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static volatile int watched, calls;
static pthread_t watching; /* no thread-local variable: its first use could be what is looked for */

static void note(void) {
  if (watched && pthread_equal(watching, pthread_self())) ++calls;
}

void *malloc(size_t size) { note(); return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { note(); return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { note(); return __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { note(); return __libc_memalign(alignment, size); }
void free(void *old) { note(); __libc_free(old); }

#define REPLACED(kind, name, parameters, arguments)                           \
  kind name parameters {                                                      \
    static kind(*real) parameters;                                            \
    note();                                                                   \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                     \
    return real arguments;                                                    \
  }
REPLACED(int, pthread_mutex_lock, (pthread_mutex_t *m), (m))
REPLACED(int, pthread_cond_signal, (pthread_cond_t *c), (c))
REPLACED(int, sched_getaffinity, (pid_t pid, size_t size, cpu_set_t *mask), (pid, size, mask))
REPLACED(int, sched_yield, (void), ())
REPLACED(int, clock_gettime, (clockid_t id, struct timespec *t), (id, t))
REPLACED(char *, getenv, (const char *name), (name))

static void *steps(void *failed) {
  watching = pthread_self();
  watched = 1;
  for (int i = 0; i < 1000; ++i)
    if (CALL(handle)) *(int *)failed = 1;
  watched = 0;
  return 0;
}

static void *control(void *unused) {
  (void)unused;
  watching = pthread_self();
  watched = 1;
  void *volatile taken = malloc(1);
  watched = 0;
  free(taken);
  return 0;
}

int main(void) {
  pthread_t thread;
  int failed = 0;
  if (OPEN(handle)) return 1;
  for (int i = 0; i < 2; ++i) {
    if (pthread_create(&thread, 0, steps, &failed)) return 1;
    pthread_join(thread, 0);
  }
  int found = calls;
  calls = 0;
  if (pthread_create(&thread, 0, control, 0)) return 1;
  pthread_join(thread, 0);
  printf("steps: %d\ncontrol: %d\n", found, calls);
  CLOSE(handle);
  return failed;
}
