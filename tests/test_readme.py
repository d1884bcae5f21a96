"""README.md: its Python runs and prints what it says, its commands run, its names and files exist."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import javascript
import pytest
from typer.core import TyperGroup
from typer.main import get_command

import tvm_rnn as rnn
from tvm_rnn.cli import app
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.schedule.schedule_template import templates

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
PYTHON = [text for language, text in BLOCKS if language == "python"]
GPU_PYTHON = [text for language, text in BLOCKS if language == "py"]
GPU_COMMANDS = [line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
# What takes minutes, other machines or a GPU.
OTHER_COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
# What blocks need that `pip install .` does not bring, and how the page says so, before them or in them.
NEEDS = {"torch": "`pip install torch`", "onnx": '`pip install ".[onnx]"`', "--html": '`pip install ".[report]"`'}
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


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
    assert len(PYTHON) == 8 and said.count("\n") == 5
    assert call(tmp_path, "readme.py") == said


@pytest.mark.slow
def test_the_python_with_torch_runs_in_order(tmp_path: Path) -> None:
    """As a reader runs it: nothing but the blocks of the page."""
    pytest.importorskip("torch")
    in_order = [text for language, text in BLOCKS if language in ("python", "py3")]
    assert len(in_order) == len(PYTHON) + 1
    (tmp_path / "readme.py").write_text("\n".join(in_order))
    call(tmp_path, "readme.py")
    assert (tmp_path / "gru.so").exists()


@pytest.mark.broad
def test_the_commands_run_in_order(tmp_path: Path) -> None:
    """Those of the command line one after the other in one process: starting each costs as much as what it does."""
    ours = [shlex.split(line) for line in COMMANDS if not line.startswith("make ")]
    assert len(ours) > 5
    for word, group in itertools.groupby(ours, key=lambda words: words[0]):
        assert word in ("tvm-rnn", "python")
        rest = [words[1:] for words in group]
        if word == "tvm-rnn":
            call(tmp_path, "-c", f"from tvm_rnn.cli import app\nfor words in {rest}: app(words, standalone_mode=False)")
        else:
            for words in rest:
                call(tmp_path, *words)
    assert (tmp_path / "y.npy").exists()


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


@pytest.mark.slow
def test_the_program_in_javascript_is_one(tmp_path: Path) -> None:
    if javascript.missing():
        pytest.skip(javascript.missing())
    (program,) = [text for language, text in BLOCKS if language == "js"]
    rnn.compile(rnn.RNN(rnn.cells.lstm, 1, 4).init(seed=0), "wasm32", batch=1).export(web=tmp_path / "amp")
    (tmp_path / "amp" / "main.mjs").write_text(f"{program}\nconsole.log(y.length);\n")
    assert javascript.node(tmp_path / "amp" / "main.mjs") == "4\n"


def test_every_kind_of_block_has_its_test() -> None:
    """Python, with torch, for a GPU; what they print; commands, for a GPU, elsewhere; programs; a diagram."""
    assert {kind for kind, _ in BLOCKS} == {"python", "py3", "py", "text", "bash", "console", "sh", "c", "js", ""}


def test_what_a_block_needs_is_said_before_it() -> None:
    for found in re.finditer(r"^```(python|py3|bash)\n(.*?)^```$", README, re.M | re.S):
        code = re.sub(r"#.*|torch-loop|--against \S+", "", found[2])  # comments name what is elsewhere
        for word, advice in NEEDS.items():
            chapter = README[: found.start()].rpartition("\n## ")[2]
            assert word not in code or advice in chapter, f"{word}:\n{found[2]}"


@pytest.mark.parametrize("line", [*OTHER_COMMANDS, *GPU_COMMANDS])
def test_commands_that_run_elsewhere_have_options_that_there_are(line: str) -> None:
    """Their words are read as typer reads them; nothing is run."""
    name, *words = shlex.split(line, comments=True)[1:]
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    with group.make_context("tvm-rnn", [name], resilient_parsing=True) as context:
        group.commands[name].make_context(name, words, parent=context)


@pytest.mark.slow
def test_the_gpu_section_compiles(tmp_path: Path) -> None:
    """Without a GPU: its Python up to the call, then its commands."""
    try:
        nvcc.find()
    except rnn.BuildError:
        pytest.skip("needs a CUDA compiler")
    (program,) = GPU_PYTHON
    lines = [line for line in program.splitlines() if not line.startswith("y, state")]
    (tmp_path / "gpu.py").write_text("\n".join(["import tvm_rnn as rnn", *lines]).replace('"cuda"', '"nvidia-h200"'))
    call(tmp_path, "gpu.py")
    (tmp_path / "lstm_gpu.so").unlink()
    words = [shlex.split(line)[1:] for line in GPU_COMMANDS]
    call(tmp_path, "-c", f"from tvm_rnn.cli import app\nfor words in {words}: app(words, standalone_mode=False)")
    assert (tmp_path / "lstm_gpu.so").exists()


def test_the_schedules_of_the_gpu_table_exist() -> None:
    named = re.findall(r"^\| `(\w+)` \| one launch|^\| `(\w+)` \| the same", section("On a GPU"), re.M)
    assert {a or b for a, b in named} == {n for n, t in templates().items() if "cuda" in t.targets} - {"gemm_cuda"}
    assert section("On a GPU").count("<!-- gpu-table -->") == 1


def test_every_command_of_the_command_line_is_shown() -> None:
    known = {c.name or (c.callback.__name__ if c.callback else "") for c in app.registered_commands}
    known |= {group.name or "" for group in app.registered_groups}
    assert {line.split()[1] for line in COMMANDS if line.startswith("tvm-rnn ")} == known


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z-]+)\b(?=`|\n)", README))
    assert {"demo", "test", "lint", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_zoo_is_complete() -> None:
    rows = [line.split("|")[1] for line in section("The zoo").splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == rnn.cells.names()


def test_names_of_the_package_exist() -> None:
    for name in set(re.findall(r"(?<![/\w])rnn\.(\w+)", README)):
        assert hasattr(rnn, name), name
    for name in set(re.findall(r"(?<![/\w])rnn\.cells\.(\w+)", README)):
        assert hasattr(rnn.cells, name), name


def test_files_and_links_exist() -> None:
    links = {path for path in re.findall(r"\]\(([^)]+)\)", README) if "://" not in path}
    files = set(re.findall(r"`((?:tvm_rnn|schedules|tests|tutorials)/[\w/.]*)`", README))
    assert len(links) >= 5 and len(files) >= 10
    for path in links | files:
        file, _, at = path.partition("#")
        assert (ROOT / file).exists(), path
        assert not at or f"# {at.replace('-', ' ')}\n" in (ROOT / file).read_text().lower(), path


def test_every_pass_is_explained() -> None:
    from tvm_rnn.options import PASS_NAMES

    rows = re.findall(r"^\| (\w+) \|", section("How it works"), re.M)
    assert [row for row in rows if row in PASS_NAMES] == list(PASS_NAMES)


@pytest.mark.parametrize("mark", ["begin", "end"])
def test_the_figures_have_their_place(mark: str) -> None:
    assert section("Speed").count(f"<!-- speed:{mark} -->") == 1
