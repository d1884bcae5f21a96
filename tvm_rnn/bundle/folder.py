"""A bundle's folder: its texts written, its library compiled, all of it in place at once.

In: a Module for a CPU with weights, from `Module.export`. Out: a folder, whole or not at all (`whole_files.py`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from tvm_rnn.cpu.c_compiler import compile_c, find_compiler, for_people, object_of, run
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.target import Target, table_row

from ..errors import BuildError, ConfigError, message
from ..locations import PACKAGE
from ..names import markdown
from ..whole_files import advice, path_of, whole_folder
from . import examples
from .facts import Facts, c_name, read_facts
from .header import about_lines, header_text
from .program import check_program, program_header, program_source
from .source import source_text

EXAMPLES = ("example.c", "example.cpp", "stream.c", "generate.c")
MARK = b"tvm_rnn_last_error"  # a function that code has if it runs without tvm_ffi

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
{build}
{example}
```

or, with CMake:

```bash
{cmake}
```

Files of numbers are raw {kind}s in the machine's byte order, as `numpy.ndarray.tofile` writes them.
"""
# Of another machine: programs are built here, and run there.
THERE = """\
# there, where this folder is taken
{example}"""

CMAKE = """\
# Build the examples: {cmake}
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
    "generate.c": "a program in which its output is its next input",
    "CMakeLists.txt": "builds them",
}


def write_bundle(module: Module, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write a folder for programs without Python: the module, a library with a C API of its own, header, examples.

    module: for a CPU, with weights. name: what the API's names begin with; None: the folder's name. A folder that is
    there already is replaced if it is empty or a bundle. Raises ConfigError (name; GPUs; no weights; a folder with
    something else in it) and BuildError (no compiler; cannot write).
    """
    manifest = module.manifest
    if manifest["target"]["kind"] != "llvm":
        do = "compile it for a CPU"
        raise ConfigError(message("bundle: only modules for CPUs", got=manifest["target"]["name"], do=do))
    if not (table_row(manifest["target"]["name"]) or Target("")).loads_code:
        do = 'mod.export(web="folder")'
        raise ConfigError(message("bundle: only systems that load code", got=manifest["target"]["name"], do=do))
    if (table_row(manifest["target"]["name"]) or Target("llvm", machine=manifest["target"]["machine"])).is_macos:
        do = 'mod.export("m.so") for Python there, or rnn.write_c(net, "folder")'
        raise ConfigError(message("bundle: not for macOS", got=manifest["target"]["name"], do=do))
    folder, own = check_place(path, name)
    write_whole("the bundle", folder, lambda work: _fill(module, work, own))


def write_whole(what: str, folder: str, fill: Callable[[Path], None]) -> None:
    """A folder that is there whole or not at all. fill: writes into the folder that it is given. Raises BuildError."""
    try:
        with whole_folder(folder) as work:
            fill(Path(work))
    except OSError as error:
        raise unwritable(what, folder, error) from None


def check_place(path: str | os.PathLike[str], name: str | None = None) -> tuple[str, str]:
    """The folder and the name of a bundle, if it may be written there. Raises ConfigError."""
    files = ("README.md", "CMakeLists.txt", *EXAMPLES)
    return check_folder("bundle", path, name, lambda own: {f"{own}.h", f"{own}.so", f"lib{own}.so", *files})


def check_folder(
    kind: str, path: str | os.PathLike[str], name: str | None, files: Callable[[str], set[str]]
) -> tuple[str, str]:
    """The absolute path and the name of a folder of that kind, if one may be written there. Raises ConfigError.

    name: what names in it begin with; None: the folder's. files: of a name, those that such a folder has."""
    try:
        folder = os.path.abspath(path_of(path))
    except OSError as error:
        raise ConfigError(message(f"{kind}: no such folder can be", got=error.strerror, do="give a folder")) from None
    own = c_name(name if name is not None else os.path.basename(folder).replace("-", "_").replace(".", "_"))
    if os.path.lexists(folder):
        is_folder = os.path.isdir(folder)
        strange = sorted(set(os.listdir(folder)) - files(own)) if is_folder else []
        if strange or not is_folder:
            got = f"{strange[0]!r} is in it" if is_folder else "it is no folder"
            do = "give another folder, or remove it first"
            raise ConfigError(message(f"{kind}: {folder!r} is not a {kind} of this name", got=got, do=do))
    return folder, own


def unwritable(what: str, folder: str, error: OSError) -> BuildError:
    """The error to raise where a folder cannot be written. what: it is."""
    do = advice(error, "give a folder in an existing one that you may write to")
    return BuildError(message(f"cannot write {what} {folder!r}", got=error.strerror or str(error), do=do))


