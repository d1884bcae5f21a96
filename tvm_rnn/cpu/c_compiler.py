"""The C++ compiler of this machine: it links what TVM generates, and compiles the C files of this package.

In: names of C files, from compiler/compile.py, bundle/ and tune/rpc.py. Out: object files and shared objects. Needs
tvm_ffi for its headers, not the compiler of tensor programs.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tvm_rnn.errors import BuildError, message
from tvm_rnn.locations import PACKAGE


def find_compiler() -> tuple[str, ...]:
    """The words of the command that compiles and links: $CXX may have several, such as "ccache g++"."""
    commands = [tuple(shlex.split(c)) for c in (os.environ.get("CXX", ""), "g++", "clang++", "c++")]
    for command in commands:
        if command and shutil.which(command[0]):
            return command
    got = "none of $CXX, g++, clang++, c++"
    raise BuildError(message("no C++ compiler to link with", got=got, do="install g++"))


@functools.cache
def object_of(name: str, compiler: tuple[str, ...], *options: str) -> bytes:
    """A C file of this package as an object file, compiled once per process. Raises BuildError."""
    with tempfile.TemporaryDirectory(prefix="tvm_rnn_") as folder:
        built = Path(folder, "built.o")
        compile_c(f"{name}.c", built, "-c", *options, compiler=compiler)
        return built.read_bytes()


def compile_c(source: str | Path, built: Path, *options: str, compiler: Sequence[str] = ()) -> None:
    """A C file of this package, or one with an absolute path, compiled. Raises BuildError."""
    import tvm_ffi  # no sooner: it imports torch where that is installed

    includes = [f"-I{p}" for p in (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())]
    path = str(PACKAGE / source)
    run([*(compiler or find_compiler()), "-x", "c", "-O2", "-fPIC", *options, path, "-o", str(built), *includes])


def run(command: list[str]) -> None:
    """Raise BuildError with the end of what the compiler says where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(message("the C compiler failed", got=done.stderr.strip()[-400:], do=f"check {command[0]}"))
