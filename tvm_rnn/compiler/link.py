"""Code generation and linking for CPUs: from an IRModule to the bytes of a shared object.

In: an IRModule of functions, a CPU. Out: TVM's executable (LLVM machine code), and that with the thread pool and what
stands in for tvm_ffi as one ELF file; for systems that load no code, an object file.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm import tirx

from tvm_rnn.cpu import c_compiler, tir_pipeline
from tvm_rnn.errors import BuildError, message
from tvm_rnn.target import Target

# The C files that every module for a CPU has in it. macOS runs their constructors in this order, whatever they ask for.
LINKED = ("cpu/c/ffi", "cpu/c/pool")


def generate(module: tvm.IRModule, target: Target) -> tvm.runtime.Executable:
    """The IRModule as TVM executable (LLVM machine code)."""
    try:
        return tvm.compile(module, target.tvm_target, tir_pipeline=tir_pipeline.NAME)
    except Exception as reason:  # TVM raises many classes, none of them meant for users
        text = str(reason).strip().splitlines()
        what = text[-1] if text else type(reason).__name__
        full = message("code generation failed", where=target.name, got=what, do="report this cell")
        raise BuildError(full) from reason


def with_more(module: tvm.IRModule, functions: Mapping[str, tirx.PrimFunc]) -> tvm.IRModule:
    """The module with more functions."""
    return tvm.IRModule({**dict(module.functions_items()), **functions}) if functions else module


def link(executable: tvm.runtime.Executable, folder: Path, target: Target) -> bytes:
    """The code, the thread pool and what stands in for tvm_ffi as one shared object; the code alone as an object file,
    where the target's system loads none. Raises BuildError."""
    if not target.loads_code:
        executable.export_library(str(folder / "code.o"), fcompile=_object)
        return (folder / "code.o").read_bytes()
    compiler = c_compiler.find_compiler(target.elsewhere)
    linked, addons = folder / "code.so", []
    for name in LINKED:
        addons.append(str(folder / f"{Path(name).name}.o"))
        Path(addons[-1]).write_bytes(c_compiler.object_of(name, compiler))
    try:
        executable.export_library(str(linked), fcompile=functools.partial(_shared_object, target), addons=addons)
    except (RuntimeError, OSError) as reason:
        raise BuildError(
            message("linking failed", got=str(reason).strip()[-400:], do=f"check {compiler[0]}")
        ) from reason
    return linked.read_bytes()


def objects_of(functions: Mapping[str, tirx.PrimFunc], folder: Path, target: Target) -> list[str]:
    """Paths of object files: functions for a CPU, and the thread pool that they use; none of no functions."""
    if not functions:
        return []
    generate(tvm.IRModule(dict(functions)), target).export_library(str(folder / "around.o"), fcompile=_object)
    pool = folder / "pool.o"
    pool.write_bytes(c_compiler.object_of(LINKED[1], c_compiler.find_compiler(target.elsewhere)))
    return [str(folder / "around.o"), str(pool)]


def _shared_object(target: Target, output: str, objects: Sequence[str], **options: object) -> None:
    """What TVM calls to link. options: TVM's own, of which a compiler named by us wants none. Code calls libm, which a
    compiler of C does not link unasked, and a program in C need not have loaded. What TVM writes for debuggers
    says nothing of equations and stays out: it is a large part of a file."""
    compiler = c_compiler.find_compiler(target.elsewhere)
    absent = ["-Wl,-undefined,dynamic_lookup"] if target.is_macos else []  # the pool asks what is there, as on Linux
    c_compiler.run([*compiler, "-shared", "-fPIC", "-Wl,-S", "-o", output, *objects, "-lm", *absent])


def _object(output: str, objects: Sequence[str], **options: object) -> None:
    """What TVM calls to link, where there is nothing to link with yet: functions for CPUs are one object file."""
    (own,) = objects
    shutil.copyfile(own, output)
