"""The C++ compiler of this machine, or one for another: it links what TVM generates, and compiles this package's C.

In: names of C files, from compiler/compile.py, bundle/ and tune/rpc.py. Out: object files and shared objects. Needs
tvm_ffi for its headers, not the compiler of tensor programs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tvm_rnn.errors import BuildError, message
from tvm_rnn.locations import PACKAGE


def find_compiler(triple: str = "") -> tuple[str, ...]:
    """The words of the command that compiles and links: $CXX may have several, such as "ccache g++".

    triple: of the system to compile for, such as "aarch64-linux-gnu"; empty: this one."""
    variable = f"CXX_{triple.replace('-', '_')}" if triple else "CXX"
    own = tuple(shlex.split(os.environ.get(variable, "")))
    for command in (own, *(_for_another(triple) if triple else _OWN)):
        if command and (found := shutil.which(command[0])) and (command[0] != "clang" or _has_headers(found, triple)):
            return command
    if triple:
        what, do = f"no C compiler for {triple}", _INSTALL.get(triple, "pip install ziglang")
        got = f"none of ${variable}, {triple}-g++, ziglang, clang with that system's headers"
    else:
        what, got, do = "no C++ compiler to link with", "none of $CXX, g++, clang++, c++", "install g++"
    raise BuildError(message(what, got=got, do=do))


def for_people(compiler: Sequence[str]) -> tuple[str, str]:
    """A compiler's commands for C and for C++, as people write them."""
    words = shlex.join("python3" if word == sys.executable else word for word in compiler)
    return _renamed(words, _C_OF), _renamed(words, {c: cpp for cpp, c in _C_OF.items()})


def _renamed(words: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: names.get(found[0], found[0]), words)


_C_OF = {"g++": "gcc", "clang++": "clang", "c++": "cc"}
# At the end of a word, but for a version: of aarch64-linux-gnu-g++, /usr/bin/clang-19.
_NAME = re.compile(r"(?<![^-/\s])(g\+\+|gcc|clang\+\+|clang|c\+\+|cc)(?=(-\d+)?(\s|$))")
_OWN = (("g++",), ("clang++",), ("c++",))
_NDK = "toolchains/llvm/prebuilt/*/bin/{triple}[0-9]*-clang++"
_INSTALL = {"aarch64-linux-android": "install Android's NDK and set ANDROID_NDK_HOME to its folder"}


def _for_another(triple: str) -> Iterator[tuple[str, ...]]:
    """The distribution's, Android's, Zig's, then clang, which needs the other system's headers."""
    yield (f"{triple}-g++",)
    yield (f"{triple}-clang++",)
    if "android" in triple:  # whose C library Zig does not have
        oldest = sorted(Path(os.environ.get("ANDROID_NDK_HOME", os.devnull)).glob(_NDK.format(triple=triple)))
        yield from ((str(path),) for path in oldest[:1])
        return
    zig = (sys.executable, "-m", "ziglang") if importlib.util.find_spec("ziglang") else ("zig",)
    yield (*zig, "cc", "-target", triple)  # what is linked is C; its c++ would build a library of C++ first
    yield ("clang", f"--target={triple}")


@functools.cache
def _has_headers(clang: str, triple: str) -> bool:
    """Whether clang, which compiles for every system, finds the C library of this one."""
    command = [clang, f"--target={triple}", "-x", "c", "-include", "math.h", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


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
