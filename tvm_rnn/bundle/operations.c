/* The operations around networks, as runtime_ops.py has them, on dense arrays.

   In: a step's inputs and attributes. Out: new arrays. Sizes are looked at before memory is taken or read; arithmetic is
   in double, or in whole numbers of 64 bits, and rounded to the result's dtype. C11 with GNU extensions. */
#include "operations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REFUSE(...) FAIL(BAD_ARGUMENT, __VA_ARGS__)

/* --- arrays --- */

int64_t value_size(int dtype) {
  static const int64_t sizes[] = {1, 4, 8, 4, 8, 1, 1};
  return sizes[dtype];
}

static int is_float(const struct value* v) { return v->dtype == IS_FLOAT32 || v->dtype == IS_FLOAT64; }

int32_t value_make(struct value* v, int dtype, int rank, const int64_t* shape) {
  int64_t count = 1;
  memset(v, 0, sizeof *v);
  if (rank > MOST_AXES) REFUSE("an array of %d axes, at most %d are supported", rank, MOST_AXES);
  for (int i = 0; i < rank; ++i) count = engine_times(count, v->shape[i] = shape[i]);
  int64_t bytes = engine_times(count, value_size(dtype));
  if (count < 0 || bytes < 0) REFUSE("a size that is negative or too large");
  v->data = malloc(bytes ? (size_t)bytes : 1);
  if (!v->data) FAIL(NO_MEMORY, "no memory for %lld bytes", (long long)bytes);
  v->count = count;
  v->rank = rank;
  v->dtype = (uint8_t)dtype;
  v->owned = v->there = 1;
  return ENGINE_OK;
}

void value_free(struct value* v) {
  if (v->owned) free(v->data);
  memset(v, 0, sizeof *v);
}

static int64_t whole(double x) { return x >= -9.2e18 && x <= 9.2e18 ? (int64_t)x : INT64_MIN; }

static double get(const struct value* v, int64_t i) {
  switch (v->dtype) {
    case IS_BOOL: return ((const uint8_t*)v->data)[i] != 0;
    case IS_INT32: return ((const int32_t*)v->data)[i];
    case IS_INT64: return (double)((const int64_t*)v->data)[i];
    case IS_FLOAT32: return ((const float*)v->data)[i];
    case IS_UINT8: return ((const uint8_t*)v->data)[i];
    case IS_INT8: return ((const int8_t*)v->data)[i];
    default: return ((const double*)v->data)[i];
  }
}

int64_t value_int(const struct value* v, int64_t i) {
  switch (v->dtype) {
    case IS_BOOL: return ((const uint8_t*)v->data)[i] != 0;
    case IS_INT32: return ((const int32_t*)v->data)[i];
    case IS_INT64: return ((const int64_t*)v->data)[i];
    case IS_UINT8: return ((const uint8_t*)v->data)[i];
    case IS_INT8: return ((const int8_t*)v->data)[i];
    default: return whole(get(v, i));
  }
}

static void put_int(struct value* v, int64_t i, int64_t x) {
  switch (v->dtype) {
    case IS_BOOL: ((uint8_t*)v->data)[i] = x != 0; break;
    case IS_INT32: ((int32_t*)v->data)[i] = (int32_t)x; break;
    case IS_INT64: ((int64_t*)v->data)[i] = x; break;
    case IS_FLOAT32: ((float*)v->data)[i] = (float)x; break;
    case IS_UINT8: ((uint8_t*)v->data)[i] = (uint8_t)x; break;
    case IS_INT8: ((int8_t*)v->data)[i] = (int8_t)x; break;
    default: ((double*)v->data)[i] = (double)x;
  }
}

static void put(struct value* v, int64_t i, double x) {
  if (v->dtype == IS_FLOAT32) ((float*)v->data)[i] = (float)x;
  else if (v->dtype == IS_FLOAT64) ((double*)v->data)[i] = x;
  else if (v->dtype == IS_BOOL) ((uint8_t*)v->data)[i] = x != 0;
  else put_int(v, i, whole(x));
}

static void copy_element(struct value* to, int64_t i, const struct value* from, int64_t k) {
  int64_t size = value_size(to->dtype);
  memcpy((char*)to->data + i * size, (const char*)from->data + k * size, (size_t)size);
}

static void convert(struct value* to, int64_t i, const struct value* from, int64_t k) {
  if (to->dtype == from->dtype) copy_element(to, i, from, k);
  else if (is_float(from)) put(to, i, get(from, k));
  else put_int(to, i, value_int(from, k));
}

/* The dtype of what two make together, as NumPy has it. */
static int together(int a, int b) {
  if (a == b) return a;
  if (a > b) return together(b, a);
  return b == IS_FLOAT32 && a != IS_BOOL ? IS_FLOAT64 : b;
}

static int32_t need(const struct work* w, int count) {
  for (int i = 0; i < count; ++i)
    if (i >= w->ins || !w->in[i]) REFUSE("input %d is missing", i);
  return ENGINE_OK;
}

/* The function of an operation that needs so many inputs: x is the first of them, out the first result. */
#define OPERATION(name, count)                                                                                      \
  static int32_t do_##name(struct work* w, const struct value* x, struct value* out);                                \
  int32_t op_##name(struct work* w) {                                                                                \
    TRY(need(w, count));                                                                                             \
    return do_##name(w, w->in[0], w->out[0]);                                                                        \
  }                                                                                                                  \
  static int32_t do_##name(struct work* w UNUSED, const struct value* x UNUSED, struct value* out UNUSED)
#define UNUSED __attribute__((unused))

static int32_t axis_of(int64_t axis, int rank, int* found) {
  *found = 0;
  if (axis < -rank || axis >= rank) REFUSE("axis %lld of %d", (long long)axis, rank);
  *found = (int)(axis < 0 ? axis + rank : axis);
  return ENGINE_OK;
}

/* Axes as bits; once: none may be there twice. */
static int32_t axes_of(const int64_t* list, int64_t count, int rank, int once, int* bits) {
  *bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    int axis;
    TRY(axis_of(list[i], rank, &axis));
    if (once && *bits & 1 << axis) REFUSE("axis %d is there twice", axis);
    *bits |= 1 << axis;
  }
  return ENGINE_OK;
}

/* Elements before, along and behind an axis. */
static void split_shape(const struct value* x, int axis, int64_t* outer, int64_t* size, int64_t* inner) {
  *outer = *size = *inner = 1;
  for (int i = 0; i < x->rank; ++i) *(i < axis ? outer : i > axis ? inner : size) *= x->shape[i];
}

