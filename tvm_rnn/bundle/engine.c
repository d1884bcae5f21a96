/* Load a module's file and call its functions, with the C library alone.

   In: a file as Module.export writes it (ELF, weights, manifest, footer) and what its generated source says of it. Out:
   results in the caller's arrays. A file is compared with what the source says before its code is loaded, and the code
   that was loaded with the file before a function of it is called. A call of a
   step takes no memory and no lock, starts no thread and makes no system call; what it needs was taken by `open` and
   `reserve`. C11 with GNU extensions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <tvm/ffi/c_api.h>

enum { FOOTER_BYTES = 48, CONTAINER_VERSION = 1, ALIGNMENT = 64, MOST_THREADS = 256, MOST_PATH = 4096 };
static const uint8_t MAGIC[8] = {'T', 'V', 'M', 'R', 'N', 'N', 0, 1};

typedef TVMFFISafeCallType Function;

/* The code and the weights, shared by handles. */
struct loaded {
  const struct engine_module* module;
  int references;
  void* library;
  const uint8_t* file;
  size_t file_bytes;
  const uint8_t* data; /* the first array */
  int (*pool_resize)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  int (*pool_size)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
  void (*last_error)(char*, int64_t);
  struct network {
    Function sequence, generate;
    void *packed, *direct_packed;
    void (*direct)(void);
  } network[];
};

struct engine {
  struct engine_direct* direct; /* first: inline functions of the header read it */
  struct loaded* loaded;
  int32_t threads, kept_count;
  void** kept;
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

/* --- the file --- */

static uint32_t crc_table[256];

__attribute__((constructor)) static void make_crc_table(void) {
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xedb88320u ^ (value >> 1) : value >> 1;
    crc_table[i] = value;
  }
}

static uint32_t crc_of(uint32_t crc, const uint8_t* data, size_t size) {
  crc = ~crc;
  for (size_t i = 0; i < size; ++i) crc = crc_table[(crc ^ data[i]) & 255] ^ (crc >> 8);
  return ~crc;
}

static uint64_t number(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | at[i];
  return value;
}

/* Where each array of the source's tables lies in the file, after every size was compared with the file's. */
static int32_t check_file(struct loaded* own, const char* path) {
  const struct engine_module* m = own->module;
  const uint8_t *file = own->file, *footer = file + own->file_bytes - FOOTER_BYTES;
  if (own->file_bytes < FOOTER_BYTES || memcmp(footer, MAGIC, sizeof MAGIC))
    FAIL(BAD_FILE, "%s is not a complete tvm_rnn module: copy it again", path);
  uint64_t end = own->file_bytes - FOOTER_BYTES, version = number(footer + 8, 4), crc = number(footer + 12, 4);
  uint64_t code = number(footer + 16, 8), start = number(footer + 24, 8), size = number(footer + 32, 8);
  uint64_t manifest = number(footer + 40, 8);
  if (version != CONTAINER_VERSION)
    FAIL(BAD_FILE, "%s has container version %d, this library reads %d", path, (int)version, CONTAINER_VERSION);
  if (code > end || start < code || start > end || size > end - start || manifest != end - start - size)
    FAIL(BAD_FILE, "%s is damaged: its parts do not fill it", path);
  uint32_t code_crc = crc_of(0, file, code);
  if (crc_of(code_crc, file + code, end - code) != crc)
    return engine_fail(ENGINE_BAD_FILE, "%s is damaged: its checksum is wrong; copy it again", path);
  if ((int64_t)code != m->code_bytes || code_crc != m->code_crc)
    FAIL(BAD_FILE, "%s is another module than the one this library was made for: bundle it again", path);
  uint64_t header = size < 8 ? 0 : number(file + start, 8);
  if (!size && !m->header_bytes) return ENGINE_OK; /* all weights are a model's inputs */
  if (size < 8 || header > size - 8 || (int64_t)header != m->header_bytes ||
      crc_of(0, file + start + 8, header) != m->header_crc)
    FAIL(BAD_FILE, "%s has other weights than this library was made for, or none", path);
  own->data = file + start + 8 + header;
  for (int32_t i = 0; i < m->arrays; ++i) {
    if (m->array[i].offset < 0) continue;
    uint64_t bytes = (uint64_t)m->array[i].elements * m->array[i].bits / 8, offset = (uint64_t)m->array[i].offset;
    if (offset > size - 8 - header || bytes > size - 8 - header - offset)
      FAIL(BAD_FILE, "%s is damaged: array %d lies beyond its end", path, (int)i);
  }
  return ENGINE_OK;
}

