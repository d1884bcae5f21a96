/* What a bundle's generated source says of its module, and the engine that loads and calls it.

   In: tables of constants, written by source.py from a module's manifest. Out: functions on handles, which the generated
   functions of the bundle's header call. Everything here is hidden in the library; nothing throws, nothing exits. */
#ifndef TVM_RNN_BUNDLE_ENGINE_H
#define TVM_RNN_BUNDLE_ENGINE_H
#include <stddef.h>
#include <stdint.h>

enum { ENGINE_OK = 0, ENGINE_BAD_ARGUMENT = 1, ENGINE_BAD_FILE = 2, ENGINE_NO_MEMORY = 3, ENGINE_FAILED = 4 };
enum { ENGINE_MOST_ARRAYS = 64 }; /* inputs and states of a network; source.py refuses more */

/* An array in the module's file. offset: from the end of the weights' header; below 0: not in the file but a weight that
   a model gives at every run, number -1 - offset of its network's. */
struct engine_array {
  int64_t offset, elements;
  uint8_t code, bits; /* as DLPack has them */
};

/* One call of a function that lays weights out as the code reads them. */
struct engine_pack {
  const char* function;
  int64_t offset;
  int32_t count;
  const int32_t* arrays; /* numbers in engine_module.arrays */
};

/* Elements of working memory: fixed + rows (per_row + steps of a tile * per_tile_row + steps * per_sequence_row). */
struct engine_workspace {
  int64_t fixed, per_row, per_tile_row, per_sequence_row;
};

/* The function in which an output is the next input. tokens: how many there are, 0 where the first input is none; steps:
   of one call of it; draw: the numbers that stand for the names of what it draws, in each layer. */
struct engine_generation {
  const char* function;
  int64_t tokens, steps;
  int32_t layers, draws;
  const uint32_t* draw;
  struct engine_workspace workspace;
};

/* One recurrent network of the module. per_row: elements of one row (of one step, of inputs and outputs). */
struct engine_network {
  const char* sequence; /* null: it can only generate */
  uint8_t bits; /* of a float: 32 or 64 */
  uint8_t can_step, given; /* given: its weights are not in the file, see engine_weights */
  int32_t inputs, states, packs;
  const char* const* names; /* of inputs, states, y: for messages */
  const int64_t* input_per_row;
  const int64_t* state_per_row;
  const double* initial; /* NaN: of a constant, which a caller gives once for a sequence */
  int64_t output_per_row, packed_elements;
  struct engine_workspace workspace;
  int64_t rows_per_tile;
  const struct engine_pack* pack;
  const char* direct; /* a plain C function of one step of one row, see struct engine_direct; or null */
  int64_t direct_elements; /* of its packed weights, by these packs */
  int32_t direct_packs;
  const struct engine_pack* direct_pack;
  const struct engine_generation* generation; /* null: it cannot generate */
};

/* What a step of one row calls: step(inputs..., y, states..., weights). A handle begins with a pointer to one of these
   for each network, and the inline functions of NAME.h (header.py) call it. */
struct engine_direct {
  void (*step)(void);
  const void* weights;
};

/* A feature of the CPU by its two names in /proc/cpuinfo, either of which may be there; the second may be null. */
struct engine_feature {
  const char *name, *other;
};

/* A function of a module whose code is linked to the library, by its name. */
struct engine_linked {
  const char* name;
  void (*function)(void);
};

struct engine_module {
  const char *file, *machine; /* the module's file beside the library; what uname says of the machine */
  int64_t code_bytes, header_bytes;
  uint32_t code_crc, header_crc;
  int32_t networks, arrays, features;
  const struct engine_network* network;
  const struct engine_array* array;
  const struct engine_feature* feature;
  const struct engine_linked* linked; /* the last one's name is null; null where code and weights are in a file */
  const uint8_t* weights;             /* of the file from the first array on, where code is linked */
};

/* The code and the weights of a module. code_file.c loads them from its file; code_linked.c has them in the same program.
   data: the first array. */
struct engine_code {
  const struct engine_module* module;
  const uint8_t *data, *file;
  size_t file_bytes;
  void* library;
};
int32_t engine_code_open(const char* path, struct engine_code* own); /* own: zeros but for the module */
void engine_code_close(struct engine_code* own);
void* engine_symbol(const struct engine_code* own, const char* first, const char* name); /* null where there is none */

struct engine; /* a handle: one thread at a time; the loaded code and weights are shared */

/* What the loop of generation takes besides: of the steps given ones, the output that ends a row, {rows that have not
   ended, steps done}, and of random numbers the first step and the keys. */
