"""Programs that use a bundle, in C and C++: over files of raw numbers, and in C a step at a time as a stream, and as a
loop that feeds itself.

In: `Facts`. Out: texts of example.c, example.cpp, stream.c and generate.c, for the module's first network; of example.c
and example.cpp for the whole model, where the module has one around its networks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..names import c_string
from .encoding import DTYPES
from .facts import Array, Facts, Network

C_HELPERS = """\
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "{name}.h"

static void *memory(int64_t bytes) {{
  void *found = calloc(1, bytes > 0 ? (size_t)bytes : 1);
  if (!found) {{
    fprintf(stderr, "no memory\\n");
    exit(1);
  }}
  return found;
}}

static int compare(const void *a, const void *b) {{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}}

static void print_times(const char *what, double *us, int64_t count) {{
  qsort(us, (size_t)count, sizeof *us, compare);
  printf("%s: p50 %.2f us, p99 %.2f us, p99.9 %.2f us (%lld calls)\\n", what, us[count / 2], us[count * 99 / 100],
         us[count * 999 / 1000], (long long)count);
}}

static double now_us(void) {{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}}
"""

FILES_C = """
#define CHECK(call)                                                     \\
  do {{                                                                  \\
    if ((call) != {macro}_OK) {{                                          \\
      fprintf(stderr, "%s: %s\\n", #call, {name}_error());                \\
      exit(1);                                                          \\
    }}                                                                   \\
  }} while (0)

/* All of a file; *count: how many numbers it has. */
static {read_kind} *read_file(const char *path, int64_t *count) {{
  FILE *file = fopen(path, "rb");
  long bytes = -1;
  if (file && !fseek(file, 0, SEEK_END)) bytes = ftell(file);
  if (bytes < 0 || bytes % (long)sizeof({read_kind}) || fseek(file, 0, SEEK_SET)) {{
    fprintf(stderr, "%s: not a file of {read_kind} numbers\\n", path);
    exit(1);
  }}
  {read_kind} *data = memory(bytes);
  *count = bytes / (long)sizeof({read_kind});
  if (fread(data, sizeof({read_kind}), (size_t)*count, file) != (size_t)*count) exit(1);
  fclose(file);
  return data;
}}
"""

CONSTANT_C = """
/* A constant of the sequence: as many numbers as the file has. */
static void read_constant(const char *path, {kind} *to, int64_t count) {{
  FILE *file = fopen(path, "rb");
  if (!file || fread(to, sizeof *to, (size_t)count, file) != (size_t)count || fgetc(file) != EOF) {{
    fprintf(stderr, "%s: not a file of %lld {kind} numbers\\n", path, (long long)count);
    exit(1);
  }}
  fclose(file);
}}
"""

EXAMPLE_C = (
    """\
/* Run {name} over raw {kind} numbers, [steps][batch][...] in C order, and print the last step.

     example_c [--batch B] [--output y.raw] [--time N]{files}

   --time N: also time N calls of {timed}, and print p50, p99 and p99.9. */
"""
    + C_HELPERS
    + FILES_C.replace("{read_kind}", "{kind}")
    + """{constant_reader}
int main(int argc, char **argv) {{
  int64_t batch = 1, timed = 0, steps = -1;
  const char *output = 0, *files[{inputs}] = {{0}};
  int given = 0;
  for (int i = 1; i < argc; ++i) {{
    if (!strcmp(argv[i], "--batch") && i + 1 < argc) batch = atoll(argv[++i]);
    else if (!strcmp(argv[i], "--time") && i + 1 < argc) timed = atoll(argv[++i]);
    else if (!strcmp(argv[i], "--output") && i + 1 < argc) output = argv[++i];
    else if (given < {inputs} && argv[i][0] != '-') files[given++] = argv[i];
    else given = {inputs} + 1;
  }}
  if (given != {inputs} || batch < 1) {{
    fprintf(stderr, "usage: %s [--batch B] [--output y.raw] [--time N]{files}\\n", argv[0]);
    return 2;
  }}

  {name} *handle;
  CHECK({name}_open(NULL, &handle));
  printf("%s\\n", {name}_about());
{read}
{states}
  {kind} *y = memory(steps * batch * {macro_n}_Y_PER_ROW * (int64_t)sizeof *y);
  CHECK({network}_init_state(handle, batch{state_names}));
{constants}  CHECK({network}_sequence(handle, steps, batch{input_names}{state_names}, y, NULL, NULL));

  for (int64_t i = 0; steps && i < batch * {macro_n}_Y_PER_ROW; ++i)
    printf("%.9g%c", (double)y[(steps - 1) * batch * {macro_n}_Y_PER_ROW + i],
           (i + 1) % {macro_n}_Y_PER_ROW ? ' ' : '\\n');
  if (output) {{
    FILE *file = fopen(output, "wb");
    size_t count = (size_t)(steps * batch * {macro_n}_Y_PER_ROW);
    if (!file || fwrite(y, sizeof *y, count, file) != count || fclose(file)) {{
      fprintf(stderr, "cannot write %s\\n", output);
      return 1;
    }}
  }}
  if (timed > 0 && steps > 0) {{
    double *us = memory(timed * (int64_t)sizeof *us);
    CHECK({network}_reserve(handle, {reserved}, batch));
    for (int64_t i = 0; i < timed; ++i) {{
      double start = now_us();
      CHECK({call});
      us[i] = now_us() - start;
    }}
    print_times("{timed}", us, timed);
    free(us);
  }}
{free}
  free(y);
  {name}_close(handle);
  return 0;
}}
"""
)

CPP_HEAD = """\
#include <cstdint>
#include <cstdlib>
#include <cstring>
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
"""

CPP_MAIN = """\
int main(int argc, char **argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception &error) {
    std::cerr << error.what() << '\\n';
    return 1;
  }
}
"""

EXAMPLE_CPP = (
    """\
