"""A plugin of pytest: code that is generated for CPUs is instrumented by clang's address sanitizer.

In: LLVM's text of every module that is linked. Out: the same module, whose loads and stores are checked. Used by
test_sanitizers.py, in a process of its own (`pytest -p instrumented`); TVM_RNN_TEST_CLANG names the compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tvm

from tvm_rnn.compiler import compile, compile_model, link
from tvm_rnn.target import Target

plain = link.link


def instrumented(executable: tvm.runtime.Executable, folder: Path, target: Target) -> bytes:
    """link.link, with the object of generated code made by clang."""
    text, made = folder / "code.ll", folder / "checked.o"
    source = executable.mod.inspect_source("ll")
    text.write_text(re.sub(r"^(attributes #\d+ = \{)", r"\1 sanitize_address", source, flags=re.M))
    words = ["-x", "ir", "-fsanitize=address", "-O1", "-fPIC", "-w", "-c", str(text), "-o", str(made)]
    subprocess.run([os.environ["TVM_RNN_TEST_CLANG"], *words], check=True)
    assert b"__asan_report" in made.read_bytes()
    shared = link._shared_object

    def replaced(compiler: Sequence[str], output: str, objects: Sequence[str], **options: object) -> None:
        names = [str(made) if Path(name).name == "lib0.o" else name for name in objects]
        assert str(made) in names
        shared(compiler, output, names, **options)

    link._shared_object = replaced
    try:
        return plain(executable, folder, target)
    finally:
        link._shared_object = shared


compile.link = compile_model.link = instrumented
