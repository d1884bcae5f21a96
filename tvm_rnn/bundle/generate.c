/* Generation: the output of a step is the input of the next, for any number of steps, in the memory of the handle.

   In: what a call asks for. Out: the new outputs, the last states, and how many outputs are a row's own. The compiled
   loop runs `engine_generation.steps` steps at a time, so that a call of many takes no more memory than one of few; it
   goes on where it ended: with its last output, its states, the rows that are left and the number of its next step. */
#include "engine.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 20 };
static const int64_t MOST_STEPS = INT64_C(1) << 40;

/* --- random numbers: keys of Threefry-2x32, as runtime_random.py has them --- */

static void threefry(const uint32_t key[2], const uint32_t counter[2], uint32_t out[2]) {
  static const int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const uint32_t words[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  uint32_t a = counter[0] + words[0], b = counter[1] + words[1];
  for (int i = 0; i < ROUNDS; ++i) {
    int by = rotations[i % 8], group = i / 4 + 1;
    a += b;
    b = (b << by | b >> (32 - by)) ^ a;
    if (i % 4 == 3) a += words[group % 3], b += words[(group + 1) % 3] + (uint32_t)group;
  }
  out[0] = a;
  out[1] = b;
}

static void make_keys(const struct engine_generation* g, uint64_t seed, uint32_t* keys) {
  const uint32_t words[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  for (int32_t layer = 0; layer < g->layers; ++layer)
    for (int32_t d = 0; d < g->draws; ++d, keys += 2)
      threefry(words, (const uint32_t[2]){g->draw[d], 2 * (uint32_t)layer}, keys);
}

/* --- what a call asks for --- */

/* A call of a network: how it is asked for, and what follows from it. item, bits: of what the compiled code takes. */
struct loop {
  const struct engine_network* n;
  const struct engine_generation* g;
  const struct engine_request* ask;
  struct engine_memory memory;
  int64_t width, prompt_steps, total; /* elements of an output of a row; at least 1; steps that are run */
  double stop;
};

/* A number of the caller's: tokens are int32_t, all else has the network's dtype. */
static double given(const struct loop* l, const void* data, int64_t i) {
  if (l->g->tokens) return ((const int32_t*)data)[i];
  return l->n->bits == 32 ? ((const float*)data)[i] : ((const double*)data)[i];
}

static double made(const struct loop* l, const void* data, int64_t i) {
  return l->n->bits == 32 ? ((const float*)data)[i] : ((const double*)data)[i];
}

static int is_token(const struct loop* l, double value) {
  return value >= 0 && value < (double)l->g->tokens && value == floor(value);
}

static int32_t check_sizes(const struct engine_generation* g, const struct engine_request* ask) {
  if (ask->steps < 1 || ask->steps > MOST_STEPS)
    FAIL(BAD_ARGUMENT, "generate: %lld steps, not 1 to 2^40", (long long)ask->steps);
  if (ask->batch < 0) FAIL(BAD_ARGUMENT, "generate: %lld rows", (long long)ask->batch);
  if (ask->prompt_steps < 0 || ask->prompt_steps > MOST_STEPS)
    FAIL(BAD_ARGUMENT, "generate: %lld steps of prompt, not 0 to 2^40", (long long)ask->prompt_steps);
  if (g->draws && (ask->first_step < 0 || ask->first_step >= INT64_C(1) << 62))
    FAIL(BAD_ARGUMENT, "generate: first_step is %lld, not 0 to 2^62 - 1", (long long)ask->first_step);
  return ENGINE_OK;
}

static int32_t check_places(const struct loop* l) {
  struct engine_given all[ENGINE_MOST_ARRAYS + 4];
  const struct engine_network* n = l->n;
  const struct engine_request* ask = l->ask;
  int64_t item = n->bits / 8, own = l->g->tokens ? (int64_t)sizeof(int32_t) : item, B = ask->batch;
  int count = 0;
  all[count++] = engine_given("prompt", ask->prompt, engine_times(ask->prompt_steps, B), l->width, own, 0);
  for (int32_t i = 1; i < n->inputs; ++i, ++count)
    all[count] = engine_given(n->names[i], ask->inputs[i], engine_times(l->total, B), n->input_per_row[i], item, 0);
  count += engine_put_states(n, B, ask->states, all + count);
  all[count++] = engine_given("y", ask->y, engine_times(ask->steps, B), l->width, own, 1);
  if (ask->lengths) all[count++] = engine_given("lengths", ask->lengths, B, 1, sizeof *ask->lengths, 1);
  if (ask->stop) all[count++] = engine_given("stop", ask->stop, 1, 1, own, 0);
  return engine_check(all, count);
}

static int32_t check_values(const struct loop* l) {
  const struct engine_request* ask = l->ask;
  int64_t tokens = l->g->tokens;
  if (ask->stop && tokens && !is_token(l, l->stop))
    FAIL(BAD_ARGUMENT, "generate: stop is %g, not a token from 0 to %lld", l->stop, (long long)tokens - 1);
  if (ask->stop && (l->width != 1 || !isfinite(l->stop)))
    FAIL(BAD_ARGUMENT, "generate: stop is %g of outputs of %lld, not a finite number of outputs of 1", l->stop,
         (long long)l->width);
  for (int64_t i = 0; tokens && i < ask->prompt_steps * ask->batch; ++i)
    if (!is_token(l, given(l, ask->prompt, i)))
      FAIL(BAD_ARGUMENT, "prompt: no such token: %lld, not 0 to %lld", (long long)((const int32_t*)ask->prompt)[i],
           (long long)tokens - 1);
  return ENGINE_OK;
}

/* --- the loop --- */

/* The first inputs of a part of `count` steps, `at` steps after the first: the prompt's, or the output before. */
static void feed(const struct loop* l, int64_t at, int64_t count) {
  int64_t row = l->ask->batch * l->width, bits = l->n->bits, bytes = row * bits / 8, left = l->prompt_steps - at;
  if (left <= 0) memcpy(l->memory.x, l->memory.y + (l->g->steps - 1) * bytes, (size_t)bytes);
  else if (!l->ask->prompt_steps) memset(l->memory.x, 0, (size_t)bytes);
  else
    for (int64_t i = 0; i < (left < count ? left : count) * row; ++i)
      if (bits == 32) ((float*)l->memory.x)[i] = (float)given(l, l->ask->prompt, at * row + i);
      else ((double*)l->memory.x)[i] = given(l, l->ask->prompt, at * row + i);
}

/* An output of a row to its place; `from` null: `stop`. */
static int32_t put(const struct loop* l, const char* from, int64_t place) {
  int64_t item = l->g->tokens ? (int64_t)sizeof(int32_t) : l->n->bits / 8, bytes = item * l->width;
  char* to = (char*)l->ask->y + place * bytes;
  if (!from) memcpy(to, l->ask->stop, (size_t)bytes);
  else if (!l->g->tokens) memcpy(to, from, (size_t)bytes);
  else {
    double value = made(l, from, 0);
    if (!is_token(l, value))
      FAIL(FAILED, "an output is no token: %g, not a whole number from 0 to %lld", value, (long long)l->g->tokens - 1);
    *(int32_t*)to = (int32_t)value;
  }
  return ENGINE_OK;
}

/* The new outputs of a part. A row that ended has 0 `ends` from here on. */
static int32_t give(const struct loop* l, int64_t at, int64_t count) {
  const struct engine_request* ask = l->ask;
  int64_t B = ask->batch, bytes = l->width * l->n->bits / 8, before = l->prompt_steps - 1;
  for (int64_t b = 0; b < B; ++b) {
    int64_t own = l->memory.ends[b];
    for (int64_t t = at < before ? before - at : 0; t < count; ++t)
      TRY(put(l, t < own ? l->memory.y + (t * B + b) * bytes : 0, (at + t - before) * B + b));
    if (ask->lengths && at + own - before > ask->lengths[b] && own) ask->lengths[b] = at + own - before;
    int last = ask->stop && own && at + own > before && made(l, l->memory.y, (own - 1) * B + b) == l->stop;
    l->memory.ends[b] = own == count && !last;
  }
  return ENGINE_OK;
}

static int32_t run(struct engine* handle, int32_t network, const struct loop* l) {
  const struct engine_request* ask = l->ask;
  const void* inputs[ENGINE_MOST_ARRAYS];
  int64_t B = ask->batch, progress[2] = {B, 0}, at = 0, *ends = l->memory.ends;
  for (int64_t b = 0; b < B; ++b) ends[b] = 1;
  while (at < l->total && progress[0]) {
    int64_t count = l->total - at < l->g->steps ? l->total - at : l->g->steps;
    inputs[0] = l->memory.x;
    for (int32_t i = 1; i < l->n->inputs; ++i)
      inputs[i] = (const char*)ask->inputs[i] + at * B * l->n->input_per_row[i] * (l->n->bits / 8);
    feed(l, at, count);
    for (int64_t b = 0; b < B; ++b) ends[b] *= count;
    progress[1] = 0;
    const struct engine_part part = {l->prompt_steps - at, ask->stop != 0, l->stop, progress, ask->first_step + at,
                                     l->memory.keys};
    const struct engine_call call = {count, B, inputs, ask->states, l->memory.y, ends, 0, &part};
    TRY(engine_run(handle, network, &call));
    TRY(give(l, at, count));
    at += count;
  }
  for (int64_t i = (at - l->prompt_steps + 1) * B; i < ask->steps * B; ++i) TRY(put(l, 0, i)); /* all rows ended */
  return ENGINE_OK;
}

int32_t engine_generate(struct engine* handle, int32_t network, const struct engine_request* ask) {
  if (!handle) FAIL(BAD_ARGUMENT, "generate: no handle");
  const struct engine_network* n = engine_network_of(handle, network);
  struct loop l = {.n = n, .g = n->generation, .ask = ask, .width = n->output_per_row};
  TRY(check_sizes(l.g, ask));
  l.prompt_steps = ask->prompt_steps ? ask->prompt_steps : 1;
  l.total = l.prompt_steps - 1 + ask->steps;
  TRY(check_places(&l));
  l.stop = ask->stop ? given(&l, ask->stop, 0) : 0;
  TRY(check_values(&l));
  for (int64_t b = 0; ask->lengths && b < ask->batch; ++b) ask->lengths[b] = 0;
  if (!ask->batch) return ENGINE_OK;
  if (!engine_memory_of(handle, network, ask->batch, &l.memory))
    FAIL(BAD_ARGUMENT, "generate: %lld rows and it takes no memory: reserve(1, %lld) first", (long long)ask->batch,
         (long long)ask->batch);
  make_keys(l.g, ask->seed, l.memory.keys);
  return run(handle, network, &l);
}
