/* Run a model's steps: functions of the module's file and networks of engine.c, in order.

   In: tables of steps and a caller's arrays. Out: the model's outputs, in memory of the handle, until its next run. C11
   with GNU extensions. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- arrays --- */

/* By dtype. */
static const struct engine_tensor KINDS[] = {{.code = 6, .bits = 8}, {.code = 0, .bits = 32}, {.code = 0, .bits = 64},
                                             {.code = 2, .bits = 32}, {.code = 2, .bits = 64}, {.code = 2, .bits = 16},
                                             {.code = 1, .bits = 8}, {.code = 0, .bits = 8}, {.code = 0, .bits = 16}};

static int64_t value_size(int dtype) { return KINDS[dtype].bits / 8; }

static int32_t value_make(struct engine* handle, struct value* v, int dtype, int rank, const int64_t* shape) {
  int64_t count = 1;
  memset(v, 0, sizeof *v);
  if (rank > MOST_AXES) FAIL(BAD_ARGUMENT, "an array of %d axes, at most %d are supported", rank, MOST_AXES);
  for (int i = 0; i < rank; ++i) count = engine_times(count, v->shape[i] = shape[i]);
  int64_t bytes = engine_times(count, value_size(dtype));
  if (count < 0 || bytes < 0) FAIL(BAD_ARGUMENT, "a size that is negative or too large");
  v->data = engine_take(handle, bytes);
  if (!v->data) FAIL(NO_MEMORY, "no memory for %lld bytes", (long long)bytes);
  v->count = count;
  v->rank = rank;
  v->dtype = (uint8_t)dtype;
  v->owned = v->there = 1;
  return ENGINE_OK;
}

static void value_free(struct value* v) {
  if (v->owned) engine_put(v->data);
  memset(v, 0, sizeof *v);
}

static int64_t value_int(const struct value* v, int64_t i) {
  switch (v->dtype) {
    case IS_BOOL: return ((const uint8_t*)v->data)[i] != 0;
    case IS_INT32: return ((const int32_t*)v->data)[i];
    default: return ((const int64_t*)v->data)[i];
  }
}

/* Sizes that have a name, as seen so far. */
struct sizes {
  int64_t size[MOST_VALUES];
  const char* of[MOST_VALUES];
};

static int32_t take_input(const struct program_declared* d, const struct program_array* given, struct sizes* sizes,
                          struct value* value) {
  int64_t count = 1;
  if (given->dtype != d->dtype)
    FAIL(BAD_ARGUMENT, "%s has dtype %d, not %d", d->name, (int)given->dtype, (int)d->dtype);
  if (given->rank < 0 || given->rank > MOST_AXES || (d->rank >= 0 && given->rank != d->rank))
    FAIL(BAD_ARGUMENT, "%s has %d axes, not %d", d->name, (int)given->rank, (int)d->rank);
  for (int i = 0; i < given->rank; ++i) {
    int64_t own = given->shape[i], wanted = d->rank < 0 ? -1 : d->shape[i];
    if (wanted >= 0 && own != wanted)
      FAIL(BAD_ARGUMENT, "%s has size %lld along axis %d, not %lld", d->name, (long long)own, i, (long long)wanted);
    int64_t* known = wanted < -1 ? &sizes->size[-2 - wanted] : 0;
    if (known && *known >= 0 && *known != own)
      FAIL(BAD_ARGUMENT, "%s has size %lld along axis %d, %s has %lld there", d->name, (long long)own, i,
           sizes->of[-2 - wanted], (long long)*known);
    if (known) *known = own, sizes->of[-2 - wanted] = d->name;
    count = engine_times(count, own);
    value->shape[i] = own;
  }
  if (count < 0 || engine_times(count, 8) < 0) FAIL(BAD_ARGUMENT, "%s has an impossible size", d->name);
  if (count && !given->data) FAIL(BAD_ARGUMENT, "%s is null", d->name);
  if ((uintptr_t)given->data % (uintptr_t)value_size(d->dtype))
    FAIL(BAD_ARGUMENT, "%s is not aligned to its elements", d->name);
  value->data = given->data;
  value->count = count;
  value->rank = given->rank;
  value->dtype = (uint8_t)d->dtype;
  value->there = 1;
  return ENGINE_OK;
}

/* --- networks --- */

static int32_t check_float(const struct engine_network* n, const char* name, const struct value* v, int64_t count) {
  int dtype = n->bits == 32 ? IS_FLOAT32 : IS_FLOAT64;
  if (v->dtype == dtype && v->count == count) return ENGINE_OK;
  FAIL(BAD_ARGUMENT, "%s does not fit x: %lld elements, not %lld", name, (long long)v->count, (long long)count);
}

