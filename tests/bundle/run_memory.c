/* Count what the runs of a whole model take from the system, here that of test_program.py: memory of any kind.

   Prints how many times in the first four runs of 5 steps, in eight more, in four of 9 steps, and in eight more of these. */
#include <stdio.h>
#include <stdlib.h>

#include "two.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static int taken;

void *malloc(size_t size) { ++taken; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { ++taken; return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { ++taken; return __libc_realloc(old, size); }
int posix_memalign(void **memory, size_t alignment, size_t size) {
  ++taken;
  return !(*memory = __libc_memalign(alignment, size));
}

static two *handle;

static int runs(int count, int64_t steps) {
  static int64_t words[9 * 3] = {1, 2, 3, 4, 5, 6, 7, 8};
  static int32_t lengths[3] = {5, 2, 4};
  static float first[3 * 4];
  two_array in[TWO_INPUTS] = {{words, {steps, 3}, 2, TWO_INT64}, {lengths, {3}, 1, TWO_INT32}, {first, {1, 3, 4}, 3, TWO_FLOAT32}};
  two_array out[TWO_OUTPUTS];
  int before = taken;
  for (int i = 0; i < count; ++i)
    if (two_run(handle, in, out)) exit(1);
  return taken - before;
}

int main(void) {
  if (two_open(NULL, &handle)) return 1;
  int first = runs(4, 5), same = runs(8, 5), other = runs(4, 9), again = runs(8, 9);
  printf("%d %d %d %d\n", first, same, other, again);
  two_close(handle);
  return 0;
}
