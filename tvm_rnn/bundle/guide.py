"""A bundle's README.md and CMakeLists.txt.

In: `Facts` and the names of its files. Out: two texts.
"""

from __future__ import annotations

from collections.abc import Mapping

from .examples import arguments
from .facts import Facts
from .header import about_lines

README = """\
# {name}

{about}

| file | |
|---|---|
{files}

Nothing else is needed: no Python, no TVM, only the C library. A program includes `{name}.h`, links `lib{name}.so`, and
takes both `.so` files with it; they stay side by side. From Rust, Go and others: `{name}.h` is all that bindgen or cgo
need.

```bash
cc -O2 example.c -o example_c -L. -l{name} -Wl,-rpath,'$ORIGIN'
c++ -O2 example.cpp -o example_cpp -L. -l{name} -Wl,-rpath,'$ORIGIN'
{stream}./example_c --time 1000{inputs}
```

or, with CMake, `cmake -B build && cmake --build build`. Files of numbers are raw {kind}s in the machine's byte order,
as `numpy.ndarray.tofile` writes them.
"""

CMAKE = """\
# Build the examples: cmake -B build && cmake --build build
# In a project of your own: add_subdirectory(this folder), then target_link_libraries(your_program {name}::{name}).
cmake_minimum_required(VERSION 3.10)
project({name}_bundle C CXX)

add_library({name}::{name} SHARED IMPORTED GLOBAL)
set_target_properties({name}::{name} PROPERTIES
  IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/lib{name}.so"
  INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}")

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
{programs}endif()
"""

PROGRAM = """\
  add_executable({program} {source})
  target_link_libraries({program} PRIVATE {name}::{name})
"""

FILES = {
    "{name}.h": "the C API of this model: shapes, sizes, functions",
    "lib{name}.so": "the library behind it",
    "{name}.so": "the compiled model with its weights, which the library loads; Python's `tvm_rnn.load` can too",
    "example.c, example.cpp": "programs that run it over a file of numbers",
    "stream.c": "a program that runs it a step at a time, as a real-time thread would",
    "CMakeLists.txt": "builds them",
}


def readme_text(facts: Facts, sources: Mapping[str, str]) -> str:
    """README.md. sources: the programs' files by the programs' names."""
    files = {key.format(name=facts.name): text for key, text in FILES.items()}
    if "stream" not in sources:
        del files["stream.c"]
    stream = f"cc -O2 stream.c -o stream -L. -l{facts.name} -Wl,-rpath,'$ORIGIN'\n" if "stream" in sources else ""
    network = facts.networks[0]
    return README.format(
        name=facts.name,
        about="\n\n".join(about_lines(facts)),
        files="\n".join(f"| `{key}` | {text} |" for key, text in files.items()),
        stream=stream,
        inputs=arguments(facts) if facts.manifest.model else "".join(f" {x.name}.raw" for x in network.inputs),
        kind="number" if facts.manifest.model else network.c_type,
    )


def cmake_text(facts: Facts, sources: Mapping[str, str]) -> str:
    """CMakeLists.txt."""
    programs = "".join(PROGRAM.format(name=facts.name, program=p, source=s) for p, s in sources.items())
    return CMAKE.format(name=facts.name, programs=programs)