/* The states of a call, each whole: the layers' parts one after the other, first values where no part is given. ins: of
   the step's inputs those before its weights. */
static int32_t join_states(struct engine* handle, int32_t number, const struct engine_network* n, const struct work* w,
                           int32_t ins, const int64_t* parts, int32_t layers, int64_t batch, struct value* states,
                           void** pointers) {
  int dtype = n->bits == 32 ? IS_FLOAT32 : IS_FLOAT64;
  for (int32_t s = 0; s < n->states; ++s) {
    int64_t shape[1] = {engine_times(batch, n->state_per_row[s])};
    TRY(value_make(handle, &states[s], dtype, 1, shape));
    pointers[s] = states[s].data;
  }
  int32_t status = engine_init_state(handle, number, batch, pointers);
  for (int32_t s = 0; !status && s < n->states; ++s) {
    int64_t at = 0;
    for (int32_t l = 0; !status && l < layers; ++l) {
      int64_t own = parts[s * layers + l] * batch;
      const struct value* given = 2 + s * layers + l < ins ? w->in[2 + s * layers + l] : 0;
      if (given) {
        status = check_float(n, n->names[n->inputs + s], given, own);
        if (!status)
          memcpy((char*)states[s].data + at * value_size(dtype), given->data, (size_t)(own * value_size(dtype)));
      }
      at += own;
    }
  }
  return status;
}

/* y and each layer's part of each state. shapes: rank and sizes of y's and of each part's axes; in parts -1 is the batch. */
static int32_t give_outputs(struct engine* handle, const struct work* w, const struct engine_network* n, const struct value* states,
                            const int64_t* parts, int32_t layers, int64_t batch, const int64_t* shapes) {
  int dtype = n->bits == 32 ? IS_FLOAT32 : IS_FLOAT64;
  for (int32_t s = 0, out = 1; s < n->states; ++s) {
    int64_t at = 0;
    for (int32_t l = 0; l < layers; ++l, ++out) {
      int64_t sizes[MOST_AXES], own = parts[s * layers + l] * batch;
      int rank = (int)*shapes++;
      for (int i = 0; i < rank; ++i, ++shapes) sizes[i] = *shapes < 0 ? batch : *shapes;
      if (out < w->outs && w->out[out]) {
        TRY(value_make(handle, w->out[out], dtype, rank, sizes));
        memcpy(w->out[out]->data, (char*)states[s].data + at * value_size(dtype), (size_t)(own * value_size(dtype)));
      }
      at += own;
    }
  }
  return ENGINE_OK;
}

/* The network's own copy of weights that are values. shapes: how many, then of each its rank and sizes. */
static int32_t take_weights(struct engine* handle, int32_t number, const struct engine_network* n, const struct work* w,
                            const int64_t* shapes) {
  const void* given[MOST_VALUES];
  int dtype = n->bits == 32 ? IS_FLOAT32 : IS_FLOAT64;
  int32_t count = (int32_t)*shapes++;
  for (int32_t i = 0; i < count; ++i) {
    const struct value* v = w->in[w->ins - count + i];
    int rank = (int)*shapes++, same = v && v->dtype == dtype && v->rank == rank;
    for (int axis = 0; axis < rank; ++axis) same = same && v->shape[axis] == shapes[axis];
    if (!same) FAIL(BAD_ARGUMENT, "weight %d of the network is missing, or of another shape", (int)i);
    given[i] = v->data;
    shapes += rank;
  }
  return engine_weights(handle, number, given);
}

/* ints: the network's number, layers, elements of each part of a row, y's axes behind [T, B], then the parts' shapes, and
   where weights are values theirs. */
