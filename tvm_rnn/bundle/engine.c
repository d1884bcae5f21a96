/* Call the functions of a module, with the C library alone.

   In: its code and weights (code_file.c, code_linked.c) and what its generated source says of them. Out: results in the
   caller's arrays. A call of a step takes no memory and no lock, starts no thread and makes no system call; what it needs
   was taken by `open` and `reserve`. C11 with GNU extensions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

enum { ALIGNMENT = 64, MOST_THREADS = 256 };

typedef TVMFFISafeCallType Function;

/* The code and the weights, shared by handles. */
struct loaded {
  const struct engine_module* module;
  int references;
  struct engine_code code;
  int (*pool_resize)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  int (*pool_size)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  void (*last_error)(char*, int64_t);
  struct network {
    Function sequence, generate;
    void *packed, *direct_packed;
    void (*direct)(void);
  } network[];
};

/* Memory of a handle: what is in front of it. idle: how many runs have had no use for it. */
struct piece {
  struct piece* next;
  int64_t bytes;
  int idle;
  enum { PIECE_FREE, PIECE_TAKEN, PIECE_KEPT } state;
};

struct engine {
  struct engine_direct* direct; /* first: inline functions of the header read it */
  struct loaded* loaded;
  int32_t threads;
  struct piece* pieces;
  struct room {
    void *work, *states; /* states: where a call's first states are copied, so that results may take their place */
    void* packed;        /* weights that were given to this handle; null where they are the file's */
    void* loop;          /* of generation */
    int64_t work_elements, state_rows, loop_rows;
  } room[];
};

/* --- messages --- */

static __thread char text[1024];

const char* engine_error(void) { return text; }

int32_t engine_fail(int32_t code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return code;
}

int64_t engine_times(int64_t a, int64_t b) {
  int64_t result;
  return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &result) ? -1 : result;
}

/* --- calls of compiled functions --- */

static const int64_t ONE_STRIDE[1] = {1};

static void flat(DLTensor* tensor, TVMFFIAny* argument, const void* data, const int64_t* elements, uint8_t code,
                 uint8_t bits) {
  memset(tensor, 0, sizeof *tensor);
  memset(argument, 0, sizeof *argument);
  tensor->data = (void*)data;
  tensor->device.device_type = kDLCPU;
  tensor->ndim = 1;
  tensor->dtype.code = code;
  tensor->dtype.bits = bits;
  tensor->dtype.lanes = 1;
  tensor->shape = (int64_t*)elements;
  tensor->strides = (int64_t*)ONE_STRIDE;
  argument->type_index = kTVMFFIDLTensorPtr;
  argument->v_ptr = tensor;
}

static void integer(TVMFFIAny* argument, int64_t value) {
  memset(argument, 0, sizeof *argument);
  argument->type_index = kTVMFFIInt;
  argument->v_int64 = value;
}

static void floating(TVMFFIAny* argument, double value) {
  memset(argument, 0, sizeof *argument);
  argument->type_index = kTVMFFIFloat;
  argument->v_float64 = value;
}

static int32_t called(const struct loaded* own, int status) {
  if (!status) return ENGINE_OK;
  char said[512] = "";
  own->last_error(said, sizeof said);
  FAIL(FAILED, "the compiled code failed: %s", said[0] ? said : "it says nothing");
}