// Run {name} over raw {kind} numbers, [steps][batch][...] in C order, and print the last step.
//
//   example_cpp [--batch B]{files}
"""
    + CPP_HEAD
    + """
static std::vector<{kind}> read_file(const std::string &path) {{
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || bytes.size() % sizeof({kind})) throw std::runtime_error(path + ": not a file of {kind} numbers");
  const {kind} *first = reinterpret_cast<const {kind} *>(bytes.data());
  return std::vector<{kind}>(first, first + bytes.size() / sizeof({kind}));
}}

static int run(int argc, char **argv) {{
  int64_t batch = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {{
    if (std::string(argv[i]) == "--batch" && i + 1 < argc) batch = std::atoll(argv[++i]);
    else files.push_back(argv[i]);
  }}
  if (files.size() != {inputs} || batch < 1) throw std::runtime_error("usage: example_cpp [--batch B]{files}");

  {name} *opened = nullptr;
  check({name}_open(nullptr, &opened));
  std::unique_ptr<{name}, void (*)({name} *)> handle(opened, {name}_close);
{read}
{states}
  std::vector<{kind}> y(steps * batch * {macro_n}_Y_PER_ROW);
  check({network}_init_state(handle.get(), batch{state_names}));
{constants}
  check({network}_sequence(handle.get(), steps, batch{input_names}{state_names}, y.data(), nullptr, nullptr));
  std::cout.precision(9);
  for (std::size_t i = y.size() - (steps ? batch * {macro_n}_Y_PER_ROW : 0), n = 1; i < y.size(); ++i, ++n)
    std::cout << y[i] << (n % {macro_n}_Y_PER_ROW ? ' ' : '\\n');
  return 0;
}}
"""
)

GENERATE_C = (
    """\
/* Let {name} feed itself, and print what each row makes.

     generate [--prompt p.raw] [--batch B] [--stop S]{seed_usage} [--output y.raw] [--time N] STEPS{files}

   p.raw: {token} numbers, [P][B]{layout} in C order; the first input is 0 without one.{inputs_text}
   --time N: also time N calls of {network}_generate, and print p50, p99 and p99.9. */
"""
    + C_HELPERS
    + FILES_C.replace("read_file", "read_prompt").replace("{read_kind}", "{token}")
    + """{read_inputs}{constant_reader}