def _fill(module: Module, folder: Path, name: str) -> None:
    place = folder / f"{name}.so"
    module.export(place)
    data = place.read_bytes()
    if MARK not in data[: runtime.FOOTER.unpack(data[-runtime.FOOTER.size :])[3]]:
        do = "compile it again with this version"
        raise ConfigError(message("bundle: the module is from an older tvm_rnn", got=module.path, do=do))
    facts = read_facts(data, module.manifest, name)
    if facts.manifest.model:
        check_program(facts)
    (folder / f"{name}.h").write_text(header_text(facts, program_header(facts)), encoding="utf-8")
    _compile(facts, folder)
    sources = {}  # by their programs' names
    for file, text in _examples(facts).items():
        (folder / file).write_text(text, encoding="utf-8")
        sources[file.replace(".", "_") if file.startswith("example") else file.removesuffix(".c")] = file
    (folder / "README.md").write_text(readme_text(facts, sources), encoding="utf-8")
    (folder / "CMakeLists.txt").write_text(cmake_text(facts, sources), encoding="utf-8")


def _examples(facts: Facts) -> dict[str, str]:
    """The programs' texts by their files."""
    files = ("example.c", "example.cpp") if facts.manifest.model else ()
    whole = {file: examples.model_example(facts, file.endswith("cpp")) for file in files}
    if not facts.networks:
        return whole
    first = facts.networks[0]
    found = whole or {"example.c": examples.example_c(facts), "example.cpp": examples.example_cpp(facts)}
    found = found if first.can_run else {}
    found |= {"stream.c": examples.stream_c(facts)} if first.can_step else {}
    return found | ({"generate.c": examples.generate_c(facts)} if first.manifest.generation is not None else {})


def _compile(facts: Facts, folder: Path) -> None:
    """The library. The generated source is not part of the bundle: it is of no use without the engine's."""
    library = f"lib{facts.name}.so"
    made = folder / "module.c"
    made.write_text(source_text(facts, program_source(facts)), encoding="utf-8")
    here = PACKAGE / "bundle"
    compiler, options = find_compiler(_elsewhere(facts)), ("-std=gnu11", "-fvisibility=hidden", f"-I{here}")
    compile_c(made, folder / "module.o", "-c", *options, f"-I{folder}", compiler=compiler)
    parts = [folder / "module.o"]
    loops = any(network.manifest.generation is not None for network in facts.networks)
    more_parts = [*["generate"] * loops, *["program"] * (facts.manifest.model is not None)]
    for name in ("engine", "code_file", *more_parts):
        parts.append(folder / f"{name}.o")
        parts[-1].write_bytes(object_of(f"bundle/{name}", compiler, *options))
    # now: nothing is looked up at the first call, which may be a real-time thread's. C alone: no library of C++.
    linker = ["-shared", "-s", "-Wl,-z,now", "-Wl,--as-needed", f"-Wl,-soname,{library}"]
    run([*compiler, *linker, *map(str, parts), "-o", str(folder / library), "-lm"])
    for path in (made, *parts):
        path.unlink()


def _elsewhere(facts: Facts) -> str:
    """What compilers call the system that it is for, where that is not this machine's."""
    own = facts.manifest.target
    return (table_row(own.name) or Target(own.name, machine=own.machine)).elsewhere


def readme_text(facts: Facts, sources: Mapping[str, str]) -> str:
    """README.md. sources: the programs' files by the programs' names."""
    gone = {*EXAMPLES} - {*sources.values()}
    files = {key.format(name=facts.name): text for key, text in FILES.items() if key.split(",")[0] not in gone}
    network = facts.networks[0] if facts.networks else None
    cc, cpp = _commands(facts)
    compilers = {program: cpp if source.endswith(".cpp") else cc for program, source in sources.items()}
    build = [f"{cc} -O2 {sources[p]} -o {p} -L. -l{facts.name} -Wl,-rpath,'$ORIGIN'" for p, cc in compilers.items()]
    first = 0 if "example_c" in sources else 1  # a loop's first input is its own output
    alone = network if facts.manifest.model is None else None
    given = examples.files(alone.inputs[first:], alone) if alone is not None else examples.arguments(facts)
    example = ("./generate 20" if first else "./example_c --time 1000") + given
    return README.format(
        name=facts.name,
        about="\n\n".join(map(markdown, about_lines(facts))),
        files="\n".join(f"| `{key}` | {text} |" for key, text in files.items()),
        build="\n".join(build),
        example=THERE.format(example=example) if _elsewhere(facts) else example,
        cmake=_cmake(facts),
        kind="number" if facts.manifest.model or network is None else network.c_type,
    )


def cmake_text(facts: Facts, sources: Mapping[str, str]) -> str:
    """CMakeLists.txt."""
    programs = "".join(PROGRAM.format(name=facts.name, program=p, source=s) for p, s in sources.items())
    return CMAKE.format(name=facts.name, programs=programs, cmake=_cmake(facts))


def _commands(facts: Facts) -> tuple[str, str]:
    """The compilers of C and of C++ that build programs for its system, as people write them."""
    triple = _elsewhere(facts)
    return for_people(find_compiler(triple)) if triple else ("cc", "c++")


def _cmake(facts: Facts) -> str:
    """The command by which CMake builds its programs: CMake looks for this machine's compilers by itself."""
    cc, cpp = map(shlex.quote, _commands(facts))
    return f"{f'CC={cc} CXX={cpp} ' * bool(_elsewhere(facts))}cmake -B build && cmake --build build"