/* A list that is an input or, in ints from `first` on, an attribute. *count: -1 where it is neither. */
static int32_t numbers(const struct work* w, int at, int first, int64_t* list, int64_t most, int64_t* count) {
  *count = -1;
  if (at < w->ins && w->in[at]) {
    if (w->in[at]->count > most) REFUSE("a list of %lld numbers", (long long)w->in[at]->count);
    *count = w->in[at]->count;
    for (int64_t i = 0; i < *count; ++i) list[i] = value_int(w->in[at], i);
  } else if (first < w->int_count && w->ints[first] >= 0) { /* their number, then they */
    if (w->ints[first] > most) REFUSE("a list of %lld numbers", (long long)w->ints[first]);
    *count = w->ints[first];
    for (int64_t i = 0; i < *count; ++i) list[i] = w->ints[first + 1 + i];
  }
  return ENGINE_OK;
}

/* --- walking over arrays --- */

/* Strides of `v` as part of an array of that shape; 0 along what is repeated. */
static int32_t spread(const struct value* v, int rank, const int64_t* shape, int64_t* strides) {
  int64_t stride = 1;
  for (int i = 0; i < MOST_AXES; ++i) strides[i] = 0;
  if (v->rank > rank) REFUSE("%d axes do not fit %d", (int)v->rank, rank);
  for (int i = v->rank - 1; i >= 0; --i) {
    int to = i + rank - v->rank;
    if (v->shape[i] != shape[to] && v->shape[i] != 1)
      REFUSE("size %lld does not fit %lld", (long long)v->shape[i], (long long)shape[to]);
    strides[to] = v->shape[i] == 1 ? 0 : stride;
    stride *= v->shape[i];
  }
  return ENGINE_OK;
}

static int32_t common(int count, const struct value* const* all, int* rank, int64_t* shape) {
  *rank = 0;
  for (int i = 0; i < count; ++i) *rank = all[i]->rank > *rank ? all[i]->rank : *rank;
  for (int axis = 0; axis < *rank; ++axis) {
    shape[axis] = 1;
    for (int i = 0; i < count; ++i) {
      int own = axis - (*rank - all[i]->rank);
      int64_t size = own < 0 ? 1 : all[i]->shape[own];
      if (size != 1 && shape[axis] != 1 && size != shape[axis])
        REFUSE("sizes %lld and %lld do not go together", (long long)shape[axis], (long long)size);
      if (size != 1) shape[axis] = size;
    }
  }
  return ENGINE_OK;
}

struct walk {
  int64_t index[MOST_AXES], at[4];
};

/* The next place: index and, for each of `count` arrays, its place by its strides. */
static void next(struct walk* walk, int rank, const int64_t* shape, int count, int64_t (*strides)[MOST_AXES]) {
  for (int axis = rank - 1; axis >= 0; --axis) {
    for (int i = 0; i < count; ++i) walk->at[i] += strides[i][axis];
    if (++walk->index[axis] < shape[axis]) return;
    for (int i = 0; i < count; ++i) walk->at[i] -= strides[i][axis] * shape[axis];
    walk->index[axis] = 0;
  }
}

/* --- shapes --- */

static int32_t copied(struct work* w, int rank, const int64_t* shape) {
  const struct value* x = w->in[0];
  TRY(value_make(w->out[0], x->dtype, rank, shape));
  if (w->out[0]->count != x->count) REFUSE("%lld elements do not fill that shape", (long long)x->count);
  memcpy(w->out[0]->data, x->data, (size_t)(x->count * value_size(x->dtype)));
  return ENGINE_OK;
}

OPERATION(identity, 1) {
  return copied(w, x->rank, x->shape);
}

int32_t op_dropout(struct work* w) {
  TRY(op_identity(w));
  if (w->outs < 2 || !w->out[1]) return ENGINE_OK;
  TRY(value_make(w->out[1], IS_BOOL, w->in[0]->rank, w->in[0]->shape));
  memset(w->out[1]->data, 1, (size_t)w->out[1]->count);
  return ENGINE_OK;
}

/* Every element of the result from one of the operand: base + strides. */
static int32_t gathered(struct work* w, int rank, const int64_t* shape, int64_t base, int64_t* strides) {
  struct walk walk = {{0}, {base, 0, 0, 0}};
  TRY(value_make(w->out[0], w->in[0]->dtype, rank, shape));
  for (int64_t i = 0; i < w->out[0]->count; ++i) {
    copy_element(w->out[0], i, w->in[0], walk.at[0]);
    next(&walk, rank, shape, 1, (int64_t(*)[MOST_AXES])strides);
  }
  return ENGINE_OK;
}

static void own_strides(const struct value* v, int64_t* strides) {
  int64_t stride = 1;
  for (int i = v->rank - 1; i >= 0; --i) strides[i] = stride, stride *= v->shape[i];
}

OPERATION(transpose, 1) {
  int64_t shape[MOST_AXES], strides[MOST_AXES] = {0}, own[MOST_AXES], list[MOST_AXES], count;
  int seen = 0;
  TRY(numbers(w, MOST_VALUES, 0, list, MOST_AXES, &count));
  if (count >= 0 && count != x->rank) REFUSE("%lld axes of %d", (long long)count, (int)x->rank);
  own_strides(x, own);
  for (int i = 0; i < x->rank; ++i) {
    int axis;
    TRY(axis_of(count < 0 ? x->rank - 1 - i : list[i], x->rank, &axis));
    if (seen & 1 << axis) REFUSE("axis %d is there twice", axis);
    seen |= 1 << axis;
    shape[i] = x->shape[axis];
    strides[i] = own[axis];
  }
  return gathered(w, x->rank, shape, 0, strides);
}

OPERATION(concat, w->ins < 1 ? 1 : w->ins) {
  int64_t shape[MOST_AXES], done = 0, outer, all, inner;
  int axis, dtype;
  TRY(axis_of(w->ints[0], x->rank, &axis));
  memcpy(shape, x->shape, sizeof shape);
  dtype = x->dtype;
  for (int i = 1; i < w->ins; ++i) {
    if (w->in[i]->rank != x->rank) REFUSE("%d axes beside %d", (int)w->in[i]->rank, (int)x->rank);
    dtype = together(dtype, w->in[i]->dtype);
    for (int k = 0; k < x->rank; ++k)
      if (k != axis && w->in[i]->shape[k] != shape[k]) REFUSE("sizes differ along axis %d", k);
    shape[axis] += w->in[i]->shape[axis];
  }
  TRY(value_make(out, dtype, x->rank, shape));
  split_shape(out, axis, &outer, &all, &inner);
  for (int i = 0; i < w->ins; ++i) {
    int64_t own = w->in[i]->shape[axis] * inner;
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t k = 0; k < own; ++k)
        convert(out, o * all * inner + done + k, w->in[i], o * own + k);
    done += own;
  }
  return ENGINE_OK;
}

