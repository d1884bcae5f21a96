"""link: machine code of an IRModule, as a shared object with what every module for a CPU has in it."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn.compiler import link
from tvm_rnn.errors import BuildError
from tvm_rnn.target import host, resolve
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, function, load, store


def executable() -> object:
    array = buffer("a", "int64", 8)
    return link.generate(tvm.IRModule({"put": function("put", [array], store(array, 0, int64(7)))}), host())


def test_the_file_has_the_function_and_the_pool(tmp_path: Path) -> None:
    elf = link.link(executable(), tmp_path, host())
    assert elf.startswith(b"\x7fELF") and b"put" in elf and b"tvm_rnn_pool_use" in elf
    assert b".debug_" not in elf


def test_the_file_brings_the_functions_that_its_code_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in C need not have loaded them; gcc and clang, unlike g++, do not link them unasked."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc, no clang: apt-get install gcc")
    monkeypatch.setattr(link.c_compiler, "find_compiler", lambda triple="": (compiler,))
    array = buffer("a", "float32", 8)
    sine = tirx.call_pure_extern("float32", "sinf", load(array, int64(0)))
    made = link.generate(tvm.IRModule({"put": function("put", [array], store(array, 1, sine))}), host())
    assert b"libm.so" in link.link(made, tmp_path, host())


def test_a_machine_that_no_compiler_knows_is_said(tmp_path: Path) -> None:
    """Where there is one that compiles for others, such as clang++ or Zig, it is that one that does not know it."""
    with pytest.raises(BuildError, match=r"no C compiler for other|the C compiler failed"):
        link.link(executable(), tmp_path, replace(host(), machine="other"))


@pytest.mark.broad
def test_a_module_for_macos_needs_its_system_library_alone(tmp_path: Path) -> None:
    """No macOS is at hand: what its loader would look at is read. It looks nothing up by name among all libraries but
    the pool's pointer, where no code has a parallel loop, and it loads no code without a signature."""
    row = resolve("aarch64-macos")
    try:
        link.c_compiler.object_of("cpu/c/ffi", link.c_compiler.find_compiler(row.elsewhere))
    except BuildError as error:  # no Zig; other compilers come without Apple's libraries
        pytest.skip(str(error))
    array = buffer("a", "float32", 8)
    sine = tirx.call_pure_extern("float32", "sinf", load(array, int64(0)))
    code = link.link(
        link.generate(tvm.IRModule({"put": function("put", [array], store(array, 1, sine))}), row), tmp_path, row
    )
    magic, machine, _, kind, count, _, _, _ = struct.unpack_from("<8I", code)
    assert (magic, machine, kind) == (0xFEEDFACF, 0x0100000C, 6)  # of 64 bits, arm64, a dynamic library
    commands, at = list[tuple[int, int]](), 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", code, at)
        commands.append((command, at))
        at += size
    named = [at + struct.unpack_from("<I", code, at + 8)[0] for command, at in commands if command == 0xC]
    assert [code[at : code.index(b"\0", at)] for at in named] == [b"/usr/lib/libSystem.B.dylib"]
    assert 0x1D in dict(commands)  # LC_CODE_SIGNATURE
    table, symbols, texts, _ = struct.unpack_from("<4I", code, dict(commands)[2] + 8)
    anywhere, defined = set[bytes](), set[bytes]()
    for entry in range(table, table + 16 * symbols, 16):
        text, flags, _, about, _ = struct.unpack_from("<IBBHQ", code, entry)
        name = code[texts + text : code.index(b"\0", texts + text)]
        if flags & 0xE:
            defined.add(name)
        elif flags & 1 and about >> 8 == 0xFE:
            anywhere.add(name)
    assert {b"___tvm_ffi_put", b"_tvm_rnn_pool_use", b"_tvm_rnn_last_error"} <= defined
    assert anywhere <= {b"___TVMBackendParallelLaunch"}


def test_what_tvm_refuses_is_said_in_words() -> None:
    with pytest.raises(BuildError, match=r"code generation failed[\s\S]*report this cell"):
        link.generate(object(), host())


def test_its_names_are_those_that_compile_uses() -> None:
    assert rnn.compile(rnn.RNN(rnn.cells.elman, 2, 3).init()).manifest.cell == "elman"
    assert link.LINKED == ("cpu/c/ffi", "cpu/c/pool")