int main(int argc, char **argv) {{
  const char *path = 0, *output = 0, *ends = 0{files_variable};
  int64_t batch = 1, timed = 0, steps = 0, prompt_steps = 0, count = 0{seed_variable};
  int given = -1;
  for (int i = 1; i < argc; ++i) {{
    if (!strcmp(argv[i], "--prompt") && i + 1 < argc) path = argv[++i];
    else if (!strcmp(argv[i], "--batch") && i + 1 < argc) batch = atoll(argv[++i]);
    else if (!strcmp(argv[i], "--stop") && i + 1 < argc) ends = argv[++i];{seed_argument}
    else if (!strcmp(argv[i], "--output") && i + 1 < argc) output = argv[++i];
    else if (!strcmp(argv[i], "--time") && i + 1 < argc) timed = atoll(argv[++i]);
    else if (given < 0) steps = atoll(argv[i]), given = 0;
{files_argument}    else given = {inputs} + 1;
  }}
  if (given != {inputs} || batch < 1 || steps < 1) {{
    fprintf(stderr, "usage: %s [--prompt p.raw] [--batch B] [--stop S]{seed_usage} [--output y.raw] [--time N] "
                    "STEPS{files}\\n", argv[0]);
    return 2;
  }}

  {name} *handle;
  CHECK({name}_open(NULL, &handle));
  CHECK({network}_reserve(handle, 1, batch));
  {token} *prompt = path ? read_prompt(path, &count) : 0, stop = ends ? ({token})atof(ends) : 0;
  prompt_steps = count / (batch * {macro_n}_Y_PER_ROW);
  if (path && (!count || count % (batch * {macro_n}_Y_PER_ROW))) {{
    fprintf(stderr, "%s does not hold [P][%lld][%d] numbers\\n", path, (long long)batch, {macro_n}_Y_PER_ROW);
    return 1;
  }}
{read}
{states}
  {token} *y = memory(steps * batch * {macro_n}_Y_PER_ROW * (int64_t)sizeof *y);
  int64_t *lengths = memory(batch * (int64_t)sizeof *lengths);
  CHECK({network}_init_state(handle, batch{state_names}));
{constants}  CHECK({call});

  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < lengths[b]; ++t)
      for (int64_t i = 0; i < {macro_n}_Y_PER_ROW; ++i)
        printf("%.9g%c", (double)y[(t * batch + b) * {macro_n}_Y_PER_ROW + i],
               t + 1 < lengths[b] || i + 1 < {macro_n}_Y_PER_ROW ? ' ' : '\\n');
  if (output) {{
    FILE *file = fopen(output, "wb");
    size_t size = (size_t)(steps * batch * {macro_n}_Y_PER_ROW);
    if (!file || fwrite(y, sizeof *y, size, file) != size || fclose(file)) {{
      fprintf(stderr, "cannot write %s\\n", output);
      return 1;
    }}
  }}
  if (timed > 0) {{
    double *us = memory(timed * (int64_t)sizeof *us);
    for (int64_t i = 0; i < timed; ++i) {{
      double start = now_us();
      CHECK({call});
      us[i] = now_us() - start;
    }}
    print_times("{network}_generate", us, timed);
    free(us);
  }}
{free}
  free(prompt);
  free(lengths);
  free(y);
  {name}_close(handle);
  return 0;
}}
"""
)

STREAM_C = """\
/* {name} as a stream, in the style of an audio callback: whatever comes on stdin, step after step, goes to stdout.

     stream{files} < x.raw > y.raw      numbers are {kind}; a step is {input_text}

   `process` is what a real-time thread may call: it takes no memory and no lock, and starts no thread. */
#include <stdio.h>
#include <stdlib.h>

#include "{name}.h"
{constant_reader}
/* All that a voice needs, made before it sounds. */
struct voice {{
  {name} *handle;
{fields}
}};

static int32_t begin(struct voice *v) {{
  int32_t status = {name}_open(NULL, &v->handle); /* takes the memory of one step of one row */
  return status ? status : {network}_init_state(v->handle, 1{state_names});
}}

static int32_t process(struct voice *v{parameters}, {kind} *y) {{
  return {network}_step(v->handle, 1{input_names}{state_names}, y);
}}

int main({main}) {{
  static struct voice v;
  static {kind} in[{input_sum}], out[{macro_n}_Y_PER_ROW];
  if (begin(&v)) {{
    fprintf(stderr, "%s\\n", {name}_error());
    return 1;
  }}
{constants}  while (fread(in, sizeof in, 1, stdin) == 1) {{
    if (process(&v{process_inputs}, out)) {{
      fprintf(stderr, "%s\\n", {name}_error());
      return 1;
    }}
    fwrite(out, sizeof out, 1, stdout);
  }}
  {name}_close(v.handle);
  return 0;
}}
"""

MODEL_C = (
    """\
