/* A model's steps in order: its networks, and compiled functions of what is around them.

   In: tables of steps, written by program.py from a module's manifest. Out: the model's outputs; program.c runs them. */
#ifndef TVM_RNN_BUNDLE_PROGRAM_H
#define TVM_RNN_BUNDLE_PROGRAM_H
#include "engine.h"

enum { MOST_AXES = 8, MOST_VALUES = 256 }; /* axes of an array; inputs or outputs of a step */
/* From IS_UINT8 on: inside of a model. */
enum { IS_BOOL, IS_INT32, IS_INT64, IS_FLOAT32, IS_FLOAT64, IS_FLOAT16, IS_UINT8, IS_INT8, IS_INT16 };

/* An array, dense and in C order. */
struct value {
  void* data;
  int64_t shape[MOST_AXES], count;
  int32_t rank;
  uint8_t dtype, owned, there;
};

/* One step at work: values (null: an input that is not given), and its attributes in an order of its own. */
struct work {
  const struct value* in[MOST_VALUES];
  struct value* out[MOST_VALUES];
  int32_t ins, outs, int_count;
  const int64_t* ints;
};

struct program_step {
  const char* compiled; /* a function of the module's file; null: a network, whose number is ints[0] */
  const char* node;
  int32_t ins, outs, int_count, drops;
  const int32_t *in, *out, *drop; /* numbers of values, -1: none; drop: those that have served */
  const int64_t* ints;
};

/* An array that a caller gives or gets. As NAME_array in the header. */
struct program_array {
  void* data;
  int64_t shape[MOST_AXES];
  int32_t rank, dtype;
};

struct program_declared {
  const char* name;
  int32_t value, dtype, rank; /* rank: -1 for any */
  const int64_t* shape;       /* -1: any size; -2, -3, ...: a size that is the same wherever it is named */
};

struct program_constant {
  int32_t value, array, dtype, rank;
  const int64_t* shape;
};

struct program {
  int32_t values, steps, inputs, outputs, constants;
  const struct program_step* step;
  const struct program_declared *input, *output;
  const struct program_constant* constant;
};

int32_t program_run(struct engine* handle, const struct engine_module* module, const struct program* program,
                    const struct program_array* inputs, struct program_array* outputs);
#endif