static int32_t run_network(struct engine* handle, const struct engine_module* module, const struct work* w) {
  int32_t number = (int32_t)w->ints[0], layers = (int32_t)w->ints[1];
  const struct engine_network* n = &module->network[number];
  const int64_t *parts = w->ints + 2, *shapes = parts + (int64_t)n->states * layers;
  const struct value *x = w->in[0], *lengths = w->ins > 1 ? w->in[1] : 0;
  int dtype = n->bits == 32 ? IS_FLOAT32 : IS_FLOAT64;
  if (!x || x->rank < 2 || w->outs < 1 || n->inputs != 1)
    FAIL(BAD_ARGUMENT, "the network's input is missing, or has fewer than 2 axes");
  int64_t T = x->shape[0], B = x->shape[1], sizes[MOST_AXES] = {T, B}, *counts = 0;
  TRY(check_float(n, n->names[0], x, engine_times(engine_times(T, B), n->input_per_row[0])));
  if (x->count && x->count / (T * B) != n->input_per_row[0]) FAIL(BAD_ARGUMENT, "%s has other features", n->names[0]);
  int rank = 2 + (int)*shapes++;
  for (int i = 2; i < rank; ++i) sizes[i] = *shapes++;
  const int64_t* weights = shapes;
  for (int32_t i = 0; i < n->states * layers; ++i) weights += 1 + *weights;
  if (n->given) TRY(take_weights(handle, number, n, w, weights));
  struct value states[ENGINE_MOST_ARRAYS], y = {0};
  void* pointers[ENGINE_MOST_ARRAYS];
  memset(states, 0, sizeof states);
  int32_t ins = w->ins - (n->given ? (int32_t)*weights : 0);
  int32_t status = join_states(handle, number, n, w, ins, parts, layers, B, states, pointers);
  if (!status) status = value_make(handle, &y, dtype, rank, sizes);
  if (!status && lengths) {
    counts = engine_take(handle, engine_times(B, (int64_t)sizeof *counts));
    if (!counts) status = engine_fail(ENGINE_NO_MEMORY, "no memory for lengths");
    else if (lengths->count != B) status = engine_fail(ENGINE_BAD_ARGUMENT, "lengths: %lld for %lld rows", (long long)lengths->count, (long long)B);
    for (int64_t b = 0; !status && b < B; ++b) counts[b] = value_int(lengths, b);
  }
  if (!status) {
    const void* const inputs[] = {x->data};
    const struct engine_call call = {T, B, inputs, pointers, y.data, counts, 0, 0};
    status = engine_sequence(handle, number, &call);
  }
  if (!status) status = give_outputs(handle, w, n, states, parts, layers, B, shapes);
  engine_put(counts);
  for (int32_t s = 0; s < n->states; ++s) value_free(&states[s]);
  if (status || !w->out[0]) value_free(&y);
  else *w->out[0] = y;
  return status;
}

/* --- functions of the module's file --- */

static struct engine_tensor tensor_of(const struct value* v) {
  struct engine_tensor t = KINDS[v->dtype];
  t.data = v->data;
  t.shape = v->shape;
  t.rank = v->rank;
  return t;
}

/* What was said of sizes, with the shapes of the arrays that came. */
static int32_t with_shapes(int32_t status, const struct work* w, int32_t inputs) {
  char text[512];
  int used = snprintf(text, sizeof text, "%s; got", engine_error());
  for (int32_t i = 0; i < inputs; ++i)
    for (int axis = 0; axis <= w->in[i]->rank && used < (int)sizeof text; ++axis) {
      int64_t size = axis < w->in[i]->rank ? w->in[i]->shape[axis] : 0;
      const char* form = axis == w->in[i]->rank ? (axis ? "]" : " []") : axis ? ", %lld" : " [%lld";
      used += snprintf(text + used, sizeof text - (size_t)used, form, (long long)size);
    }
  return engine_fail(status == ENGINE_FAILED ? ENGINE_BAD_ARGUMENT : status, "%s: check the shapes of the inputs", text);
}

/* A function: first how large its results and its memory are, then these. ints: inputs that are no constants, each
   result's axes, its dtype, then how much memory it takes and the dtypes of that. */
static int32_t run_compiled(struct engine* handle, const char* name, const struct work* w) {
  const int64_t *ranks = w->ints + 1, *kinds = ranks + w->outs, *memory = kinds + w->outs;
  int32_t inputs = (int32_t)w->ints[0], pieces = (int32_t)*memory++, axes = 0, count = 0, status = ENGINE_OK;
  struct engine_tensor tensors[2 * MOST_VALUES + 8];
  struct value rooms[8];
  int64_t sizes[MOST_VALUES * MOST_AXES + 8], *size = sizes;
  memset(rooms, 0, sizeof rooms);
  memset(tensors, 0, sizeof tensors);
  for (int32_t i = 0; i < w->ins; ++i) {
    if (!w->in[i]) FAIL(BAD_ARGUMENT, "input %d is missing", (int)i);
    tensors[count++] = tensor_of(w->in[i]);
  }
  for (int32_t i = 0; i < w->outs; ++i) axes += (int32_t)ranks[i];
  struct engine_tensor* last = &tensors[inputs];
  const struct engine_tensor kept = *last;
  const int64_t numbers[1] = {axes + pieces};
  *last = KINDS[IS_INT64];
  last->data = sizes;
  last->shape = numbers;
  last->rank = 1;
  if ((status = engine_call(handle, name, "_sizes", 0, inputs + 1, tensors))) return with_shapes(status, w, inputs);
  *last = kept;
  for (int32_t i = 0; !status && i < w->outs; size += ranks[i++]) {
    struct value* out = w->out[i];
    status = value_make(handle, out, (int)kinds[i], (int)ranks[i], size);
    if (!status) tensors[count++] = tensor_of(out);
  }
  for (int32_t i = 0; !status && i < pieces; ++i) {
    status = value_make(handle, &rooms[i], (int)memory[i], 1, size + i);
    if (!status) tensors[count++] = tensor_of(&rooms[i]);
  }
  if (!status && (status = engine_call(handle, name, "", 1, count, tensors))) status = with_shapes(status, w, inputs);
  for (int32_t i = 0; i < pieces; ++i) value_free(&rooms[i]);
  return status;
}

