"""Programs that run a whole model from a bundle, in C and C++, over files of raw numbers.

In: `Facts` of a module that has a model around its networks. Out: texts of example.c and example.cpp.
"""

from __future__ import annotations

from .encoding import DTYPES
from .examples import CPP_MAIN
from .facts import Facts, c_text

C = """\
/* Run the model {name} over files of raw numbers, in the machine's byte order and in C order, and print its outputs.

     example_c [--time N]{usage}

   A shape is its sizes with an x between them, such as 7x3. --time N: time N runs too, and print p50, p99 and p99.9. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "{name}.h"

static const char *const input_names[] = {{{input_names}, 0}}, *const output_names[] = {{{output_names}, 0}};
static const int input_dtypes[] = {{{input_dtypes}, 0}};
static const size_t sizes[] = {{1, 4, 8, 4, 8}}; /* of an element of each dtype */

static void check(int32_t status) {{
  if (status == {macro}_OK) return;
  fprintf(stderr, "%s\\n", {name}_error());
  exit(1);
}}

static void *memory(size_t bytes) {{
  void *found = calloc(1, bytes ? bytes : 1);
  if (found) return found;
  fprintf(stderr, "no memory\\n");
  exit(1);
}}

/* An input: all of a file, of that shape. */
static {name}_array read_input(int number, const char *path, const char *shape) {{
  {name}_array array;
  size_t count = 1;
  memset(&array, 0, sizeof array);
  array.dtype = input_dtypes[number];
  for (const char *at = shape; *at && array.rank < 8;) {{
    char *end;
    array.shape[array.rank] = strtoll(at, &end, 10);
    count *= (size_t)array.shape[array.rank++];
    at = *end == 'x' ? end + 1 : end;
    if (*end && *end != 'x') break;
  }}
  FILE *file = fopen(path, "rb");
  long bytes = -1;
  if (file && !fseek(file, 0, SEEK_END)) bytes = ftell(file);
  if (bytes < 0 || (size_t)bytes != count * sizes[array.dtype] || fseek(file, 0, SEEK_SET)) {{
    fprintf(stderr, "%s: %s is not %s numbers of %lu bytes\\n", input_names[number], path, shape,
            (unsigned long)sizes[array.dtype]);
    exit(1);
  }}
  array.data = memory((size_t)bytes);
  if (fread(array.data, 1, (size_t)bytes, file) != (size_t)bytes) exit(1);
  fclose(file);
  return array;
}}

static double element(const {name}_array *array, size_t i) {{
  switch (array->dtype) {{
    case {macro}_BOOL: return ((const uint8_t *)array->data)[i];
    case {macro}_INT32: return ((const int32_t *)array->data)[i];
    case {macro}_INT64: return (double)((const int64_t *)array->data)[i];
    case {macro}_FLOAT32: return ((const float *)array->data)[i];
    default: return ((const double *)array->data)[i];
  }}
}}

/* Its name and shape, then its numbers, a row of the last axis on each line. */
static void print_output(const char *name, const {name}_array *array) {{
  size_t count = 1, row = array->rank ? (size_t)array->shape[array->rank - 1] : 1;
  printf("%s", name);
  for (int i = 0; i < array->rank; ++i) {{
    printf("%c%lld", i ? 'x' : ' ', (long long)array->shape[i]);
    count *= (size_t)array->shape[i];
  }}
  printf("\\n");
  for (size_t i = 0; i < count; ++i) printf("%.9g%c", element(array, i), (i + 1) % row ? ' ' : '\\n');
}}

static int compare(const void *a, const void *b) {{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}}

static double now_us(void) {{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}}

int main(int argc, char **argv) {{
  {name} *handle;
  {name}_array inputs[{macro}_INPUTS + 1], outputs[{macro}_OUTPUTS + 1];
  int first = argc > 2 && !strcmp(argv[1], "--time") ? 3 : 1;
  long timed = first == 3 ? atol(argv[2]) : 0;
  if (argc != first + 2 * {macro}_INPUTS) {{
    fprintf(stderr, "usage: %s [--time N]{usage}\\n", argv[0]);
    return 2;
  }}
  for (int i = 0; i < {macro}_INPUTS; ++i) inputs[i] = read_input(i, argv[first + 2 * i], argv[first + 2 * i + 1]);
  check({name}_open(NULL, &handle));
  check({name}_run(handle, inputs, outputs));
  for (int i = 0; i < {macro}_OUTPUTS; ++i) print_output(output_names[i], &outputs[i]);
  if (timed > 0) {{
    double *us = memory((size_t)timed * sizeof *us);
    for (long i = 0; i < timed; ++i) {{
      double start = now_us();
      check({name}_run(handle, inputs, outputs));
      us[i] = now_us() - start;
    }}
    qsort(us, (size_t)timed, sizeof *us, compare);
    printf("{name}_run: p50 %.2f us, p99 %.2f us, p99.9 %.2f us (%ld calls)\\n", us[timed / 2], us[timed * 99 / 100],
           us[timed * 999 / 1000], timed);
    free(us);
  }}
  for (int i = 0; i < {macro}_INPUTS; ++i) free(inputs[i].data);
  {name}_close(handle);
  return 0;
}}
"""