static int32_t map_file(struct loaded* own, const char* path, int file) {
  struct stat about;
  if (fstat(file, &about)) FAIL(BAD_FILE, "cannot read %s: %s", path, strerror(errno));
  if (!S_ISREG(about.st_mode) || about.st_size < FOOTER_BYTES)
    FAIL(BAD_FILE, "%s is not a complete tvm_rnn module", path);
  void* mapped = mmap(0, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) FAIL(NO_MEMORY, "cannot map %s: %s", path, strerror(errno));
  own->file = mapped;
  own->file_bytes = (size_t)about.st_size;
  return check_file(own, path);
}

/* --- the machine --- */

/* Whether a name is one of the words of a line; underscores of the line do not count. */
static int has_word(const char* line, const char* name) {
  const char* at = strchr(line, ':');
  while (at && *at) {
    while (*at == ':' || *at == ' ' || *at == '\t') ++at;
    const char* letter = name;
    while (*letter && (*at == *letter || *at == '_')) letter += *at++ != '_';
    while (*at == '_') ++at;
    if (!*letter && (*at == ' ' || *at == '\n' || !*at)) return 1;
    at = strchr(at, ' ');
  }
  return 0;
}

/* The CPU's features, as words of a line; "" where the system does not say. */
static void read_features(char* line, int size) {
  line[0] = 0;
#if defined(__aarch64__) || defined(__riscv)
  unsigned long has = getauxval(AT_HWCAP);
#ifdef __riscv
  snprintf(line, (size_t)size, ":%s", has >> ('v' - 'a') & 1 ? " v" : "");
#else
  snprintf(line, (size_t)size, ":%s%s", has >> 1 & 1 ? " neon" : "", has >> 22 & 1 ? " sve" : "");
#endif
#else
  FILE* file = fopen("/proc/cpuinfo", "r");
  if (!file) return;
  while (fgets(line, size, file) && strncmp(line, "flags", 5)) line[0] = 0;
  fclose(file);
#endif
}

