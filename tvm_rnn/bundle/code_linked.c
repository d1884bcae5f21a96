/* The code and the weights of a module that are linked to the program: nothing is loaded, nothing is looked for.

   In: the generated source's table of functions, and the weights' bytes. Out: they, for engine.c. C11. */
#include "engine.h"

#include <string.h>

int32_t engine_code_open(const char* path, struct engine_code* own) {
  if (path) FAIL(BAD_ARGUMENT, "open: the weights are linked to the program: the path is to be NULL");
  own->data = own->module->weights;
  return ENGINE_OK;
}

void engine_code_close(struct engine_code* own) { own->data = 0; }

void* engine_symbol(const struct engine_code* own, const char* first, const char* name) {
  const struct engine_linked* f = own->module->linked;
  const size_t length = strlen(first);
  while (f->name && (strncmp(f->name, first, length) || strcmp(f->name + length, name))) ++f;
  return (void*)f->function;
}
