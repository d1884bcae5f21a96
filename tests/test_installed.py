"""README, documentation and notebooks as a reader meets them: in an environment that their own install lines make.

In: a copy of what git has. Out: every block, in the order of its page, run by that environment's Python, with nothing
that tests need and readers do not. Slow: it installs, and runs every tutorial.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_readme import BLOCKS, README
from tests.test_site import BLOCK, RUNNER, WRITTEN, blocks

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = [line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
LATER = [*dict.fromkeys(re.findall(r"`(pip install (?:torch|\"\.\[[\w,]+\]\"))`", README))]
C_AROUND = """
#include <stdio.h>
{include}
static int n;
static int next(float *x) {{ x[0] = 1; return n++ < 3; }}
static void stop(const char *error) {{ puts(error); }}
int main(void) {{
{body}printf("%d\\n", n);
return 0;
}}
"""


def run(folder: Path, *words: str) -> str:
    """stdout of a command that finds nothing of this process's environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["NO_MKDOCS_2_WARNING"] = "1"
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the README's lines have installed, in their order."""
    folder = tmp_path_factory.mktemp("installed") / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a checkout of git")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for line in [*INSTALLS, *(f".venv/bin/{line}" for line in LATER)]:
        run(folder, *shlex.split(line))
    return folder


def test_the_lines_that_install_are_found() -> None:
    assert [line.split()[0] for line in INSTALLS] == ["python3", ".venv/bin/pip", ".venv/bin/tvm-rnn"]
    assert "pip install torch" in LATER and any("onnx" in line for line in LATER)
    assert any(blocks(page, "py3") for page in WRITTEN)


@pytest.mark.slow
def test_every_block_of_the_readme_runs_in_order(checkout: Path, tmp_path: Path) -> None:
    bin_, programs, said = checkout / ".venv" / "bin", [], ""
    for kind, text in BLOCKS:
        if kind in ("python", "py3"):
            programs.append(text)
        elif kind == "text":
            said += text
        elif kind == "bash":
            for line in text.splitlines():
                run(tmp_path, str(bin_ / shlex.split(line)[0]), *shlex.split(line)[1:])
        elif kind == "c":
            include, body = text.split("\n\n", 1)
            (tmp_path / "main.c").write_text(C_AROUND.format(include=include, body=body))
            here = ("-I", "lstm", "-L", "lstm", "-llstm", "-Wl,-rpath,$ORIGIN/lstm", "-Wall", "-Werror")
            run(tmp_path, "gcc", "-std=c99", "main.c", "-o", "main", *here)
            assert run(tmp_path, str(tmp_path / "main")) == "4\n"
    (tmp_path / "readme.py").write_text("\n".join(programs))
    assert run(tmp_path, str(bin_ / "python"), "readme.py") == said
    assert (tmp_path / "lstm.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in WRITTEN if any(blocks(p, kind) for kind in ("python", "py3", "bash"))], ids=lambda p: p.stem
)
def test_every_block_of_a_page_runs_in_order(checkout: Path, tmp_path: Path, page: Path) -> None:
    """What it prints is there too, where the page says it."""
    found = BLOCK.findall(page.read_text())
    (tmp_path / "page").mkdir()
    code = "\n".join(text for kind, text in found if kind in ("python", "py3"))
    (tmp_path / "page" / "page.py").write_text(code)
    lines = [shlex.split(line)[1:] for kind, text in found if kind == "bash" for line in text.splitlines()]
    (tmp_path / "pages.json").write_text(json.dumps([("page", lines)]))
    run(tmp_path, str(checkout / ".venv" / "bin" / "python"), "-c", RUNNER)
    said = [line.rstrip() for line in (tmp_path / "page" / "said.txt").read_text().splitlines()]
    for line in "".join(text for kind, text in found if kind == "text").splitlines():
        assert line in said, said


@pytest.mark.slow
def test_every_notebook_runs(checkout: Path) -> None:
    """From its first cell to its last; those whose packages lack are named by their pages, and have no outputs."""
    python = str(checkout / ".venv" / "bin" / "python")
    run(checkout, python, "-m", "pip", "install", ".[notebooks,notebooks-torch,demo]")
    run(checkout, python, "tutorials/site/notebooks.py", "build/notebooks")
    written = sorted((checkout / "build" / "notebooks").glob("*.ipynb"))
    assert [path.stem for path in written] == sorted(path.stem for path in (ROOT / "tutorials").glob("[0-9]*.py"))
    whole = 0
    for path in written:
        notebook = json.loads(path.read_text())
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"], path.stem
        if not notebook["metadata"]["tvm_rnn"]["lacks"]:
            assert all(cell["execution_count"] for cell in cells) and any(cell["outputs"] for cell in cells), path.stem
            whole += 1
    assert whole >= 14