static int32_t check_machine(const struct engine_module* m) {
  struct utsname here;
  char line[16384];
  if (!uname(&here) && strcmp(here.machine, m->machine))
    FAIL(BAD_FILE, "the module is for %s, this machine is %s", m->machine, here.machine);
  read_features(line, sizeof line);
  for (int32_t i = 0; line[0] && i < m->features; ++i) {
    const struct engine_feature* f = &m->feature[i];
    if (!has_word(line, f->name) && !(f->other && has_word(line, f->other)))
      FAIL(BAD_FILE, "the module needs a CPU with %s: compile it for this one", f->name);
  }
  return ENGINE_OK;
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

static void* symbol(const struct loaded* own, const char* first, const char* name) {
  char whole[256];
  int length = snprintf(whole, sizeof whole, "%s%s", first, name);
  return length < 0 || length >= (int)sizeof whole ? 0 : dlsym(own->library, whole);
}

static void* aligned(int64_t elements, int64_t bytes) {
  int64_t size = engine_times(elements < 1 ? 1 : elements, bytes);
  if (size < 0 || size > INT64_MAX - ALIGNMENT) return 0;
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
    Function function = (Function)symbol(own, "__tvm_ffi_", pack->function);
    DLTensor* tensors = calloc((size_t)pack->count + 1, sizeof *tensors);
    TVMFFIAny *arguments = calloc((size_t)pack->count + 2, sizeof *arguments), result = {0};
    int32_t status = ENGINE_OK;
    if (!function) status = engine_fail(ENGINE_BAD_FILE, "the module has no function %s", pack->function);
    else if (!tensors || !arguments) status = engine_fail(ENGINE_NO_MEMORY, "no memory to lay out weights");
    else {
      for (int32_t i = 0; i < pack->count; ++i) {
        const struct engine_array* a = &own->module->array[pack->arrays[i]];
        const void* data = a->offset < 0 ? given[-1 - a->offset] : own->data + a->offset;
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

/* Whether the library is the code of the file that was checked: every byte of it that is not written at load. */
static int is_checked(const struct loaded* own) {
  Dl_info info;
  const void* known = dlsym(own->library, "tvm_rnn_last_error");
  if (!known || !dladdr(known, &info)) return 0;
  const ElfW(Ehdr)* head = (const void*)own->file;
  const ElfW(Phdr)* part = (const void*)(own->file + head->e_phoff);
  for (int i = 0; i < head->e_phnum; ++i)
    if (part[i].p_type == PT_LOAD && !(part[i].p_flags & PF_W) &&
        memcmp((const uint8_t*)info.dli_fbase + part[i].p_vaddr, own->file + part[i].p_offset, part[i].p_filesz))
      return 0;
  return 1;
}

/* dlopen takes a path, which may be another file by now, and finds older code by its path alone: then the descriptor's
   own name is next. The path is first, since debuggers and profilers look for it. */
static int32_t open_code(struct loaded* own, const char* path, int file) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  for (int i = 0; i < 2; ++i) {
    /* now: nothing is looked up in the middle of a step */
    own->library = dlopen(i ? name : path, RTLD_NOW | RTLD_LOCAL);
    if (own->library && is_checked(own)) return ENGINE_OK;
    if (own->library) dlclose(own->library);
    else if (i) FAIL(BAD_FILE, "cannot load %s: %s", path, dlerror());
    own->library = 0;
  }
  FAIL(BAD_FILE, "%s was replaced while it was opened, or older code of this path is in use: open it again", path);
}

static struct layout whole_layout(const struct engine_network* n) {
  return (struct layout){n->pack, n->packs, n->packed_elements};
}

static int32_t load_network(struct loaded* own, int32_t number, const char* path) {
  const struct engine_network* n = &own->module->network[number];
  struct network* loaded = &own->network[number];
  if (n->sequence) loaded->sequence = (Function)symbol(own, "__tvm_ffi_", n->sequence);
  if (n->generation) loaded->generate = (Function)symbol(own, "__tvm_ffi_", n->generation->function);
  if (n->direct) *(void**)&loaded->direct = symbol(own, "", n->direct);
  if ((n->sequence && !loaded->sequence) || (n->direct && !loaded->direct))
    FAIL(BAD_FILE, "%s has no sequence function, or no step", path);
  if (n->generation && !loaded->generate) FAIL(BAD_FILE, "%s has no function that generates", path);
  if (n->given) return ENGINE_OK;
  TRY(pack_weights(own, whole_layout(n), n->bits, 0, &loaded->packed));
  if (!n->direct) return ENGINE_OK;
  const struct layout direct = {n->direct_pack, n->direct_packs, n->direct_elements};
  return pack_weights(own, direct, n->bits, 0, &loaded->direct_packed);
}

static int32_t load_code(struct loaded* own, const char* path, int file) {
  TRY(open_code(own, path, file));
  Function install = (Function)symbol(own, "__tvm_ffi_", "pool_install");
  *(void**)&own->pool_resize = symbol(own, "__tvm_ffi_", "pool_resize");
  *(void**)&own->pool_size = symbol(own, "__tvm_ffi_", "pool_size");
  *(void**)&own->last_error = symbol(own, "", "tvm_rnn_last_error");
  if (!install || !own->pool_resize || !own->pool_size || !own->last_error)
    FAIL(BAD_FILE, "%s has no functions of tvm_rnn", path);
  TVMFFIAny result = {0};
  int32_t status = called(own, install(0, 0, 0, &result));
  for (int32_t i = 0; !status && i < own->module->networks; ++i) status = load_network(own, i, path);
  return status;
}

/* --- handles --- */

static void release(struct loaded* own) {
  if (__atomic_sub_fetch(&own->references, 1, __ATOMIC_ACQ_REL)) return;
  for (int32_t i = 0; i < own->module->networks; ++i) {
    free(own->network[i].packed);
    free(own->network[i].direct_packed);
  }
  if (own->library) dlclose(own->library);
  if (own->file) munmap((void*)own->file, own->file_bytes);
  free(own);
}

/* The module's file beside this library. */
static int beside(const char* name, char* path) {
  Dl_info info;
  if (!dladdr((void*)&engine_open, &info) || !info.dli_fname) return 0;
  const char* slash = strrchr(info.dli_fname, '/');
  int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
  int length = snprintf(path, MOST_PATH, "%s%.*s%s", folder ? "" : "./", folder, info.dli_fname, name);
  return length > 0 && length < MOST_PATH;
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
  char found[MOST_PATH];
  if (!out) FAIL(BAD_ARGUMENT, "open: no place for the handle");
  *out = 0;
  if (!path && !beside(module->file, found))
    FAIL(BAD_FILE, "cannot tell where this library lies: give the path of %s", module->file);
  if (path) { /* dlopen looks elsewhere for a name without a slash */
    int length = snprintf(found, sizeof found, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (length < 0 || length >= (int)sizeof found) FAIL(BAD_FILE, "the path is too long");
  }
  TRY(check_machine(module));
  struct loaded* own = calloc(1, sizeof *own + (size_t)module->networks * sizeof own->network[0]);
  if (!own) FAIL(NO_MEMORY, "no memory for a module");
  own->module = module;
  own->references = 1;
  int32_t status = ENGINE_OK;
  int file = open(found, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait for the other end of a pipe */
  if (file < 0) status = engine_fail(ENGINE_BAD_FILE, "cannot open %s: %s", found, strerror(errno));
  if (!status) status = map_file(own, found, file);
  if (!status) status = load_code(own, found, file);
  if (!status) status = handle_of(own, out);
  if (file >= 0) close(file);
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
  engine_keep(handle, 0, 0);
  release(handle->loaded);
  free(handle);
}

void engine_keep(struct engine* handle, int32_t count, void** pieces) {
  for (int32_t i = 0; i < handle->kept_count; ++i) free(handle->kept[i]);
  free(handle->kept);
  handle->kept = pieces;
  handle->kept_count = count;
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
  Function function = length < 0 || length >= (int)sizeof whole ? 0 : (Function)symbol(handle->loaded, "__tvm_ffi_", whole);
  if (!function) FAIL(BAD_FILE, "the module has no function %s", name);
  if (count > ENGINE_MOST_TENSORS) FAIL(BAD_ARGUMENT, "%d arrays", (int)count);
  struct shaped* own = calloc((size_t)count + 1, sizeof *own);
  TVMFFIAny *arguments = calloc((size_t)count + 1, sizeof *arguments), result = {0};
  int32_t status = own && arguments ? ENGINE_OK : engine_fail(ENGINE_NO_MEMORY, "no memory for a call");
  if (!status) {
    if (with_threads) integer(arguments, handle->threads < 1 ? 1 : handle->threads);
    for (int32_t i = 0; i < count; ++i) shape_argument(&tensors[i], &own[i], &arguments[i + !!with_threads]);
    status = called(handle->loaded, function(0, arguments, count + !!with_threads, &result));
  }
  free(own);
  free(arguments);
  return status;
}

int32_t engine_weights(struct engine* handle, int32_t network, const void* const* given) {
  const struct engine_network* n = &handle->loaded->module->network[network];
  return pack_weights(handle->loaded, whole_layout(n), n->bits, given, &handle->room[network].packed);
}

const void* engine_array_data(const struct engine* handle, int32_t number) {
  return handle->loaded->data + handle->loaded->module->array[number].offset;
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