static void* aligned(int64_t elements, int64_t bytes) {
  int64_t size = engine_times(elements < 1 ? 1 : elements, bytes);
  if (size < 0 || (uint64_t)size > SIZE_MAX - ALIGNMENT) return 0;
  size_t whole = ((size_t)size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  void* memory = 0; /* not by aligned_alloc, which Android has had since 2018 alone */
  if (posix_memalign(&memory, ALIGNMENT, whole)) return 0;
  return memset(memory, 0, whole); /* every page is there from now on */
}

/* How weights are laid out: packs of so many elements. */
struct layout {
  const struct engine_pack* pack;
  int32_t packs;
  int64_t elements;
};

/* Lay weights out as the code reads them, into *place. given: those that are not in the file. */
static int32_t pack_weights(struct loaded* own, struct layout layout, uint8_t bits, const void* const* given,
                            void** place) {
  void* packed = *place = *place ? *place : aligned(layout.elements, bits / 8);
  if (!packed) FAIL(NO_MEMORY, "no memory for the weights");
  for (int32_t p = 0; p < layout.packs; ++p) {
    const struct engine_pack* pack = &layout.pack[p];
    Function function = (Function)engine_symbol(&own->code, "__tvm_ffi_", pack->function);
    DLTensor* tensors = calloc((size_t)pack->count + 1, sizeof *tensors);
    TVMFFIAny *arguments = calloc((size_t)pack->count + 2, sizeof *arguments), result = {0};
    int32_t status = ENGINE_OK;
    if (!function) status = engine_fail(ENGINE_BAD_FILE, "the module has no function %s", pack->function);
    else if (!tensors || !arguments) status = engine_fail(ENGINE_NO_MEMORY, "no memory to lay out weights");
    else {
      for (int32_t i = 0; i < pack->count; ++i) {
        const struct engine_array* a = &own->module->array[pack->arrays[i]];
        const void* data = a->offset < 0 ? given[-1 - a->offset] : own->code.data + a->offset;
        flat(&tensors[i], &arguments[i], data, &a->elements, a->code, a->bits);
      }
      flat(&tensors[pack->count], &arguments[pack->count], packed, &layout.elements, kDLFloat, bits);
      integer(&arguments[pack->count + 1], pack->offset);
      status = called(own, function(0, arguments, pack->count + 2, &result));
    }
    free(tensors);
    free(arguments);
    if (status) return status;
  }
  return ENGINE_OK;
}

static struct layout whole_layout(const struct engine_network* n) {
  return (struct layout){n->pack, n->packs, n->packed_elements};
}

static int32_t load_network(struct loaded* own, int32_t number) {
  const char* path = own->module->file;
  const struct engine_network* n = &own->module->network[number];
  struct network* loaded = &own->network[number];
  if (n->sequence) loaded->sequence = (Function)engine_symbol(&own->code, "__tvm_ffi_", n->sequence);
  if (n->generation) loaded->generate = (Function)engine_symbol(&own->code, "__tvm_ffi_", n->generation->function);
  if (n->direct) *(void**)&loaded->direct = engine_symbol(&own->code, "", n->direct);
  if ((n->sequence && !loaded->sequence) || (n->direct && !loaded->direct))
    FAIL(BAD_FILE, "%s has no sequence function, or no step", path);
  if (n->generation && !loaded->generate) FAIL(BAD_FILE, "%s has no function that generates", path);
  if (n->given) return ENGINE_OK;
  TRY(pack_weights(own, whole_layout(n), n->bits, 0, &loaded->packed));
  if (!n->direct) return ENGINE_OK;
  const struct layout direct = {n->direct_pack, n->direct_packs, n->direct_elements};
  return pack_weights(own, direct, n->bits, 0, &loaded->direct_packed);
}

static int32_t load_code(struct loaded* own, const char* path) {
  TRY(engine_code_open(path, &own->code));
  Function install = (Function)engine_symbol(&own->code, "__tvm_ffi_", "pool_install");
  *(void**)&own->pool_resize = engine_symbol(&own->code, "__tvm_ffi_", "pool_resize");
  *(void**)&own->pool_size = engine_symbol(&own->code, "__tvm_ffi_", "pool_size");
  *(void**)&own->last_error = engine_symbol(&own->code, "", "tvm_rnn_last_error");
  if (!install || !own->pool_resize || !own->pool_size || !own->last_error)
    FAIL(BAD_FILE, "%s has no functions of tvm_rnn", own->module->file);
  TVMFFIAny result = {0};
  int32_t status = called(own, install(0, 0, 0, &result));
  for (int32_t i = 0; !status && i < own->module->networks; ++i) status = load_network(own, i);
  return status;
}

/* --- handles --- */

static void release(struct loaded* own) {
  if (__atomic_sub_fetch(&own->references, 1, __ATOMIC_ACQ_REL)) return;
  for (int32_t i = 0; i < own->module->networks; ++i) {
    free(own->network[i].packed);
    free(own->network[i].direct_packed);
  }
  engine_code_close(&own->code);
  free(own);
}

static int32_t handle_of(struct loaded* own, struct engine** out) {
  size_t networks = (size_t)own->module->networks;
  struct engine* handle = calloc(1, sizeof *handle + networks * (sizeof handle->room[0] + sizeof handle->direct[0]));
  if (!handle) FAIL(NO_MEMORY, "no memory for a handle");
  handle->direct = (struct engine_direct*)&handle->room[networks];
  for (size_t i = 0; i < networks; ++i)
    handle->direct[i] = (struct engine_direct){own->network[i].direct, own->network[i].direct_packed};
  __atomic_add_fetch(&own->references, 1, __ATOMIC_RELAXED);
  handle->loaded = own;
  for (int32_t i = 0; i < own->module->networks; ++i) {
    int32_t status = engine_reserve(handle, i, 1, 1);
    if (!status) continue;
    engine_close(handle);
    return status;
  }
  *out = handle;
  return ENGINE_OK;
}

int32_t engine_open(const struct engine_module* module, const char* path, struct engine** out) {
  if (!out) FAIL(BAD_ARGUMENT, "open: no place for the handle");
  *out = 0;
  struct loaded* own = calloc(1, sizeof *own + (size_t)module->networks * sizeof own->network[0]);
  if (!own) FAIL(NO_MEMORY, "no memory for a module");
  own->module = own->code.module = module;
  own->references = 1;
  int32_t status = load_code(own, path);
  if (!status) status = handle_of(own, out);
  release(own);
  return status;
}

int32_t engine_share(struct engine* from, struct engine** out) {
  if (!out) FAIL(BAD_ARGUMENT, "share: no place for the handle");
  *out = 0;
  if (!from) FAIL(BAD_ARGUMENT, "share: no handle");
  TRY(handle_of(from->loaded, out));
  (*out)->threads = from->threads;
  return ENGINE_OK;
}

void engine_close(struct engine* handle) {
  if (!handle) return;
  for (int32_t i = 0; i < handle->loaded->module->networks; ++i) {
    free(handle->room[i].work);
    free(handle->room[i].states);
    free(handle->room[i].packed);
    free(handle->room[i].loop);
  }
  for (struct piece *p = handle->pieces, *next; p; p = next) next = p->next, free(p);
  release(handle->loaded);
  free(handle);
}

/* --- memory for runs --- */

/* Runs: which piece serves what differs in the first ones of some sizes. Bytes: a large piece is for large arrays, lest
   these need another one in the next run. */
enum { MOST_IDLE = 4, PIECE_SMALL = 1024 };

void* engine_take(struct engine* handle, int64_t bytes) {
  struct piece* best = 0;
  for (struct piece* p = handle->pieces; p; p = p->next)
    if (p->state == PIECE_FREE && p->bytes >= bytes && p->bytes / 4 <= bytes + PIECE_SMALL && (!best || p->bytes < best->bytes))
      best = p;
  if (!best) {
    best = bytes < 0 || bytes > INT64_MAX - ALIGNMENT ? 0 : aligned(ALIGNMENT + bytes, 1);
    if (!best) return 0;
    *best = (struct piece){handle->pieces, bytes, 0, PIECE_FREE};
    handle->pieces = best;
  }
  best->idle = 0;
  best->state = PIECE_TAKEN;
  return (char*)best + ALIGNMENT;
}

static struct piece* piece_of(void* memory) { return (struct piece*)((char*)memory - ALIGNMENT); }

void engine_put(void* memory) {
  if (memory) piece_of(memory)->state = PIECE_FREE;
}

void engine_settle(struct engine* handle, int32_t count, void* const* kept) {
  for (struct piece **at = &handle->pieces, *p; (p = *at);) {
    if (p->state == PIECE_FREE && ++p->idle > MOST_IDLE) {
      *at = p->next;
      free(p);
      continue;
    }
    if (p->state == PIECE_TAKEN || kept) p->state = PIECE_FREE;
    at = &p->next;
  }
  for (int32_t i = 0; kept && i < count; ++i) piece_of(kept[i])->state = PIECE_KEPT;
}

/* Arrays as TVM takes them. */
struct shaped {
  DLTensor tensor;
  int64_t shape[ENGINE_MOST_TENSOR_AXES], strides[ENGINE_MOST_TENSOR_AXES];
};

static void shape_argument(const struct engine_tensor* given, struct shaped* own, TVMFFIAny* argument) {
  flat(&own->tensor, argument, given->data, own->shape, given->code, given->bits);
  int64_t stride = 1;
  for (int i = given->rank - 1; i >= 0; --i) {
    own->shape[i] = given->shape[i];
    own->strides[i] = stride;
    stride *= given->shape[i];
  }
  own->tensor.ndim = given->rank;
  own->tensor.strides = own->strides;
}

int32_t engine_call(struct engine* handle, const char* name, const char* suffix, int with_threads, int32_t count,
                    const struct engine_tensor* tensors) {
  char whole[256];
  int length = snprintf(whole, sizeof whole, "%s%s", name, suffix);
  Function function = length < 0 || length >= (int)sizeof whole ? 0 : (Function)engine_symbol(&handle->loaded->code, "__tvm_ffi_", whole);
  if (!function) FAIL(BAD_FILE, "the module has no function %s", name);
  if (count > ENGINE_MOST_TENSORS) FAIL(BAD_ARGUMENT, "%d arrays", (int)count);
  struct shaped* own = engine_take(handle, (count + 1) * (int64_t)sizeof *own);
  TVMFFIAny *arguments = engine_take(handle, (count + 1) * (int64_t)sizeof *arguments), result = {0};
  int32_t status = own && arguments ? ENGINE_OK : engine_fail(ENGINE_NO_MEMORY, "no memory for a call");
  if (!status) {
    if (with_threads) integer(arguments, handle->threads < 1 ? 1 : handle->threads);
    for (int32_t i = 0; i < count; ++i) shape_argument(&tensors[i], &own[i], &arguments[i + !!with_threads]);
    status = called(handle->loaded, function(0, arguments, count + !!with_threads, &result));
  }
  engine_put(own);
  engine_put(arguments);
  return status;
}

int32_t engine_weights(struct engine* handle, int32_t network, const void* const* given) {
  const struct engine_network* n = &handle->loaded->module->network[network];
  return pack_weights(handle->loaded, whole_layout(n), n->bits, given, &handle->room[network].packed);
}

const void* engine_array_data(const struct engine* handle, int32_t number) {
  return handle->loaded->code.data + handle->loaded->module->array[number].offset;
}

int32_t engine_threads(struct engine* handle, int32_t threads) {
  if (!handle) FAIL(BAD_ARGUMENT, "threads: no handle");
  if (threads < 0 || threads > MOST_THREADS) FAIL(BAD_ARGUMENT, "threads: %d, not 0 to %d", (int)threads, MOST_THREADS);
  TVMFFIAny argument, result = {0};
  int status = threads > 1 ? handle->loaded->pool_size(0, 0, 0, &result) : 0;
  if (!status && threads > 1 && result.v_int64 < threads) { /* it grows, for all handles */
    integer(&argument, threads);
    status = handle->loaded->pool_resize(0, &argument, 1, &result);
  }
  if (!status) handle->threads = threads;
  return called(handle->loaded, status);
}

/* --- memory of calls --- */

static int64_t tile_of(const struct engine_network* n, int64_t steps, int64_t batch) {
  int64_t tile = n->rows_per_tile / batch;
  tile = tile < steps ? tile : steps;
  return tile < 1 ? 1 : tile;
}

/* a * rows + b; -1 where that is no size. */
static int64_t plus(int64_t a, int64_t rows, int64_t b) {
  int64_t result, product = engine_times(a, rows);
  return product < 0 || b < 0 || __builtin_add_overflow(product, b, &result) ? -1 : result;
}

static int64_t workspace(const struct engine_workspace* w, int64_t tile_rows, int64_t steps, int64_t batch) {
  int64_t size = plus(w->per_row, batch, w->fixed);
  size = plus(w->per_tile_row, tile_rows, size);
  return plus(w->per_sequence_row, engine_times(steps, batch), size);
}

/* Of the largest call of the network; -1 where that is no size. */
static int64_t working(const struct engine_network* n, int64_t steps, int64_t batch) {
  const struct engine_generation* g = n->generation;
  int64_t rows = engine_times(steps, batch), own = 0, loop = 0;
  /* Enough for every smaller call too: a smaller batch may have more rows in its tiles, but not more than this. */
  int64_t most = batch > n->rows_per_tile ? batch : n->rows_per_tile;
  if (n->sequence) own = rows < 0 ? -1 : workspace(&n->workspace, rows < most ? rows : most, steps, batch);
  if (g) loop = workspace(&g->workspace, batch, g->steps, batch);
  return own < 0 || loop < 0 ? -1 : own > loop ? own : loop;
}

/* --- memory of generation: inputs, outputs, ends and keys, one after the other --- */

/* Bytes of the inputs, or the outputs; of the ends: whole lines of a cache, -1 where that is no size. */
static void loop_bytes(const struct engine_network* n, int64_t batch, int64_t* flow, int64_t* ends) {
  int64_t row = engine_times(n->generation->steps, n->input_per_row[0] * n->bits / 8);
  *flow = plus(engine_times(batch, row), 1, ALIGNMENT) / ALIGNMENT * ALIGNMENT;
  *ends = plus(batch, sizeof(int64_t), ALIGNMENT) / ALIGNMENT * ALIGNMENT;
}

static int32_t reserve_loop(const struct engine_network* n, int64_t batch, struct room* room) {
  int64_t flow, ends;
  if (!n->generation || batch <= room->loop_rows) return ENGINE_OK;
  loop_bytes(n, batch, &flow, &ends);
  int64_t keys = (int64_t)n->generation->layers * n->generation->draws * 2 * (int64_t)sizeof(uint32_t);
  int64_t bytes = flow <= 0 || ends <= 0 ? -1 : plus(flow, 2, plus(ends, 1, keys));
  void* memory = bytes < 0 ? 0 : aligned(bytes, 1);
  if (!memory) FAIL(NO_MEMORY, "no memory to generate %lld rows", (long long)batch);
  free(room->loop);
  room->loop = memory;
  room->loop_rows = batch;
  return ENGINE_OK;
}

int engine_memory_of(const struct engine* handle, int32_t network, int64_t batch, struct engine_memory* memory) {
  const struct engine_network* n = engine_network_of(handle, network);
  const struct room* room = &handle->room[network];
  int64_t flow, ends;
  if (batch > room->loop_rows || batch > room->state_rows) return 0;
  loop_bytes(n, batch, &flow, &ends);
  memory->x = room->loop;
  memory->y = memory->x + flow;
  memory->ends = (int64_t*)(memory->y + flow);
  memory->keys = (uint32_t*)(memory->y + flow + ends);
  return 1;
}

const struct engine_network* engine_network_of(const struct engine* handle, int32_t network) {
  return &handle->loaded->module->network[network];
}

static int64_t state_elements(const struct engine_network* n) {
  int64_t total = 0;
  for (int32_t i = 0; i < n->states; ++i) total += n->state_per_row[i] + ALIGNMENT;
  return total;
}

int32_t engine_reserve(struct engine* handle, int32_t network, int64_t steps, int64_t batch) {
  if (!handle) FAIL(BAD_ARGUMENT, "reserve: no handle");
  if (steps < 1 || batch < 1) FAIL(BAD_ARGUMENT, "reserve: steps and batch must be at least 1");
  const struct engine_network* n = &handle->loaded->module->network[network];
  struct room* room = &handle->room[network];
  int64_t elements = working(n, steps, batch);
  int64_t states = engine_times(state_elements(n), batch);
  if (elements < 0 || states < 0 || engine_times(elements, 8) < 0 || engine_times(states, 8) < 0)
    FAIL(BAD_ARGUMENT, "reserve: %lld steps of %lld rows are too many", (long long)steps, (long long)batch);
  if (elements > room->work_elements) {
    void* work = aligned(elements, n->bits / 8);
    if (!work) FAIL(NO_MEMORY, "no memory for %lld elements of workspace", (long long)elements);
    free(room->work);
    room->work = work;
    room->work_elements = elements;
  }
  if (batch > room->state_rows) {
    void* copies = aligned(states, n->bits / 8);
    if (!copies) FAIL(NO_MEMORY, "no memory for states of %lld rows", (long long)batch);
    free(room->states);
    room->states = copies;
    room->state_rows = batch;
  }
  return reserve_loop(n, batch, room);
}

/* --- calls of networks --- */

int32_t engine_check(const struct engine_given* all, int count) {
  for (int i = 0; i < count; ++i) {
    if (all[i].bytes < 0) FAIL(BAD_ARGUMENT, "%s would be too large", all[i].name);
    if (!all[i].bytes) continue;
    if (!all[i].data) FAIL(BAD_ARGUMENT, "%s is null", all[i].name);
    if ((uintptr_t)all[i].data % (uintptr_t)all[i].item)
      FAIL(BAD_ARGUMENT, "%s is not aligned to its elements", all[i].name);
    for (int k = 0; k < i; ++k) /* results may not lie where something else is read */
      if ((all[i].written || all[k].written) && all[k].bytes && all[i].data < all[k].data + all[k].bytes &&
          all[k].data < all[i].data + all[i].bytes)
        FAIL(BAD_ARGUMENT, "%s and %s overlap", all[k].name, all[i].name);
  }
  return ENGINE_OK;
}

struct engine_given engine_given(const char* name, const void* data, int64_t rows, int64_t per_row, int64_t item,
                                 int written) {
  return (struct engine_given){name, data, engine_times(engine_times(rows, per_row), item), item, written};
}

int engine_put_states(const struct engine_network* n, int64_t batch, void* const* states, struct engine_given* all) {
  for (int32_t i = 0; i < n->states; ++i)
    all[i] = engine_given(n->names[n->inputs + i], states[i], batch, n->state_per_row[i], n->bits / 8, 1);
  return n->states;
}

int32_t engine_init_state(struct engine* handle, int32_t network, int64_t batch, void* const* states) {
  struct engine_given all[ENGINE_MOST_ARRAYS];
  if (!handle) FAIL(BAD_ARGUMENT, "init_state: no handle");
  const struct engine_network* n = &handle->loaded->module->network[network];
  if (batch < 0) FAIL(BAD_ARGUMENT, "init_state: %lld rows", (long long)batch);
  TRY(engine_check(all, engine_put_states(n, batch, states, all)));
  for (int32_t i = 0; i < n->states; ++i)
    for (int64_t k = 0; k < batch * n->state_per_row[i]; ++k)
      if (n->bits == 32) ((float*)states[i])[k] = (float)n->initial[i];
      else ((double*)states[i])[k] = n->initial[i];
  return ENGINE_OK;
}

static int32_t check_call(const struct engine_network* n, const struct engine_call* call) {
  struct engine_given all[ENGINE_MOST_ARRAYS + 3];
  int64_t item = n->bits / 8, rows = engine_times(call->steps, call->batch);
  int count = 0;
  if (call->steps < 0 || call->batch < 0)
    FAIL(BAD_ARGUMENT, "%lld steps of %lld rows", (long long)call->steps, (long long)call->batch);
  for (int32_t i = 0; call->reset && i < n->states; ++i)
    if (n->initial[i] != n->initial[i]) FAIL(BAD_ARGUMENT, "reset does not go with the constant %s", n->names[n->inputs + i]);
  for (int32_t i = 0; i < n->inputs; ++i, ++count)
    all[count] = engine_given(n->names[i], call->inputs[i], rows, n->input_per_row[i], item, 0);
  count += engine_put_states(n, call->batch, call->states, all + count);
  all[count] = engine_given(n->names[count], call->y, rows, n->output_per_row, item, 1), ++count;
  if (call->lengths) all[count++] = engine_given("lengths", call->lengths, call->batch, 1, sizeof *call->lengths, 0);
  if (call->reset) all[count++] = engine_given("reset", call->reset, rows, 1, sizeof *call->reset, 0);
  TRY(engine_check(all, count));
  for (int64_t b = 0; call->lengths && b < call->batch; ++b)
    if (call->lengths[b] < 0 || call->lengths[b] > call->steps)
      FAIL(BAD_ARGUMENT, "lengths: %lld for row %lld, not 0 to %lld", (long long)call->lengths[b], (long long)b,
           (long long)call->steps);
  return ENGINE_OK;
}

int32_t engine_run(struct engine* handle, int32_t network, const struct engine_call* call) {
  const struct engine_network* n = engine_network_of(handle, network);
  const struct engine_part* part = call->part;
  const struct room* room = &handle->room[network];
  DLTensor tensors[2 * ENGINE_MOST_ARRAYS + 8];
  TVMFFIAny arguments[2 * ENGINE_MOST_ARRAYS + 24], result = {0};
  int64_t sizes[2 * ENGINE_MOST_ARRAYS + 8], T = call->steps, B = call->batch, rows = T * B, item = n->bits / 8;
  int64_t none_length = 0, tile = part ? 1 : tile_of(n, T, B);
  uint8_t none_reset = 0;
  int at = 0, array = 0;
  integer(&arguments[at++], T);
  integer(&arguments[at++], B);
  integer(&arguments[at++], tile);
  integer(&arguments[at++], handle->threads < 1 ? 1 : handle->threads);
  integer(&arguments[at++], call->lengths != 0);
  integer(&arguments[at++], call->reset != 0);
#define ARRAY(DATA, ELEMENTS, CODE, BITS)                                              \
  do {                                                                                 \
    sizes[array] = (ELEMENTS);                                                         \
    flat(&tensors[array], &arguments[at++], (DATA), &sizes[array], (CODE), (BITS));    \
    ++array;                                                                           \
  } while (0)
  for (int32_t i = 0; i < n->inputs; ++i) ARRAY(call->inputs[i], rows * n->input_per_row[i], kDLFloat, n->bits);
  ARRAY(call->y, rows * n->output_per_row, kDLFloat, n->bits);
  char* copy = room->states;
  for (int32_t i = 0; i < n->states; ++i) {
    int64_t elements = B * n->state_per_row[i];
    if (elements) memcpy(copy, call->states[i], (size_t)(elements * item));
    ARRAY(copy, elements, kDLFloat, n->bits);
    copy += ((elements + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) * item;
  }
  for (int32_t i = 0; i < n->states; ++i) ARRAY(call->states[i], B * n->state_per_row[i], kDLFloat, n->bits);
  ARRAY(call->lengths ? call->lengths : &none_length, call->lengths ? B : 1, kDLInt, 64);
  ARRAY(call->reset ? call->reset : &none_reset, call->reset ? rows : 1, kDLUInt, 8);
  ARRAY(room->packed ? room->packed : handle->loaded->network[network].packed, n->packed_elements, kDLFloat, n->bits);
  ARRAY(room->work, workspace(part ? &n->generation->workspace : &n->workspace, tile * B, T, B), kDLFloat, n->bits);
  if (part) {
    integer(&arguments[at++], part->given);
    integer(&arguments[at++], part->has_stop);
    floating(&arguments[at++], part->stop);
    ARRAY(part->progress, 2, kDLInt, 64);
    if (n->generation->draws) {
      integer(&arguments[at++], part->first_step);
      ARRAY(part->keys, (int64_t)n->generation->layers * n->generation->draws * 2, kDLUInt, 32);
    }
  }
  const struct network* own = &handle->loaded->network[network];
  return called(handle->loaded, (part ? own->generate : own->sequence)(0, arguments, at, &result));
}

int32_t engine_step(struct engine* handle, int32_t network, const struct engine_call* call) {
  if (!handle) FAIL(BAD_ARGUMENT, "step: no handle");
  const struct engine_network* n = &handle->loaded->module->network[network];
  const struct room* room = &handle->room[network];
  TRY(check_call(n, call));
  if (!call->batch) return ENGINE_OK;
  if (call->batch > room->state_rows || workspace(&n->workspace, call->batch, 1, call->batch) > room->work_elements)
    FAIL(BAD_ARGUMENT, "step: %lld rows and a step takes no memory: reserve(1, %lld) first", (long long)call->batch,
         (long long)call->batch);
  return engine_run(handle, network, call);
}

int32_t engine_sequence(struct engine* handle, int32_t network, const struct engine_call* call) {
  if (!handle) FAIL(BAD_ARGUMENT, "sequence: no handle");
  TRY(check_call(&handle->loaded->module->network[network], call));
  if (!call->batch || !call->steps) return ENGINE_OK;
  TRY(engine_reserve(handle, network, call->steps, call->batch));
  return engine_run(handle, network, call);
}
