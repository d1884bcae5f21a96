/* Time a function that is called again and again, as an audio thread calls it: the main() of a program whose source says
   what a call does.

   In, before this file: INPUTS and OUTPUTS of one sample, SAMPLES a call, and three functions: take(weights, count),
   begin() and call(x, y), which says where the outputs are: y, or memory of its own. In, from the command line: files of
   floats (x, weights), the file of outputs to write, seconds; then on stdin a line for each turn. Out: y of all samples,
   call after call from the beginning; an empty line when that is done; then a line for each turn: a call's time in ns,
   its 99th and 99.9th percentile, and the 99.9th of calls that do nothing. The first is of a burst of about 1 ms, of the
   thread's own CPU time, so that others on the machine count little; percentiles are of so many seconds of calls that are
   timed one by one by a clock on the wall, whose reading they include. C99 and C++11. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Percentiles are of as many calls as there is time for: of at least LEAST_CALLS, three of which are above the highest. */
enum { LEAST_CALLS = 3000, MOST_CALLS = 200000 };

static double ns_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

static float *floats_of(const char *path, long *count) {
  FILE *file = fopen(path, "rb");
  long bytes = 0;
  float *found = 0;
  if (file && !fseek(file, 0, SEEK_END) && (bytes = ftell(file)) >= 0 && !fseek(file, 0, SEEK_SET))
    found = (float *)malloc((size_t)bytes + 1);
  if (!found || fread(found, 1, (size_t)bytes, file) != (size_t)bytes) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(1);
  }
  fclose(file);
  *count = bytes / (long)sizeof *found;
  return found;
}

static const float *x;
static float *y;
static long calls, next;

static void one(void) {
  const volatile float *made = call(x + next * SAMPLES * INPUTS, y + next * SAMPLES * OUTPUTS);
  (void)made[0];
  if (++next == calls) next = 0;
}

static void nothing(void) {}

static double found[MOST_CALLS];

/* Time calls one by one for so many seconds, and sort their times in ns. Returns how many there are. */
static long sorted_times(void (*timed)(void), double seconds) {
  double begun = ns_of(CLOCK_MONOTONIC), before, now = begun;
  long count = 0;
  while (count < LEAST_CALLS || (count < MOST_CALLS && now - begun < seconds * 1e9)) {
    before = ns_of(CLOCK_MONOTONIC);
    timed();
    now = ns_of(CLOCK_MONOTONIC);
    found[count++] = now - before;
  }
  qsort(found, (size_t)count, sizeof *found, by_size);
  return count;
}

/* CPU time of so many calls, in ns. */
static double burst_of(long count) {
  double time = -ns_of(CLOCK_THREAD_CPUTIME_ID);
  for (long i = 0; i < count; ++i) one();
  return time + ns_of(CLOCK_THREAD_CPUTIME_ID);
}

static void take_turn(long burst, double seconds) {
  burst_of(burst / 8 + 1); /* weights and clock rate are as others left them, or the times that were sorted last */
  printf("%.9g", burst_of(burst) / (double)burst);
  long timed = sorted_times(one, seconds);
  printf(" %.9g %.9g", found[timed * 99 / 100], found[timed * 999 / 1000]);
  timed = sorted_times(nothing, 0.0);
  printf(" %.9g\n", found[timed * 999 / 1000]);
  fflush(stdout);
}

int main(int argc, char **argv) {
  long samples, count_of_weights;
  if (argc != 5) return 2;
  x = floats_of(argv[1], &samples);
  const float *weights = floats_of(argv[2], &count_of_weights);
  take(weights, count_of_weights);
  calls = samples / INPUTS / SAMPLES;
  size_t bytes = (size_t)(calls * SAMPLES * OUTPUTS) * sizeof *y;
  y = (float *)malloc(bytes + 1);
  if (!y || !calls) return 2;
  begin();
  for (long i = 0; i < calls; ++i) {
    float *to = y + i * SAMPLES * OUTPUTS;
    const float *made = call(x + i * SAMPLES * INPUTS, to);
    if (made != to) memcpy(to, made, sizeof *y * SAMPLES * OUTPUTS);
  }
  FILE *file = fopen(argv[3], "wb");
  if (!file || fwrite(y, 1, bytes, file) != bytes || fclose(file)) return 1;

  long burst = 2;
  while (burst_of(burst) < 1e6) burst *= 2;
  memset(found, 1, sizeof found); /* else the first write to each of its pages is part of a call's time */
  puts("");
  fflush(stdout);
  while (getchar() != EOF) take_turn(burst, atof(argv[4]));
  return 0;
}
