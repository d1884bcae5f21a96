"""The C++ compiler: which one, what it may be called, and what is said where it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tvm_rnn.cpu import c_compiler
from tvm_rnn.cpu.c_compiler import compile_c, find_compiler, for_people, object_of
from tvm_rnn.errors import BuildError


def test_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no_such_compiler")
    assert find_compiler()[0] in ("g++", "clang++", "c++")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler[\s\S]*install g\+\+"):
        find_compiler()


def test_it_may_be_several_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, wrapper = tmp_path / "log", tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\necho "$1" >> {log}\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"{wrapper} g++")
    assert find_compiler() == (str(wrapper), "g++")
    assert object_of("cpu/c/ffi", find_compiler())[:4] == b"\x7fELF"
    assert log.read_text().split() == ["g++"]


def test_those_for_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the user names, the distribution's, Zig's, then clang."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(c_compiler.importlib.util, "find_spec", lambda name: None)
    triple, variable = "riscv64-linux-gnu", "CXX_riscv64_linux_gnu"
    with pytest.raises(BuildError, match=rf"no C compiler for {triple}[\s\S]*{variable}[\s\S]*pip install ziglang"):
        find_compiler(triple)
    (tmp_path / "clang").write_text("#!/bin/sh\nexit 1\n")  # it lacks that system's headers
    (tmp_path / "clang").chmod(0o755)
    with pytest.raises(BuildError, match=r"no C compiler[\s\S]*clang with that system's headers[\s\S]*ziglang"):
        find_compiler(triple)
    c_compiler._has_headers.cache_clear()
    found = []
    for name in ("clang", "zig", f"{triple}-clang++", f"{triple}-g++", "own"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        if name == "own":
            monkeypatch.setenv(variable, "own --more")
        found.append(" ".join(find_compiler(triple)))
    distribution = [f"{triple}-clang++", f"{triple}-g++"]
    assert found == [
        f"clang --target={triple}",
        f"zig cc -target {triple}",
        *distribution[:1],
        distribution[1],
        "own --more",
    ]
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        find_compiler()


@pytest.mark.parametrize(
    ("words", "c", "cpp"),
    [
        ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"),
        ("ccache g++-13", "ccache gcc-13", "ccache g++-13"),
        ("clang --target=a-b", "clang --target=a-b", "clang++ --target=a-b"),
        (
            f"{sys.executable} -m ziglang cc -target a",
            "python3 -m ziglang cc -target a",
            "python3 -m ziglang c++ -target a",
        ),
        ("/ndk/android29-clang++", "/ndk/android29-clang", "/ndk/android29-clang++"),
        ("own --more", "own --more", "own --more"),
    ],
)
def test_its_commands_for_people(words: str, c: str, cpp: str) -> None:
    assert for_people(words.split()) == (c, cpp)


def test_android_s_is_the_oldest_of_its_kit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    triple, folder = "aarch64-linux-android", tmp_path / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin"
    with pytest.raises(BuildError, match="ANDROID_NDK_HOME"):
        find_compiler(triple)
    folder.mkdir(parents=True)
    for level in (35, 24):
        (folder / f"{triple}{level}-clang++").write_text("")
        (folder / f"{triple}{level}-clang++").chmod(0o755)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    assert find_compiler(triple) == (str(folder / f"{triple}24-clang++"),)


def test_one_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="the C compiler failed"):
        compile_c("cpu/c/ffi.c", tmp_path / "ffi.o", "-c")
    assert not (tmp_path / "ffi.o").exists()


def test_it_is_c_whatever_the_compiler_is_called(tmp_path: Path) -> None:
    """g++ takes a .c file for C++, where `new` is no name."""
    (tmp_path / "own.c").write_text("int new(void) { return 3; }")
    compile_c(tmp_path / "own.c", tmp_path / "own.so", "-shared")
    assert (tmp_path / "own.so").read_bytes()[:4] == b"\x7fELF"


def test_it_does_without_the_compiler_of_tensor_programs() -> None:
    code = "import sys, tvm_rnn.bundle; assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