OPERATION(tile, 2) {
  int64_t repeats[MOST_AXES], count, shape[MOST_AXES], own[MOST_AXES] = {0}, index[MOST_AXES] = {0};
  TRY(numbers(w, 1, w->int_count, repeats, MOST_AXES, &count));
  int rank = x->rank > count ? x->rank : (int)count;
  int64_t strides[MOST_AXES];
  own_strides(x, strides);
  for (int i = 0; i < rank; ++i) {
    int axis = i - (rank - x->rank), at = i - (rank - (int)count);
    own[i] = axis < 0 ? 1 : x->shape[axis];
    shape[i] = engine_times(own[i], at < 0 ? 1 : repeats[at]);
  }
  TRY(value_make(out, x->dtype, rank, shape));
  for (int64_t i = 0; i < out->count; ++i) {
    int64_t from = 0;
    for (int axis = rank - x->rank; axis < rank; ++axis)
      from += index[axis] % own[axis] * strides[axis - (rank - x->rank)];
    copy_element(out, i, x, from);
    for (int axis = rank - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
  }
  return ENGINE_OK;
}

OPERATION(size, 1) {
  TRY(value_make(out, IS_INT64, 0, 0));
  put_int(out, 0, x->count);
  return ENGINE_OK;
}

OPERATION(cast, 1) {
  TRY(value_make(out, (int)w->ints[0], x->rank, x->shape));
  for (int64_t i = 0; i < x->count; ++i) convert(out, i, x, i);
  return ENGINE_OK;
}

OPERATION(reshape, 2) {
  int64_t to[MOST_AXES], count, known = 1, nonempty = 1, total = 1;
  int open = -1;
  TRY(numbers(w, 1, w->int_count, to, MOST_AXES, &count));
  for (int i = 0; i < count; ++i) {
    if (to[i] == 0 && !w->ints[0]) {
      if (i >= x->rank) REFUSE("size 0 of an axis that is not there");
      to[i] = x->shape[i];
    }
    if (to[i] < -1 || (to[i] == -1 && open >= 0)) REFUSE("that is no shape");
    if (to[i] == -1) open = i;
    else known = engine_times(known, to[i]), nonempty = to[i] ? engine_times(nonempty, to[i]) : nonempty;
    if (known < 0 || nonempty < 0) REFUSE("a size that is too large");
  }
  for (int i = 0; i < x->rank; ++i) total *= known || x->shape[i] ? x->shape[i] : 1;
  if (open >= 0) to[open] = total / (known ? known : nonempty);
  return copied(w, (int)count, to);
}

OPERATION(flatten, 1) {
  int64_t shape[2] = {1, 1}, axis;
  axis = w->ints[0] < 0 ? w->ints[0] + x->rank : w->ints[0];
  if (axis < 0 || axis > x->rank) REFUSE("axis %lld of %d", (long long)axis, (int)x->rank);
  for (int i = 0; i < x->rank; ++i) shape[i >= axis] *= x->shape[i];
  return copied(w, 2, shape);
}

OPERATION(squeeze, 1) {
  int64_t list[MOST_AXES], count, shape[MOST_AXES];
  int gone, rank = 0;
  TRY(numbers(w, 1, 0, list, MOST_AXES, &count));
  TRY(axes_of(list, count, x->rank, 0, &gone));
  for (int i = 0; i < x->rank; ++i)
    if (gone & 1 << i && x->shape[i] != 1) REFUSE("axis %d has size %lld, not 1", i, (long long)x->shape[i]);
    else if (count < 0 ? x->shape[i] != 1 : !(gone & 1 << i)) shape[rank++] = x->shape[i];
  return copied(w, rank, shape);
}

OPERATION(unsqueeze, 1) {
  int64_t list[MOST_AXES], count, shape[MOST_AXES];
  int more, from = 0;
  TRY(numbers(w, 1, 0, list, MOST_AXES, &count));
  int rank = x->rank + (int)(count < 0 ? 0 : count);
  if (rank > MOST_AXES) REFUSE("%d axes, at most %d are supported", rank, MOST_AXES);
  TRY(axes_of(list, count, rank, 1, &more));
  for (int i = 0; i < rank; ++i) shape[i] = more & 1 << i ? 1 : x->shape[from++];
  return copied(w, rank, shape);
}

OPERATION(expand, 2) {
  int64_t to[MOST_AXES], count, shape[MOST_AXES], strides[MOST_AXES];
  struct value wanted = {0};
  int rank;
  TRY(numbers(w, 1, w->int_count, to, MOST_AXES, &count));
  wanted.rank = (int32_t)count;
  memcpy(wanted.shape, to, sizeof to);
  const struct value* both[2] = {x, &wanted};
  TRY(common(2, both, &rank, shape));
  TRY(spread(x, rank, shape, strides));
  return gathered(w, rank, shape, 0, strides);
}

OPERATION(slice, 1) {
  int64_t starts[MOST_AXES], ends[MOST_AXES], axes[MOST_AXES], steps[MOST_AXES], count[4], shape[MOST_AXES];
  int64_t strides[MOST_AXES] = {0}, base = 0;
  int at = 0;
  int64_t* lists[4] = {starts, ends, axes, steps};
  for (int i = 0; i < 4; ++i) { /* attributes: four lists, one after the other */
    TRY(numbers(w, i + 1, at, lists[i], MOST_AXES, &count[i]));
    at += at < w->int_count ? 1 + (int)(w->ints[at] < 0 ? 0 : w->ints[at]) : 0;
  }
  if (count[0] < 0 || count[0] != count[1]) REFUSE("starts or ends are missing");
  if ((count[2] > 0 && count[2] != count[0]) || (count[3] > 0 && count[3] != count[0])) REFUSE("lists that differ in length");
  memcpy(shape, x->shape, sizeof shape);
  own_strides(x, strides);
  for (int64_t i = 0; i < count[0]; ++i) {
    int axis;
    int64_t step = count[3] > 0 ? steps[i] : 1, first = starts[i], last = ends[i];
    TRY(axis_of(count[2] > 0 ? axes[i] : i, x->rank, &axis));
    int64_t size = x->shape[axis], low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    if (!step || step == INT64_MIN) REFUSE("a slice with step %lld", (long long)step);
    first = first < 0 ? first + size : first;
    last = last < 0 ? last + size : last;
    first = first < low ? low : first > high ? high : first;
    last = last < low ? low : last > high ? high : last;
    int64_t length = step > 0 ? last - first : first - last, stride = step > 0 ? step : -step;
    shape[axis] = length > 0 ? (length - 1) / stride + 1 : 0;
    base += shape[axis] ? first * strides[axis] : 0;
    strides[axis] *= shape[axis] > 1 ? step : 0;
  }
  return gathered(w, x->rank, shape, base, strides);
}

OPERATION(split, 1) {
  int64_t sizes[MOST_VALUES], count, total = 0, done = 0, outer, all, inner;
  int axis;
  TRY(axis_of(w->ints[0], x->rank, &axis));
  TRY(numbers(w, 1, 2, sizes, MOST_VALUES, &count));
  if (count < 0) { /* equal parts, the last one smaller */
    count = w->ints[1];
    if (count < 1 || count > MOST_VALUES) REFUSE("%lld parts", (long long)count);
    int64_t part = (x->shape[axis] + count - 1) / count;
    for (int64_t i = 0; i < count; ++i) {
      int64_t left = x->shape[axis] - i * part;
      sizes[i] = left < 0 ? 0 : left < part ? left : part;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (sizes[i] < 0 || sizes[i] > x->shape[axis]) REFUSE("a part of size %lld", (long long)sizes[i]);
    total += sizes[i];
  }
  if (total != x->shape[axis] || count < w->outs) REFUSE("parts that do not fill an axis of %lld", (long long)x->shape[axis]);
  split_shape(x, axis, &outer, &all, &inner);
  for (int i = 0; i < w->outs; ++i) {
    int64_t shape[MOST_AXES], own = sizes[i] * inner, size = value_size(x->dtype);
    memcpy(shape, x->shape, sizeof shape);
    shape[axis] = sizes[i];
    if (w->out[i]) {
      TRY(value_make(w->out[i], x->dtype, x->rank, shape));
      for (int64_t o = 0; o < outer; ++o)
        memcpy((char*)w->out[i]->data + o * own * size,
               (const char*)x->data + (o * x->shape[axis] * inner + done) * size, (size_t)(own * size));
    }
    done += own;
  }
  return ENGINE_OK;
}

static int64_t clamped(int64_t at, int64_t size) {
  at = at < 0 ? at + size : at;
  return at < 0 ? 0 : at > size ? size : at;
}

OPERATION(shape, 1) {
  int64_t rank = x->rank, start = clamped(w->ints[0], rank), end = w->ints[1] ? clamped(w->ints[2], rank) : rank;
  int64_t count = end > start ? end - start : 0;
  TRY(value_make(out, IS_INT64, 1, &count));
  for (int64_t i = 0; i < count; ++i) put_int(out, i, x->shape[start + i]);
  return ENGINE_OK;
}

OPERATION(constant_of_shape, 1) {
  int64_t shape[MOST_AXES], count;
  TRY(numbers(w, 0, w->int_count, shape, MOST_AXES, &count));
  TRY(value_make(out, (int)w->ints[0], (int)count, shape));
  for (int64_t i = 0; i < out->count; ++i) put(out, i, w->floats[0]);
  return ENGINE_OK;
}

OPERATION(range, 3) {
  for (int i = 0; i < 3; ++i)
    if (w->in[i]->count != 1) REFUSE("a range of arrays");
  double start = get(x, 0), limit = get(w->in[1], 0), delta = get(w->in[2], 0), many = ceil((limit - start) / delta);
  if (delta == 0 || !(many < 1e15)) REFUSE("a range without end");
  int64_t count = many > 0 ? (int64_t)many : 0;
  TRY(value_make(out, x->dtype, 1, &count));
  for (int64_t i = 0; i < count; ++i) {
    if (is_float(x)) put(out, i, start + (double)i * delta);
    else put_int(out, i, value_int(x, 0) + i * value_int(w->in[2], 0));
  }
  return ENGINE_OK;
}

/* Where an index beyond an axis is mirrored to, without the edge twice. */
static int64_t mirrored(int64_t at, int64_t size) {
  if (size < 2) return 0;
  at %= 2 * (size - 1);
  at = at < 0 ? at + 2 * (size - 1) : at;
  return at < size ? at : 2 * (size - 1) - at;
}

OPERATION(pad, 1) {
  int64_t pads[2 * MOST_AXES], axes[MOST_AXES], count, some, before[MOST_AXES] = {0}, shape[MOST_AXES], own[MOST_AXES];
  int64_t index[MOST_AXES] = {0}, mode = w->ints[0];
  TRY(numbers(w, 1, 1, pads, 2 * MOST_AXES, &count));
  TRY(numbers(w, 3, w->int_count, axes, MOST_AXES, &some));
  int64_t each = some > 0 ? some : x->rank;
  if (count != 2 * each) REFUSE("%lld pads for %lld axes", (long long)count, (long long)each);
  memcpy(shape, x->shape, sizeof shape);
  own_strides(x, own);
  for (int64_t i = 0; i < each; ++i) {
    int axis;
    TRY(axis_of(some > 0 ? axes[i] : i, x->rank, &axis));
    if (pads[i] < 0 || pads[i + each] < 0) REFUSE("a negative pad");
    before[axis] = pads[i];
    if (__builtin_add_overflow(x->shape[axis], pads[i], &shape[axis]) ||
        __builtin_add_overflow(shape[axis], pads[i + each], &shape[axis]))
      REFUSE("a size that is too large");
    if (mode && !x->shape[axis] && shape[axis]) REFUSE("an empty axis has no edge");
  }
  TRY(value_make(out, x->dtype, x->rank, shape));
  int given = w->ins > 2 && w->in[2] && w->in[2]->count == 1;
  for (int64_t i = 0; i < out->count; ++i) {
    int64_t from = 0;
    int outside = 0;
    for (int axis = 0; axis < x->rank; ++axis) {
      int64_t at = index[axis] - before[axis], size = x->shape[axis];
      if (mode == 2) at = mirrored(at, size);
      else if (mode == 1) at = at < 0 ? 0 : at >= size ? size - 1 : at;
      else outside |= at < 0 || at >= size;
      from += at * own[axis];
    }
    if (!outside) copy_element(out, i, x, from);
    else if (given) convert(out, i, w->in[2], 0);
    else put(out, i, w->floats[0]);
    for (int axis = x->rank - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
  }
  return ENGINE_OK;
}

OPERATION(gather, 2) {
  int64_t shape[2 * MOST_AXES], outer = 1, inner = 1;
  int axis, rank = 0;
  const struct value* at = w->in[1];
  TRY(axis_of(w->ints[0], x->rank, &axis));
  for (int i = 0; i < axis; ++i) outer *= shape[rank++] = x->shape[i];
  for (int i = 0; i < at->rank; ++i) shape[rank++] = at->shape[i];
  for (int i = axis + 1; i < x->rank; ++i) inner *= shape[rank++] = x->shape[i];
  TRY(value_make(out, x->dtype, rank, shape));
  int64_t bytes = inner * value_size(x->dtype), size = x->shape[axis];
  for (int64_t k = 0; k < at->count; ++k) {
    int64_t place = value_int(at, k);
    place = place < 0 ? place + size : place;
    if (place < 0 || place >= size) REFUSE("index %lld of %lld", (long long)value_int(at, k), (long long)size);
    for (int64_t o = 0; o < outer; ++o)
      memcpy((char*)out->data + (o * at->count + k) * bytes, (const char*)x->data + (o * size + place) * bytes,
             (size_t)bytes);
  }
  return ENGINE_OK;
}

OPERATION(reverse_sequence, 2) {
  int time, batch;
  int64_t own[MOST_AXES], index[MOST_AXES] = {0};
  const struct value* lengths = w->in[1];
  TRY(axis_of(w->ints[0], x->rank, &time));
  TRY(axis_of(w->ints[1], x->rank, &batch));
  if (time == batch || lengths->count != x->shape[batch]) REFUSE("lengths do not fit");
  own_strides(x, own);
  TRY(value_make(out, x->dtype, x->rank, x->shape));
  for (int64_t i = 0; i < x->count; ++i) {
    int64_t t = index[time], n = value_int(lengths, index[batch]);
    if (n > x->shape[time]) REFUSE("length %lld of %lld", (long long)n, (long long)x->shape[time]);
    copy_element(out, i, x, i + (t < n ? n - 1 - 2 * t : 0) * own[time]);
    for (int axis = x->rank - 1; axis >= 0 && ++index[axis] == x->shape[axis]; --axis) index[axis] = 0;
  }
  return ENGINE_OK;
}

/* --- element by element --- */

/* In the order of program.py's UNARY. */
enum { TANH, EXP, LOG, SQRT, FLOOR, CEIL, SIN, COS, ABS, NEG, SIGN, ROUND, RECIPROCAL, RELU, SIGMOID, SOFTPLUS, ERF,
       ELU, LEAKY_RELU, NOT };

static double unary(int kind, double x, const double* p) {
  switch (kind) {
    case TANH: return tanh(x);
    case EXP: return exp(x);
    case LOG: return log(x);
    case SQRT: return sqrt(x);
    case FLOOR: return floor(x);
    case CEIL: return ceil(x);
    case SIN: return sin(x);
    case COS: return cos(x);
    case ABS: return fabs(x);
    case NEG: return -x;
    case SIGN: return x > 0 ? 1 : x < 0 ? -1 : x;
    case ROUND: return rint(x);
    case RECIPROCAL: return 1 / x;
    case RELU: return x > 0 ? x : x != x ? x : 0;
    case SIGMOID: return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
    case SOFTPLUS: return x != x ? x : (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    case ERF: return erf(x);
    case ELU: return x > 0 ? x : p[0] * expm1(x);
    case LEAKY_RELU: return x >= 0 ? x : p[0] * x;
    default: return x == 0;
  }
}

OPERATION(unary, 1) {
  int kind = (int)w->ints[0], exact = kind == ABS || kind == NEG || kind == SIGN || kind == RELU;
  TRY(value_make(out, kind == NOT ? IS_BOOL : x->dtype, x->rank, x->shape));
  for (int64_t i = 0; i < x->count; ++i) {
    if (is_float(x) || !exact) {
      put(out, i, unary(kind, get(x, i), w->floats));
      continue;
    }
    int64_t v = value_int(x, i), minus = (int64_t)(0 - (uint64_t)v);
    put_int(out, i, kind == NEG ? minus : kind == ABS ? (v < 0 ? minus : v) : kind == SIGN ? (v > 0) - (v < 0)
                                                                                       : v > 0 ? v : 0);
  }
  return ENGINE_OK;
}

/* In the order of program.py's BINARY. */
enum { ADD, SUB, MUL, DIV, MOD, FMOD, POW, MAXIMUM, MINIMUM, EQUAL, GREATER, GREATER_OR_EQUAL, LESS, LESS_OR_EQUAL,
       AND, OR, XOR };

static double binary(int kind, double a, double b) {
  switch (kind) {
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case MOD: { double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
    case FMOD: return fmod(a, b);
    case POW: return pow(a, b);
    case MAXIMUM: return a != a ? a : b != b ? b : a > b ? a : b;
    case MINIMUM: return a != a ? a : b != b ? b : a < b ? a : b;
    case EQUAL: return a == b;
    case GREATER: return a > b;
    case GREATER_OR_EQUAL: return a >= b;
    case LESS: return a < b;
    case LESS_OR_EQUAL: return a <= b;
    case AND: return a != 0 && b != 0;
    case OR: return a != 0 || b != 0;
    default: return (a != 0) != (b != 0);
  }
}

static int64_t binary_int(int kind, int64_t a, int64_t b) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (kind) {
    case ADD: return (int64_t)(x + y);
    case SUB: return (int64_t)(x - y);
    case MUL: return (int64_t)(x * y);
    case DIV: return b == -1 ? (int64_t)(0 - x) : a / b;
    case MOD: { int64_t r = b == -1 ? 0 : a % b; return r && (r < 0) != (b < 0) ? r + b : r; }
    case FMOD: return b == -1 ? 0 : a % b;
    case MAXIMUM: return a > b ? a : b;
    case MINIMUM: return a < b ? a : b;
    case EQUAL: return a == b;
    case GREATER: return a > b;
    case GREATER_OR_EQUAL: return a >= b;
    case LESS: return a < b;
    case LESS_OR_EQUAL: return a <= b;
    default: return (int64_t)binary(kind, (double)a, (double)b);
  }
}

/* One row of float32, of ADD to DIV. Strides are 0 or 1. */
static void combine_row(int kind, int64_t n, float* out, const float* a, int64_t sa, const float* b, int64_t sb) {
#define EACH(OP) for (int64_t i = 0; i < n; ++i) out[i] = a[i * sa] OP b[i * sb]
  if (kind == ADD) EACH(+);
  else if (kind == SUB) EACH(-);
  else if (kind == MUL) EACH(*);
  else EACH(/);
#undef EACH
}

static int32_t combined(struct value* out, int kind, const struct value* a, const struct value* b) {
  int64_t shape[MOST_AXES], strides[2][MOST_AXES];
  int rank, dtype = together(a->dtype, b->dtype), whole_numbers = !is_float(a) && !is_float(b);
  const struct value* both[2] = {a, b};
  struct walk walk = {{0}, {0}};
  TRY(common(2, both, &rank, shape));
  TRY(spread(a, rank, shape, strides[0]));
  TRY(spread(b, rank, shape, strides[1]));
  TRY(value_make(out, kind >= EQUAL ? IS_BOOL : kind == POW ? a->dtype : dtype, rank, shape));
  if (rank && kind <= DIV && a->dtype == IS_FLOAT32 && b->dtype == IS_FLOAT32) {
    int64_t n = shape[rank - 1], sa = strides[0][rank - 1], sb = strides[1][rank - 1];
    for (int64_t i = 0; i < out->count; i += n) {
      const float *one = (const float*)a->data + walk.at[0], *two = (const float*)b->data + walk.at[1];
      combine_row(kind, n, (float*)out->data + i, one, sa, two, sb);
      next(&walk, rank - 1, shape, 2, strides);
    }
    return ENGINE_OK;
  }
  for (int64_t i = 0; i < out->count; ++i) {
    if (!whole_numbers) {
      put(out, i, binary(kind, get(a, walk.at[0]), get(b, walk.at[1])));
    } else {
      int64_t right = value_int(b, walk.at[1]);
      if (!right && (kind == DIV || kind == MOD || kind == FMOD)) REFUSE("a whole number divided by 0");
      put_int(out, i, kind == POW ? whole(pow((double)value_int(a, walk.at[0]), (double)right))
                                  : binary_int(kind, value_int(a, walk.at[0]), right));
    }
    next(&walk, rank, shape, 2, strides);
  }
  return ENGINE_OK;
}

OPERATION(binary, 2) {
  return combined(out, (int)w->ints[0], x, w->in[1]);
}

OPERATION(where, 3) {
  int64_t shape[MOST_AXES], strides[3][MOST_AXES];
  struct walk walk = {{0}, {0}};
  int rank;
  TRY(common(3, w->in, &rank, shape));
  for (int i = 0; i < 3; ++i) TRY(spread(w->in[i], rank, shape, strides[i]));
  TRY(value_make(out, together(w->in[1]->dtype, w->in[2]->dtype), rank, shape));
  for (int64_t i = 0; i < out->count; ++i) {
    int which = value_int(x, walk.at[0]) ? 1 : 2;
    convert(out, i, w->in[which], walk.at[which]);
    next(&walk, rank, shape, 3, strides);
  }
  return ENGINE_OK;
}

/* floats: whether there is a least and a largest value as an attribute, and which. */
OPERATION(clip, 1) {
  TRY(value_make(out, x->dtype, x->rank, x->shape));
  const struct value *low = w->ins > 1 ? w->in[1] : 0, *high = w->ins > 2 ? w->in[2] : 0;
  if ((low && low->count != 1) || (high && high->count != 1)) REFUSE("limits that are arrays");
  for (int64_t i = 0; i < x->count; ++i) {
    if (is_float(x)) {
      double v = get(x, i);
      if (low || w->floats[0]) v = binary(MAXIMUM, v, low ? get(low, 0) : w->floats[1]);
      if (high || w->floats[2]) v = binary(MINIMUM, v, high ? get(high, 0) : w->floats[3]);
      put(out, i, v);
    } else {
      int64_t v = value_int(x, i);
      if (low || w->floats[0]) v = binary_int(MAXIMUM, v, low ? value_int(low, 0) : whole(w->floats[1]));
      if (high || w->floats[2]) v = binary_int(MINIMUM, v, high ? value_int(high, 0) : whole(w->floats[3]));
      put_int(out, i, v);
    }
  }
  return ENGINE_OK;
}

/* --- products --- */

/* A product of matrices with strides of rows and columns: out[m, n] = sum_k a[m, k] b[k, n], out dense from `at` on. */
struct product {
  struct value* out;
  const struct value *a, *b;
  int64_t at, from_a, from_b, sa[2], sb[2], M, K, N;
};

/* What the compiler may use: a bundle is compiled for its module's CPU. */
#if defined(__AVX512F__)
enum { LANES = 8 };
#elif defined(__AVX__)
enum { LANES = 4 };
#else
enum { LANES = 2 };
#endif
typedef double lanes __attribute__((vector_size(LANES * 8), aligned(8), may_alias));

/* Blocks of the operands lie dense; TILE_M x 2 LANES sums are in registers at once, those beyond the ends for nothing. */
enum { TILE_M = 4, BLOCK_M = 64, BLOCK_N = 32, BLOCK_K = 128 };
struct blocks {
  double a[BLOCK_M][BLOCK_K], b[BLOCK_K][BLOCK_N], sum[BLOCK_M][BLOCK_N];
};

/* rows x columns of an array, with its strides, into rows of that width. */
static void fill_block(double* block, int64_t width, const struct value* v, int64_t from, const int64_t* strides,
                       int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, block += width, from += strides[0]) {
    const float* x = (const float*)v->data + from;
    if (v->dtype != IS_FLOAT32)
      for (int64_t k = 0; k < columns; ++k) block[k] = get(v, from + k * strides[1]);
    else if (strides[1] == 1)
      for (int64_t k = 0; k < columns; ++k) block[k] = x[k];
    else
      for (int64_t k = 0; k < columns; ++k) block[k] = x[k * strides[1]];
  }
}

static void add_tile(struct blocks* own, int64_t m, int64_t n, int64_t depth) {
  lanes sums[TILE_M][2] = {{{0}}};
  for (int64_t k = 0; k < depth; ++k) {
    const lanes left = *(const lanes*)&own->b[k][n], right = *(const lanes*)&own->b[k][n + LANES];
    for (int i = 0; i < TILE_M; ++i) {
      sums[i][0] += left * own->a[m + i][k];
      sums[i][1] += right * own->a[m + i][k];
    }
  }
  for (int i = 0; i < TILE_M; ++i)
    for (int j = 0; j < 2; ++j) *(lanes*)&own->sum[m + i][n + j * LANES] += sums[i][j];
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int32_t multiply_floats(const struct product* p) {
  struct blocks* own = calloc(1, sizeof *own);
  if (!own) FAIL(NO_MEMORY, "no memory for a product");
  for (int64_t m = 0; m < p->M; m += BLOCK_M)
    for (int64_t n = 0; n < p->N; n += BLOCK_N) {
      int64_t rows = least(p->M - m, BLOCK_M), columns = least(p->N - n, BLOCK_N);
      memset(own->sum, 0, sizeof own->sum);
      for (int64_t k = 0; k < p->K; k += BLOCK_K) {
        int64_t depth = least(p->K - k, BLOCK_K);
        fill_block(own->a[0], BLOCK_K, p->a, p->from_a + m * p->sa[0] + k * p->sa[1], p->sa, rows, depth);
        fill_block(own->b[0], BLOCK_N, p->b, p->from_b + k * p->sb[0] + n * p->sb[1], p->sb, depth, columns);
        for (int64_t i = 0; i < rows; i += TILE_M)
          for (int64_t j = 0; j < columns; j += 2 * LANES) add_tile(own, i, j, depth);
      }
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) put(p->out, p->at + (m + i) * p->N + n + j, own->sum[i][j]);
    }
  free(own);
  return ENGINE_OK;
}

static int32_t multiply(const struct product* p) {
  if (is_float(p->out)) return multiply_floats(p);
  for (int64_t m = 0; m < p->M; ++m)
    for (int64_t n = 0; n < p->N; ++n) {
      int64_t total = 0, i = p->from_a + m * p->sa[0], k = p->from_b + n * p->sb[1];
      for (int64_t j = 0; j < p->K; ++j, i += p->sa[1], k += p->sb[0])
        total = binary_int(ADD, total, binary_int(MUL, value_int(p->a, i), value_int(p->b, k)));
      put_int(p->out, p->at + m * p->N + n, total);
    }
  return ENGINE_OK;
}

OPERATION(matmul, 2) {
  int64_t shape[MOST_AXES], strides[2][MOST_AXES], M, K, N;
  struct value a, b, lead[2];
  struct walk walk = {{0}, {0}};
  int rank;
  a = *x, b = *w->in[1];
  if (!a.rank || !b.rank) REFUSE("a product of a number");
  int row = a.rank == 1, column = b.rank == 1;
  if (row) a.rank = 2, a.shape[1] = a.shape[0], a.shape[0] = 1;
  if (column) b.rank = 2, b.shape[1] = 1;
  M = a.shape[a.rank - 2], K = a.shape[a.rank - 1], N = b.shape[b.rank - 1];
  if (b.shape[b.rank - 2] != K) REFUSE("a product over %lld and %lld", (long long)K, (long long)b.shape[b.rank - 2]);
  lead[0] = a, lead[1] = b;
  lead[0].rank -= 2, lead[1].rank -= 2;
  const struct value* both[2] = {&lead[0], &lead[1]};
  TRY(common(2, both, &rank, shape));
  for (int i = 0; i < 2; ++i) {
    TRY(spread(both[i], rank, shape, strides[i]));
    for (int axis = 0; axis < rank; ++axis) strides[i][axis] *= i ? K * N : M * K;
  }
  int64_t batches = 1, outs[MOST_AXES + 2];
  int all = rank;
  for (int axis = 0; axis < rank; ++axis) batches = engine_times(batches, outs[axis] = shape[axis]);
  if (!row) outs[all++] = M;
  if (!column) outs[all++] = N;
  TRY(value_make(out, together(a.dtype, b.dtype), all, outs));
  for (int64_t i = 0; i < batches; ++i) {
    const struct product own = {out, &a, &b, i * M * N, walk.at[0], walk.at[1], {K, 1}, {N, 1}, M, K, N};
    TRY(multiply(&own));
    next(&walk, rank, shape, 2, strides);
  }
  return ENGINE_OK;
}

/* --- over axes --- */

/* ints: axis, whether the axes from it on are one, whether the logarithm is meant. */
OPERATION(softmax, 1) {
  int axis;
  int64_t outer = 1, inner = 1, size = 1;
  if (w->ints[1]) {
    int64_t from = w->ints[0] < 0 ? w->ints[0] + x->rank : w->ints[0];
    if (from < 0 || from > x->rank) REFUSE("axis %lld of %d", (long long)from, (int)x->rank);
    for (int i = 0; i < x->rank; ++i) *(i < from ? &outer : &size) *= x->shape[i];
  } else {
    TRY(axis_of(w->ints[0], x->rank, &axis));
    split_shape(x, axis, &outer, &size, &inner);
  }
  TRY(value_make(out, x->dtype, x->rank, x->shape));
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t n = 0; n < inner; ++n) {
      int64_t base = o * size * inner + n;
      double top = -INFINITY, sum = 0;
      for (int64_t k = 0; k < size; ++k) top = binary(MAXIMUM, top, get(x, base + k * inner));
      for (int64_t k = 0; k < size; ++k) sum += exp(get(x, base + k * inner) - top);
      for (int64_t k = 0; k < size; ++k) {
        double own = get(x, base + k * inner) - top;
        put(out, base + k * inner, w->ints[2] ? own - log(sum) : exp(own) / sum);
      }
    }
  return ENGINE_OK;
}

/* In the order of program.py's REDUCTIONS. */
enum { SUM, MEAN, MAX, MIN, PROD, LOG_SUM_EXP };

/* How each takes one more value. */
static const uint8_t JOINS[] = {ADD, ADD, MAXIMUM, MINIMUM, MUL, ADD};

static int64_t first_int(int kind, int dtype) {
  int64_t least = dtype == IS_BOOL ? 0 : dtype == IS_INT32 ? INT32_MIN : INT64_MIN;
  int64_t most = dtype == IS_BOOL ? 1 : dtype == IS_INT32 ? INT32_MAX : INT64_MAX;
  return kind == MAX ? least : kind == MIN ? most : kind == PROD;
}

/* Which element of the result an element of the operand goes to: strides of the operand's axes. */
static void reduced(const struct value* x, int over, int keep, int* rank, int64_t* shape, int64_t* strides) {
  int64_t stride = 1;
  *rank = 0;
  for (int i = 0; i < MOST_AXES; ++i) strides[i] = 0;
  for (int i = x->rank - 1; i >= 0; --i)
    if (!(over & 1 << i)) strides[i] = stride, stride *= x->shape[i];
  for (int i = 0; i < x->rank; ++i)
    if (!(over & 1 << i)) shape[(*rank)++] = x->shape[i];
    else if (keep) shape[(*rank)++] = 1;
}

/* ints: which reduction, keepdims, whether no axes means none, then the axes. */
OPERATION(reduce, 1) {
  int64_t list[MOST_AXES], count, shape[MOST_AXES], strides[MOST_AXES], many = 1;
  int over, rank, kind = (int)w->ints[0];
  TRY(numbers(w, 1, 3, list, MOST_AXES, &count));
  if (count <= 0 && w->ints[2]) return op_identity(w);
  TRY(axes_of(list, count, x->rank, 0, &over));
  if (count <= 0) over = (1 << x->rank) - 1;
  reduced(x, over, w->ints[1] != 0, &rank, shape, strides);
  TRY(value_make(out, x->dtype, rank, shape));
  for (int i = 0; i < x->rank; ++i) many *= over & 1 << i ? x->shape[i] : 1;
  double* sums = calloc((size_t)out->count + 1, 2 * sizeof *sums); /* so far; the largest, where that is needed */
  int64_t* totals = calloc((size_t)out->count + 1, sizeof *totals);
  if (!sums || !totals) {
    free(sums);
    free(totals);
    FAIL(NO_MEMORY, "no memory for a reduction");
  }
  int exact = !is_float(x) && kind != MEAN && kind != LOG_SUM_EXP;
  for (int64_t i = 0; i < out->count; ++i) {
    sums[2 * i] = kind == MAX ? -INFINITY : kind == MIN ? INFINITY : kind == PROD;
    sums[2 * i + 1] = -INFINITY;
    totals[i] = first_int(kind, x->dtype);
  }
  for (int pass = kind != LOG_SUM_EXP; pass < 2; ++pass) {
    struct walk walk = {{0}, {0}};
    for (int64_t i = 0; i < x->count; ++i) {
      int64_t at = walk.at[0];
      double v = get(x, i), *top = &sums[2 * at + 1];
      if (!pass) *top = binary(MAXIMUM, *top, v);
      else if (exact) totals[at] = binary_int(JOINS[kind], totals[at], value_int(x, i));
      else sums[2 * at] = binary(JOINS[kind], sums[2 * at], kind == LOG_SUM_EXP ? exp(v - (isfinite(*top) ? *top : 0)) : v);
      next(&walk, x->rank, x->shape, 1, &strides);
    }
  }
  for (int64_t i = 0; i < out->count; ++i) {
    double v = sums[2 * i], top = isfinite(sums[2 * i + 1]) ? sums[2 * i + 1] : 0;
    if (exact) put_int(out, i, totals[i]);
    else put(out, i, kind == MEAN ? v / (double)many : kind == LOG_SUM_EXP ? top + log(v) : v);
  }
  free(sums);
  free(totals);
  return ENGINE_OK;
}

/* ints: whether the largest is meant, axis, keepdims, whether the last of equal ones counts. */
OPERATION(extremum, 1) {
  int axis, rank;
  int64_t shape[MOST_AXES], strides[MOST_AXES], outer, size, inner;
  TRY(axis_of(w->ints[1], x->rank, &axis));
  reduced(x, 1 << axis, w->ints[2] != 0, &rank, shape, strides);
  TRY(value_make(out, IS_INT64, rank, shape));
  split_shape(x, axis, &outer, &size, &inner);
  if (!size && out->count) REFUSE("the largest of nothing");
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t n = 0; n < inner; ++n) {
      int64_t best = 0, base = o * size * inner + n;
      for (int64_t k = 1; k < size; ++k) {
        double a = get(x, base + best * inner), b = get(x, base + k * inner);
        int64_t whole_a = value_int(x, base + best * inner), whole_b = value_int(x, base + k * inner);
        int same = is_float(x) ? a == b || (a != a && b != b) : whole_a == whole_b;
        int better = is_float(x) ? (a == a && b != b) || (w->ints[0] ? b > a : b < a)
                                 : w->ints[0] ? whole_b > whole_a : whole_b < whole_a;
        if (better || (same && w->ints[3])) best = k;
      }
      put_int(out, o * inner + n, best);
    }
  return ENGINE_OK;
}

/* floats: epsilon. */
OPERATION(batch_normalization, 5) {
  int axis = x->rank > 1;
  int64_t inner = 1, size = x->rank ? x->shape[axis] : 1;
  for (int i = 1; i < 5; ++i)
    if (w->in[i]->count != size && w->in[i]->count != 1) REFUSE("%lld factors for %lld", (long long)w->in[i]->count, (long long)size);
  for (int i = axis + 1; i < x->rank; ++i) inner *= x->shape[i];
  TRY(value_make(out, x->dtype, x->rank, x->shape));
  for (int64_t i = 0; i < x->count; ++i) {
    double p[4];
    for (int k = 0; k < 4; ++k) p[k] = get(w->in[k + 1], w->in[k + 1]->count == 1 ? 0 : i / inner % size);
    put(out, i, (get(x, i) - p[2]) / sqrt(p[3] + w->floats[0]) * p[0] + p[1]);
  }
  return ENGINE_OK;
}

/* ints: axis. floats: epsilon. */
OPERATION(layer_normalization, 2) {
  int64_t outer = 1, inner = 1, shape[MOST_AXES], strides[2][MOST_AXES] = {{0}, {0}};
  struct value spare[2] = {{0}, {0}};
  struct walk walk = {{0}, {0}};
  int axis;
  const struct value *scale = w->in[1], *bias = w->ins > 2 ? w->in[2] : 0;
  TRY(axis_of(w->ints[0], x->rank, &axis));
  memcpy(shape, x->shape, sizeof shape);
  for (int i = 0; i < x->rank; ++i) *(i < axis ? &outer : &inner) *= x->shape[i];
  for (int i = axis; i < x->rank; ++i) shape[i] = 1;
  TRY(spread(scale, x->rank, x->shape, strides[0]));
  if (bias) TRY(spread(bias, x->rank, x->shape, strides[1]));
  TRY(value_make(out, x->dtype, x->rank, x->shape));
  struct value* rows[2];
  for (int i = 0; i < 2; ++i) {
    rows[i] = w->outs > i + 1 && w->out[i + 1] ? w->out[i + 1] : &spare[i];
    TRY(value_make(rows[i], x->dtype, x->rank, shape));
  }
  for (int64_t o = 0; o < outer; ++o) {
    double mean = 0, square = 0;
    for (int64_t k = 0; k < inner; ++k) mean += get(x, o * inner + k) / (double)inner;
    for (int64_t k = 0; k < inner; ++k) square += (get(x, o * inner + k) - mean) * (get(x, o * inner + k) - mean);
    double inverse = 1 / sqrt(square / (double)inner + w->floats[0]);
    put(rows[0], o, mean);
    put(rows[1], o, inverse);
    for (int64_t k = 0; k < inner; ++k) {
      double y = (get(x, o * inner + k) - mean) * inverse * get(scale, walk.at[0]);
      put(out, o * inner + k, bias ? y + get(bias, walk.at[1]) : y);
      next(&walk, x->rank, x->shape, 2, strides);
    }
  }
  value_free(&spare[0]);
  value_free(&spare[1]);
  return ENGINE_OK;
}

/* --- masks of Keras --- */

OPERATION(lengths_of_mask, 1) {
  if (x->rank != 2) REFUSE("a mask of %d axes", (int)x->rank);
  TRY(value_make(out, IS_INT32, 1, x->shape));
  for (int64_t b = 0; b < x->shape[0]; ++b) {
    int64_t count = 0;
    for (int64_t t = 0; t < x->shape[1]; ++t) {
      if (get(x, b * x->shape[1] + t) == 0) continue;
      if (count++ < t) REFUSE("a mask may leave out steps at the end of a row, not before steps that count");
    }
    put_int(out, b, count);
  }
  return ENGINE_OK;
}

OPERATION(hold_last, 2) {
  int64_t inner = 1;
  const struct value* lengths = w->in[1];
  if (x->rank < 2 || lengths->count != x->shape[0]) REFUSE("lengths do not fit");
  for (int i = 2; i < x->rank; ++i) inner *= x->shape[i];
  TRY(value_make(out, x->dtype, x->rank, x->shape));
  for (int64_t b = 0; b < x->shape[0]; ++b)
    for (int64_t t = 0; t < x->shape[1]; ++t) {
      int64_t last = value_int(lengths, b) - 1, from = t < (last < 0 ? 0 : last) ? t : last < 0 ? 0 : last;
      for (int64_t k = 0; k < inner; ++k)
        copy_element(out, (b * x->shape[1] + t) * inner + k, x, (b * x->shape[1] + from) * inner + k);
    }
  return ENGINE_OK;
}