CPP = """\
// Run the model {name} over files of raw numbers, and print its outputs: names, shapes, and rows of the last axis.
//
//   example_cpp{usage}        a shape is its sizes with an x between them, such as 7x3
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "{name}.h"

static void check(int32_t status) {{
  if (status != {macro}_OK) throw std::runtime_error({name}_error());
}}

template <class T>
static void print(const {name}_array &array, std::size_t count) {{
  const std::size_t row = array.rank ? array.shape[array.rank - 1] : 1;
  for (std::size_t i = 0; i < count; ++i)
    std::cout << +static_cast<const T *>(array.data)[i] << ((i + 1) % row ? ' ' : '\\n');
}}

static void print_output(const char *name, const {name}_array &array) {{
  std::size_t count = 1;
  std::cout << name;
  for (int i = 0; i < array.rank; ++i) {{
    std::cout << (i ? 'x' : ' ') << array.shape[i];
    count *= array.shape[i];
  }}
  std::cout << '\\n';
  switch (array.dtype) {{
    case {macro}_BOOL: return print<uint8_t>(array, count);
    case {macro}_INT32: return print<int32_t>(array, count);
    case {macro}_INT64: return print<int64_t>(array, count);
    case {macro}_FLOAT32: return print<float>(array, count);
    default: return print<double>(array, count);
  }}
}}

static int run(int argc, char **argv) {{
  static const int dtypes[] = {{{input_dtypes}, 0}};
  static const std::size_t sizes[] = {{1, 4, 8, 4, 8}};
  static const char *const names[] = {{{output_names}, nullptr}};
  if (argc != 1 + 2 * {macro}_INPUTS) throw std::runtime_error("usage: example_cpp{usage}");
  std::vector<std::vector<char>> files;
  std::vector<{name}_array> inputs({macro}_INPUTS + 1), outputs({macro}_OUTPUTS + 1);
  for (int i = 0; i < {macro}_INPUTS; ++i) {{
    std::ifstream file(argv[1 + 2 * i], std::ios::binary);
    files.emplace_back((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::size_t bytes = sizes[dtypes[i]];
    std::istringstream shape(argv[2 + 2 * i]);
    for (std::string size; inputs[i].rank < 8 && std::getline(shape, size, 'x'); ++inputs[i].rank)
      bytes *= inputs[i].shape[inputs[i].rank] = std::stoll(size);
    if (bytes != files.back().size()) throw std::runtime_error(argv[1 + 2 * i] + std::string(" is not of that shape"));
    inputs[i].dtype = dtypes[i];
    inputs[i].data = files.back().data();
  }}
  {name} *opened = nullptr;
  check({name}_open(nullptr, &opened));
  std::unique_ptr<{name}, void (*)({name} *)> handle(opened, {name}_close);
  check({name}_run(handle.get(), inputs.data(), outputs.data()));
  std::cout.precision(9);
  for (int i = 0; i < {macro}_OUTPUTS; ++i) print_output(names[i], outputs[i]);
  return 0;
}}
"""


def model_example(facts: Facts, cpp: bool) -> str:
    """The program in C, or in C++."""
    model = facts.model
    names = [", ".join(c_text(item.name) for item in items) for items in (model.inputs, model.outputs)]
    program = (CPP if cpp else C).format(
        name=facts.name,
        macro=facts.name.upper(),
        usage=arguments(facts),
        input_names=names[0],
        output_names=names[1],
        input_dtypes=", ".join(str(DTYPES[item.dtype]) for item in model.inputs),
    )
    return program + CPP_MAIN * cpp


def arguments(facts: Facts) -> str:
    """What the programs are given: a file and a shape for each input."""
    words = [f"input_{i}" for i in range(len(facts.model.inputs))]
    return "".join(f" {word}.raw SHAPE" for word in words)