/* --- steps --- */

static int32_t run_step(struct engine* handle, const struct engine_module* module, const struct program_step* step,
                        struct value* values) {
  struct work w = {.ins = step->ins, .outs = step->outs, .int_count = step->int_count, .ints = step->ints};
  for (int32_t i = 0; i < step->ins; ++i)
    w.in[i] = step->in[i] >= 0 && values[step->in[i]].there ? &values[step->in[i]] : 0;
  for (int32_t i = 0; i < step->outs; ++i) w.out[i] = step->out[i] >= 0 ? &values[step->out[i]] : 0;
  struct value unused = {0};
  if (step->outs && !w.out[0]) w.out[0] = &unused;
  int32_t status = step->compiled ? run_compiled(handle, step->compiled, &w) : run_network(handle, module, &w);
  value_free(&unused);
  for (int32_t i = 0; i < step->drops; ++i) value_free(&values[step->drop[i]]);
  if (!status) return ENGINE_OK;
  char said[512];
  strncpy(said, engine_error(), sizeof said - 1);
  said[sizeof said - 1] = 0;
  return engine_fail(status, "%s: %s", step->node, said);
}

static int32_t give(struct engine* handle, const struct program* p, const struct value* values,
                    struct program_array* outputs, void** kept) {
  for (int32_t i = 0; i < p->outputs; ++i) {
    const struct program_declared* d = &p->output[i];
    const struct value* found = &values[d->value];
    struct value copy = {0};
    if (!found->there) FAIL(FAILED, "output %s was not made", d->name);
    TRY(value_make(handle, &copy, found->dtype, found->rank, found->shape)); /* an output may be an input, or twice */
    kept[i] = copy.data;
    if (copy.count) memcpy(copy.data, found->data, (size_t)(copy.count * value_size(copy.dtype)));
    outputs[i].data = copy.data;
    outputs[i].rank = copy.rank;
    outputs[i].dtype = copy.dtype;
    memcpy(outputs[i].shape, copy.shape, sizeof copy.shape);
  }
  return ENGINE_OK;
}

int32_t program_run(struct engine* handle, const struct engine_module* module, const struct program* p,
                    const struct program_array* inputs, struct program_array* outputs) {
  if (!handle) FAIL(BAD_ARGUMENT, "run: no handle");
  if ((!inputs && p->inputs) || !outputs) FAIL(BAD_ARGUMENT, "run: no arrays");
  int64_t bytes = (p->values + 1) * (int64_t)sizeof(struct value);
  struct value* values = engine_take(handle, bytes);
  void** kept = engine_take(handle, (p->outputs + 1) * (int64_t)sizeof *kept);
  int32_t status = values && kept ? ENGINE_OK : engine_fail(ENGINE_NO_MEMORY, "no memory for values");
  if (values) memset(values, 0, (size_t)bytes);
  struct sizes sizes;
  memset(&sizes, 0, sizeof sizes);
  for (int i = 0; i < MOST_VALUES; ++i) sizes.size[i] = -1;
  for (int32_t i = 0; !status && i < p->constants; ++i) {
    const struct program_constant* c = &p->constant[i];
    struct value* v = &values[c->value];
    *v = (struct value){(void*)engine_array_data(handle, c->array), {0}, module->array[c->array].elements, c->rank,
                        (uint8_t)c->dtype, 0, 1};
    memcpy(v->shape, c->shape, (size_t)c->rank * sizeof *c->shape);
  }
  for (int32_t i = 0; !status && i < p->inputs; ++i)
    status = take_input(&p->input[i], &inputs[i], &sizes, &values[p->input[i].value]);
  for (int32_t i = 0; !status && i < p->steps; ++i) status = run_step(handle, module, &p->step[i], values);
  if (!status) status = give(handle, p, values, outputs, kept);
  engine_settle(handle, p->outputs, status ? 0 : kept); /* not sooner: inputs may be outputs of the run before */
  return status;
}