struct engine_part {
  int64_t given, has_stop;
  double stop;
  int64_t *progress, first_step;
  const uint32_t* keys;
};

/* What a call of a network is given. lengths, reset: null where there are none; part: null where nothing is generated. */
struct engine_call {
  int64_t steps, batch;
  const void* const* inputs;
  void* const* states;
  void* y;
  const int64_t* lengths;
  const uint8_t* reset;
  const struct engine_part* part;
};

/* What a call of generation asks for. prompt, y, stop: int32_t where the network has tokens; prompt_steps: 0: a step of
   zeros; inputs: from 1 on, for prompt_steps - 1 + steps; lengths: null, or how many steps each row took; stop: null, or
   the output that ends a row. */
struct engine_request {
  int64_t steps, batch;
  const void* prompt;
  int64_t prompt_steps;
  const void* const* inputs;
  void* const* states;
  void* y;
  int64_t* lengths;
  const void* stop;
  uint64_t seed;
  int64_t first_step;
};

int32_t engine_open(const struct engine_module* module, const char* path, struct engine** out);
int32_t engine_share(struct engine* from, struct engine** out);
void engine_close(struct engine* handle);
int32_t engine_reserve(struct engine* handle, int32_t network, int64_t steps, int64_t batch);
int32_t engine_threads(struct engine* handle, int32_t threads);
int32_t engine_init_state(struct engine* handle, int32_t network, int64_t batch, void* const* states);
int32_t engine_step(struct engine* handle, int32_t network, const struct engine_call* call);
int32_t engine_sequence(struct engine* handle, int32_t network, const struct engine_call* call);
int32_t engine_generate(struct engine* handle, int32_t network, const struct engine_request* request);
const char* engine_error(void);

/* For program.c: an array of any shape, dense. */
struct engine_tensor {
  const void* data;
  const int64_t* shape;
  int32_t rank;
  uint8_t code, bits; /* as DLPack has them */
};

/* For program.c: call a function of the module's file, NAME + suffix, on arrays; with the number of threads before them,
   or without. */
enum { ENGINE_MOST_TENSORS = 1024, ENGINE_MOST_TENSOR_AXES = 8 };
int32_t engine_call(struct engine* handle, const char* name, const char* suffix, int with_threads, int32_t count,
                    const struct engine_tensor* tensors);

/* For program.c: lay out the weights of a network that has none in the file, for this handle until the next ones; given:
   in the order of their numbers. */
int32_t engine_weights(struct engine* handle, int32_t network, const void* const* given);

/* For program.c: memory of the handle: a piece of it, or 0 where there is none, for the time of a run; a piece that has
   served; the end of a run, from which on `kept` are its outputs and those of the run before are no more (null: it
   failed, and those stay). What some runs had no use for is freed: where sizes stay, all runs but the first ones take
   nothing from the system. */
void* engine_take(struct engine* handle, int64_t bytes);
void engine_put(void* memory);
void engine_settle(struct engine* handle, int32_t count, void* const* kept);

/* For program.c: the bytes of an array of the file; a message for engine_error, whose code is given back; one size times
   another, or -1 where that is no size. */
const void* engine_array_data(const struct engine* handle, int32_t number);
int32_t engine_fail(int32_t code, const char* format, ...) __attribute__((format(printf, 2, 3)));
int64_t engine_times(int64_t a, int64_t b);

/* An array that a call was given: bytes, of items of that size. */
struct engine_given {
  const char *name, *data;
  int64_t bytes, item;
  int written;
};

/* A handle's memory for generation: inputs and outputs of engine_generation.steps steps, rows' ends, keys. */
struct engine_memory {
  char *x, *y;
  int64_t* ends;
  uint32_t* keys;
};

/* For generate.c: an array and its bytes; whether arrays are there, aligned and apart; all states as such; the network;
   its memory for so many rows, or 0 where they were not reserved; a call of compiled code whose arrays were checked. */
struct engine_given engine_given(const char* name, const void* data, int64_t rows, int64_t per_row, int64_t item,
                                 int written);
int32_t engine_check(const struct engine_given* all, int count);
int engine_put_states(const struct engine_network* n, int64_t batch, void* const* states, struct engine_given* all);
const struct engine_network* engine_network_of(const struct engine* handle, int32_t network);
int engine_memory_of(const struct engine* handle, int32_t network, int64_t batch, struct engine_memory* memory);
int32_t engine_run(struct engine* handle, int32_t network, const struct engine_call* call);

#define FAIL(code, ...) return engine_fail(ENGINE_##code, __VA_ARGS__)
#define TRY(call)                      \
  do {                                 \
    int32_t status_ = (call);          \
    if (status_) return status_;       \
  } while (0)
#endif