/* Run the model {name} over files of raw numbers, in the machine's byte order and in C order, and print its outputs.

     example_c [--time N]{usage}

   A shape is its sizes with an x between them, such as 7x3. --time N: time N runs too, and print p50, p99 and p99.9. */
"""
    + C_HELPERS
    + """
static const char *const input_names[] = {{{input_names}, 0}}, *const output_names[] = {{{output_names}, 0}};
static const int input_dtypes[] = {{{input_dtypes}, 0}};
static const size_t sizes[] = {{1, 4, 8, 4, 8, 2}}; /* of an element of each dtype */

static void check(int32_t status) {{
  if (status == {macro}_OK) return;
  fprintf(stderr, "%s\\n", {name}_error());
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
  array.data = memory(bytes);
  if (fread(array.data, 1, (size_t)bytes, file) != (size_t)bytes) exit(1);
  fclose(file);
  return array;
}}

/* Of 16 bits, of which C has no type everywhere. */
static float of_16_bits(uint16_t bits) {{
  uint32_t wide = (uint32_t)(bits & 0x7fff) << 13;
  float found;
  if (wide >= 0x0f800000) wide |= 0x7f800000; /* infinite, or no number */
  memcpy(&found, &wide, sizeof found);
  if (wide < 0x7f800000) found *= 5.192296858534828e33f; /* 2 ** 112: exponents of floats begin so much lower */
  return bits >> 15 ? -found : found;
}}

static double element(const {name}_array *array, size_t i) {{
  switch (array->dtype) {{
    case {macro}_BOOL: return ((const uint8_t *)array->data)[i];
    case {macro}_INT32: return ((const int32_t *)array->data)[i];
    case {macro}_INT64: return (double)((const int64_t *)array->data)[i];
    case {macro}_FLOAT16: return of_16_bits(((const uint16_t *)array->data)[i]);
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
    double *us = memory(timed * (int64_t)sizeof *us);
    for (long i = 0; i < timed; ++i) {{
      double start = now_us();
      check({name}_run(handle, inputs, outputs));
      us[i] = now_us() - start;
    }}
    print_times("{name}_run", us, timed);
    free(us);
  }}
  for (int i = 0; i < {macro}_INPUTS; ++i) free(inputs[i].data);
  {name}_close(handle);
  return 0;
}}
"""
)

MODEL_CPP = (
    """\
// Run the model {name} over files of raw numbers, and print its outputs: names, shapes, and rows of the last axis.
//
//   example_cpp{usage}        a shape is its sizes with an x between them, such as 7x3
"""
    + CPP_HEAD
    + """
// A number of 16 bits, of which C++ has no type everywhere.
struct number_of_16_bits {{
  uint16_t bits;
  float operator+() const {{
    uint32_t wide = static_cast<uint32_t>(bits & 0x7fff) << 13;
    float found;
    if (wide >= 0x0f800000) wide |= 0x7f800000;  // infinite, or no number
    std::memcpy(&found, &wide, sizeof found);
    if (wide < 0x7f800000) found *= 5.192296858534828e33f;  // 2 ** 112: exponents of floats begin so much lower
    return bits >> 15 ? -found : found;
  }}
}};

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
    case {macro}_FLOAT16: return print<number_of_16_bits>(array, count);
    case {macro}_FLOAT32: return print<float>(array, count);
    default: return print<double>(array, count);
  }}
}}

