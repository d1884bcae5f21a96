"""README.md: its Python runs and prints what it says, its commands run, its names and files exist."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_rnn as rnn

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
PYTHON = [text for language, text in BLOCKS if language == "python"]
# What blocks need that `pip install .` does not bring, and how the page says so, before them or in them.
NEEDS = {"torch": "`pip install torch`", "onnx": '`pip install ".[onnx]"`', "--html": '`pip install ".[report]"`'}
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]


def call(folder: Path, *words: str) -> str:
    """stdout of a Python process in `folder` that finds this repository's tvm_rnn."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr}"
    return done.stdout


@pytest.mark.broad
def test_the_python_runs_in_order_and_prints_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "readme.py").write_text("\n".join(PYTHON))
    said = "".join(text for language, text in BLOCKS if language == "text")
    assert len(PYTHON) == 2 and said.count("\n") == 2
    assert call(tmp_path, "readme.py") == said


@pytest.mark.slow
def test_the_python_with_torch_runs_in_order(tmp_path: Path) -> None:
    """As a reader runs it: nothing but the blocks of the page."""
    pytest.importorskip("torch")
    in_order = [text for language, text in BLOCKS if language in ("python", "py3")]
    assert len(in_order) == len(PYTHON) + 2
    (tmp_path / "readme.py").write_text("\n".join(in_order))
    call(tmp_path, "readme.py")


@pytest.mark.broad
def test_the_commands_run_in_order(tmp_path: Path) -> None:
    """Those of the command line one after the other in one process: starting each costs as much as what it does."""
    ours = [shlex.split(line) for line in COMMANDS if not line.startswith("make ")]
    assert len(ours) >= 3
    for word, group in itertools.groupby(ours, key=lambda words: words[0]):
        assert word in ("tvm-rnn", "python")
        rest = [words[1:] for words in group]
        if word == "tvm-rnn":
            call(tmp_path, "-c", f"from tvm_rnn.cli import app\nfor words in {rest}: app(words, standalone_mode=False)")
        else:
            for words in rest:
                call(tmp_path, *words)
    assert (tmp_path / "lstm" / "lstm.h").exists() and (tmp_path / "lstm.html").exists()


@pytest.mark.broad
@pytest.mark.broad
def test_the_program_in_c_is_one(tmp_path: Path) -> None:
    """With what it leaves to the reader: where inputs come from, and what an error does."""
    (program,) = [text for language, text in BLOCKS if language == "c"]
    include, body = program.split("\n\n", 1)
    own = "static int n; static int next(float *x) { x[0] = 1; return n++ < 3; }"
    own += "\nstatic void stop(const char *error) { puts(error); }"
    whole = f'#include <stdio.h>\n{include}\n{own}\nint main(void) {{\n{body}printf("%d\\n", n);\nreturn 0;\n}}\n'
    (tmp_path / "main.c").write_text(whole)
    rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 8).init(seed=0)).export(bundle=tmp_path / "lstm")
    here = ["-I", "lstm", "-L", "lstm", "-llstm", "-Wl,-rpath,$ORIGIN/lstm", "-Wall", "-Werror"]
    subprocess.run(["gcc", "-std=c99", "main.c", "-o", "main", *here], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == b"4\n"


def test_every_kind_of_block_has_its_test() -> None:
    """Python, with torch; what they print; commands, those that install; a program."""
    assert {kind for kind, _ in BLOCKS} == {"python", "py3", "text", "bash", "console", "c"}


def test_what_installs_is_what_the_package_has() -> None:
    """`tests/test_packaging.py` installs it so."""
    lines = [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
    assert lines == ["$ python3 -m venv .venv", "$ .venv/bin/pip install .", "$ .venv/bin/tvm-rnn doctor"]
    tomllib = pytest.importorskip("tomllib", reason="the standard library reads TOML from Python 3.11 on")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"pip install \"\.\[([\w,]+)\]\"", README):
        assert {*extras.split(",")} <= known.keys()


def test_it_is_short_and_has_no_private_words() -> None:
    assert README.count("\n") <= 200
    assert not re.search(r"\b(earlier version|a version before|quickest)\b", README)


def test_what_a_block_needs_is_said_before_it() -> None:
    for found in re.finditer(r"^```(python|py3|bash)\n(.*?)^```$", README, re.M | re.S):
        code = re.sub(r"#.*|torch-loop|--against \S+", "", found[2])  # comments name what is elsewhere
        for word, advice in NEEDS.items():
            chapter = README[: found.start()].rpartition("\n## ")[2]
            assert word not in code or advice in chapter, f"{word}:\n{found[2]}"


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z-]+)\b(?=`|\n)", README))
    assert {"demo", "test", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_names_of_the_package_exist() -> None:
    for name in set(re.findall(r"(?<![/\w])rnn\.(\w+)", README)):
        assert hasattr(rnn, name), name
    for name in set(re.findall(r"(?<![/\w])rnn\.cells\.(\w+)", README)):
        assert hasattr(rnn.cells, name), name


def test_files_and_links_exist() -> None:
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)
    links = {path for path in re.findall(r"\]\(([^)]+)\)", prose) if "://" not in path}
    pictures = set(re.findall(r'(?:src|srcset)="([^"]+)"', README))
    assert len(links) >= 5 and len(pictures) == 2
    for path in links | pictures:
        file, _, at = path.partition("#")
        assert (ROOT / file).exists(), path
        assert not at or f"# {at.replace('-', ' ')}\n" in (ROOT / file).read_text().lower(), path
