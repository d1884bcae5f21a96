/* Open argv[1], which becomes argv[2] after it was checked and before its code is loaded; print a step of it. */
#include <dlfcn.h>
#include <stdio.h>

#include "tiny.h"

static char **words;

void *dlopen(const char *path, int how) {
  void *(*real)(const char *, int);
  *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
  if (words) rename(words[2], words[1]);
  words = 0;
  return real(path, how);
}

int main(int argc, char **argv) {
  tiny *handle;
  float x[TINY_X_PER_ROW], h[TINY_H_PER_ROW], y[TINY_Y_PER_ROW];
  if (argc != 3) return 2;
  words = argv;
  for (int i = 0; i < TINY_X_PER_ROW; ++i) x[i] = 1;
  if (tiny_open(argv[1], &handle) || tiny_init_state(handle, 1, h) || tiny_step(handle, 1, x, h, y))
    return fprintf(stderr, "%s\n", tiny_error()), 1;
  for (int i = 0; i < TINY_Y_PER_ROW; ++i) printf("%.9g ", y[i]);
  tiny_close(handle);
  return 0;
}
