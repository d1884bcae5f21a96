/* The code and the weights of a module, from its file: loaded as a shared object, with the C library alone.

   In: a file as Module.export writes it (ELF, weights, manifest, footer) and what its generated source says of it. Out:
   its functions and arrays, for engine.c. A file is compared with what the source says before its code is loaded, and the
   code that was loaded with the file before a function of it is called. C11 with GNU extensions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { FOOTER_BYTES = 48, CONTAINER_VERSION = 1, MOST_PATH = 4096 };
static const uint8_t MAGIC[8] = {'T', 'V', 'M', 'R', 'N', 'N', 0, 1};

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
static int32_t check_file(struct engine_code* own, const char* path) {
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

static int32_t map_file(struct engine_code* own, const char* path, int file) {
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
  snprintf(line, (size_t)size, ":%s%s%s", has >> 1 & 1 ? " neon" : "", has >> 20 & 1 ? " dotprod" : "",
           has >> 22 & 1 ? " sve" : "");
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

/* --- the code --- */

/* Whether the library is the code of the file that was checked: every byte of it that is not written at load. */
static int is_checked(const struct engine_code* own) {
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
static int32_t open_code(struct engine_code* own, const char* path, int file) {
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

/* The module's file beside this library. */
static int beside(const char* name, char* path) {
  Dl_info info;
  if (!dladdr((void*)&engine_code_open, &info) || !info.dli_fname) return 0;
  const char* slash = strrchr(info.dli_fname, '/');
  int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
  int length = snprintf(path, MOST_PATH, "%s%.*s%s", folder ? "" : "./", folder, info.dli_fname, name);
  return length > 0 && length < MOST_PATH;
}

/* --- for engine.c --- */

void* engine_symbol(const struct engine_code* own, const char* first, const char* name) {
  char whole[256];
  int length = snprintf(whole, sizeof whole, "%s%s", first, name);
  return length < 0 || length >= (int)sizeof whole ? 0 : dlsym(own->library, whole);
}

void engine_code_close(struct engine_code* own) {
  if (own->library) dlclose(own->library);
  if (own->file) munmap((void*)own->file, own->file_bytes);
}

int32_t engine_code_open(const char* path, struct engine_code* own) {
  char found[MOST_PATH];
  const char* beside_it = own->module->file;
  if (!path && !beside(beside_it, found))
    FAIL(BAD_FILE, "cannot tell where this library lies: give the path of %s", beside_it);
  if (path) { /* dlopen looks elsewhere for a name without a slash */
    int length = snprintf(found, sizeof found, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (length < 0 || length >= (int)sizeof found) FAIL(BAD_FILE, "the path is too long");
  }
  TRY(check_machine(own->module));
  int file = open(found, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait for the other end of a pipe */
  if (file < 0) FAIL(BAD_FILE, "cannot open %s: %s", found, strerror(errno));
  int32_t status = map_file(own, found, file);
  if (!status) status = open_code(own, found, file);
  close(file);
  return status;
}