static int run(int argc, char **argv) {{
  static const int dtypes[] = {{{input_dtypes}, 0}};
  static const std::size_t sizes[] = {{1, 4, 8, 4, 8, 2}};
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
)


def example_c(facts: Facts) -> str:
    """The C program, with --time."""
    n = facts.networks[0]
    pieces = _pieces(facts, n)
    states = "".join(f", {s.name}" for s in n.states)
    inputs = "".join(f", {x.name}" for x in n.inputs)
    entry, size = ("step", "") if n.can_step else ("sequence", "1, ")
    rest = "" if n.can_step else ", NULL, NULL"
    read = []
    for i, x in enumerate(n.inputs):
        size_name = f"{n.macro}_{x.name.upper()}_PER_ROW"
        read.append(f"  int64_t count_{i};\n  {n.c_type} *{x.name} = read_file(files[{i}], &count_{i});")
        read.append(_steps(i, x.per_row, size_name, "return 1;"))
    return EXAMPLE_C.format(
        **pieces,
        timed=f"{n.name}_{entry}, one step",
        reserved="1",
        call=f"{n.name}_{entry}(handle, {size}batch{inputs}{states}, y{rest})",
        read="\n".join(read),
        states=_states_c(n),
        state_names=states,
        constants=_constants_c(n, len(n.inputs)),
        input_names=inputs,
        free="\n".join(f"  free({a.name});" for a in (*n.inputs, *n.states)),
    )


def _steps(i: int, per_row: int, size_name: str, failed: str) -> str:
    """Lines that find out how many steps an input has, and compare."""
    if not per_row:
        return "  if (steps < 0) steps = 0;"
    return (
        f"  if (count_{i} % (batch * {size_name}) || (steps >= 0 && count_{i} != steps * batch * {size_name})) {{\n"
        f'    fprintf(stderr, "%s does not hold [steps][%lld][%d] numbers\\n", files[{i}], (long long)batch,\n'
        f"            {size_name});\n"
        f"    {failed}\n  }}\n  steps = count_{i} / (batch * {size_name});"
    )


def example_cpp(facts: Facts) -> str:
    """The C++ program."""
    n = facts.networks[0]
    read = []
    for i, x in enumerate(n.inputs):
        read.append(f"  const std::vector<{n.c_type}> {x.name} = read_file(files[{i}]);")
        size = f"batch * {n.macro}_{x.name.upper()}_PER_ROW"
        if i == 0:
            read.append(f"  const int64_t steps = static_cast<int64_t>({x.name}.size()) / ({size});")
        read.append(f"  if (static_cast<int64_t>({x.name}.size()) != steps * {size})")
        read.append(f'    throw std::runtime_error(files[{i}] + " does not fit the batch size, or the other files");')
    states = "\n".join(
        f"  std::vector<{n.c_type}> {s.name}(batch * {n.macro}_{s.name.upper()}_PER_ROW);" for s in n.states
    )
    program = EXAMPLE_CPP.format(
        **_pieces(facts, n),
        read="\n".join(read),
        states=states,
        state_names="".join(f", {s.name}.data()" for s in n.states),
        constants="".join(_constant_cpp(name, i) for i, name in enumerate(n.constants, len(n.inputs))),
        input_names="".join(f", {x.name}.data()" for x in n.inputs),
    )
    return program + CPP_MAIN


def _constant_cpp(name: str, file: int) -> str:
    """Lines that read a constant."""
    return (
        f"  if (read_file(files[{file}]).size() != {name}.size())\n"
        f'    throw std::runtime_error(files[{file}] + " does not fit the batch size");\n'
        f"  {name} = read_file(files[{file}]);\n"
    )


def stream_c(facts: Facts) -> str:
    """The C program that steps. Only for networks that can."""
    n = facts.networks[0]
    macros = [f"{n.macro}_{x.name.upper()}_PER_ROW" for x in n.inputs]
    at = ["in" + "".join(f" + {m}" for m in macros[:i]) for i in range(len(macros))]
    fields = "\n".join(f"  {n.c_type} {s.name}[{n.macro}_{s.name.upper()}_PER_ROW];" for s in n.states)
    pieces = {**_pieces(facts, n), "files": files([], n)}
    return STREAM_C.format(
        **pieces,
        main="int argc, char **argv" if n.constants else "void",
        constants=_streamed_constants(n),
        fields=fields,
        parameters="".join(f", const {n.c_type} *{x.name}" for x in n.inputs),
        state_names="".join(f", v->{s.name}" for s in n.states),
        input_names="".join(f", {x.name}" for x in n.inputs),
        input_sum=" + ".join(macros),
        process_inputs="".join(f", {place}" for place in at),
        input_text=" and then ".join(f"{x.per_row} of {x.name}" for x in n.inputs),
    )


def _streamed_constants(n: Network) -> str:
    """Lines that read the constants of one row."""
    if not n.constants:
        return ""
    count, usage = 1 + len(n.constants), f"usage: %s{files([], n)}"
    given = [f"  if (argc != {count}) {{", f'    fprintf(stderr, "{usage}\\n", argv[0]);']
    read = (
        f"  read_constant(argv[{i}], v.{name}, {n.macro}_{name.upper()}_PER_ROW);"
        for i, name in enumerate(n.constants, 1)
    )
    return "\n".join([*given, "    return 2;", "  }", *read, ""])


def _pieces(facts: Facts, n: Network) -> dict[str, object]:
    return {
        "name": facts.name,
        "macro": facts.name.upper(),
        "network": n.name,
        "macro_n": n.macro,
        "kind": n.c_type,
        "inputs": len(n.inputs) + len(n.constants),
        "files": files(n.inputs, n),
        "constant_reader": CONSTANT_C.format(kind=n.c_type) if n.constants else "",
    }


def files(inputs: Sequence[Array], n: Network) -> str:
    """What a program is given of these inputs and of the network's constants: a file for each."""
    return "".join(f" {name}.raw" for name in (*(x.name for x in inputs), *n.constants))


def _constants_c(n: Network, first: int) -> str:
    """Lines that read the constants. first: how many files come before theirs."""
    return "".join(
        f"  read_constant(files[{i}], {name}, batch * {n.macro}_{name.upper()}_PER_ROW);\n"
        for i, name in enumerate(n.constants, first)
    )


def generate_c(facts: Facts) -> str:
    """The C program that generates. Only for networks that can."""
    n, drawn = facts.networks[0], facts.networks[0].manifest.draws
    others = n.inputs[1:]
    seed = '\n    else if (!strcmp(argv[i], "--seed") && i + 1 < argc) seed = (uint64_t)strtoull(argv[++i], 0, 10);'
    names = [*(x.name for x in others), *(s.name for s in n.states)]
    arrays = "".join(f", {name}" for name in names) + ", y, lengths, ends ? &stop : 0" + ", seed, 0" * bool(drawn)
    read = []
    for i, x in enumerate(others):
        size = f"{n.macro}_{x.name.upper()}_PER_ROW"
        read.append(f"  {n.c_type} *{x.name} = read_file(files[{i}], &count);")
        read.append(f"  if (count != (prompt_steps ? prompt_steps - 1 + steps : steps) * batch * {size}) {{")
        read.append(
            '    fprintf(stderr, "%s does not fit the steps and rows\\n", files[' + f"{i}]);\n    return 1;\n  }}"
        )
    count = len(others) + len(n.constants)
    pieces = {**_pieces(facts, n), "inputs": count, "files": files(others, n)}
    reader = FILES_C[FILES_C.index("/* All of a file") :].replace("{read_kind}", "{kind}")
    return GENERATE_C.format(
        **pieces,
        token=n.token_type,
        layout="" if n.token_type == "int32_t" else f"[{n.output.per_row}]",
        inputs_text=f"\n   {' and '.join(x.name for x in others)}: for P - 1 + STEPS steps." if others else "",
        read_inputs="\n" + reader.format(**pieces) if others else "",
        files_variable=f", *files[{count}] = {{0}}" if count else "",
        files_argument=f"    else if (given < {count}) files[given++] = argv[i];\n" if count else "",
        constants=_constants_c(n, len(others)),
        seed_usage=" [--seed N]" if drawn else "",
        seed_argument=seed if drawn else "",
        seed_variable=";\n  uint64_t seed = 0" if drawn else "",
        read="\n".join(read),
        states=_states_c(n),
        state_names="".join(f", {s.name}" for s in n.states),
        call=f"{n.name}_generate(handle, steps, batch, prompt, prompt_steps{arrays})",
        free="\n".join(f"  free({name});" for name in names),
    )


def _states_c(n: Network) -> str:
    return "\n".join(
        f"  {n.c_type} *{s.name} = memory(batch * {n.macro}_{s.name.upper()}_PER_ROW * (int64_t)sizeof *{s.name});"
        for s in n.states
    )


def model_example(facts: Facts, cpp: bool) -> str:
    """The program in C, or in C++."""
    model = facts.model
    names = [", ".join(c_string(item.name) for item in items) for items in (model.inputs, model.outputs)]
    program = (MODEL_CPP if cpp else MODEL_C).format(
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
