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
import sys
from pathlib import Path

import pytest

from tests.test_readme import BLOCKS, README
from tests.test_site import BLOCK, PROGRAMS, RUNNER, WRITTEN, blocks, lay_out

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = [line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
LATER = [*dict.fromkeys(re.findall(r"`(pip install (?:torch|\"\.\[[\w,]+\]\"))`", README))]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "tutorials").glob("[0-9]*.py"))
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


# Blocks that do not run here as they stand, and why; `tests/test_site.py` reads the words of their commands.
ELSEWHERE = {
    "benchmarks": (("console",), "suites: hours, and other machines"),
    "bundles": (("c", "js"), "C is the README's block; JavaScript runs in test_site.py"),
    "cell": (("console",), "NAME is the reader's cell"),
    "deploy_c": (("rust",), "runs in bundle/test_rust.py, where rustc is installed"),
    "gpus": (("py", "console", "sh"), "needs a GPU; what needs none runs in test_site.py"),
    "import": (("py",), "the model of another package; frontends/test_onnx_branches.py has its like"),
    "index": (("console",), "the README's lines that install, and make demo"),
    "onnx_tests": (("console",), "hours; its results are the page"),
    "operation": (("console",), "make fast"),
    "pytorch": (("console",), "a suite: minutes, and other packages"),
    "speed": (("console",), "suites: minutes, and other packages"),
    "tuning": (("sh",), "minutes, and other machines"),
}
RUN = (*PROGRAMS, "bash", "console")
# What a reader of a page has besides: packages, and files that its commands name.
PACKAGES = {"jax": "flax", "keras": "keras"}
FILES = {
    "browser": r"""
import pathlib
import re
program = pathlib.Path("page.py").read_text()
cell = re.search(r"^@rnn.cell.*?\n\n\n", program, re.M | re.S)[0]
pathlib.Path("amp.py").write_text("import tvm_rnn as rnn\n\n\n" + cell)
""",
    "generate": r"""
import pathlib
import re
import numpy
import tvm_rnn
from safetensors.numpy import save_file
program = pathlib.Path("page.py").read_text()
step = re.search(r"^def step.*?\n\n\n", program, re.M | re.S)[0]
cell = re.search(r'^@rnn.cell\(output="token"\).*?\n\n\n', program, re.M | re.S)[0]
pathlib.Path("writer.py").write_text("import tvm_rnn as rnn\n\n\n" + step + cell)
import writer as written
made = tvm_rnn.RNN(written.writer, 1, 48, V=12, D=8).init(seed=0)
save_file(dict(made.weights), "w.safetensors")
numpy.save("prompt.npy", numpy.zeros((4, 1), "int32"))
""",
    "keras": r"""
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
model = keras.Sequential([keras.Input((None, 3), name="input"), keras.layers.LSTM(4, return_sequences=True)])
model.save("model.keras")
x = numpy.ones((2, 5, 3), "float32")
""",
    "microcontroller": r"""
import numpy
import tvm_rnn
from safetensors.numpy import save_file
save_file(dict(tvm_rnn.RNN(tvm_rnn.cells.lstm, 1, 16).init(seed=0).weights), "w.safetensors")
numpy.save("x.npy", numpy.random.default_rng(0).normal(size=(100, 1, 1)).astype("float32"))
""",
}


def test_every_block_runs_or_says_why_not() -> None:
    """Of every page, and no excuse is left over. Plain ones are no code."""
    others = ("text", "", "c", "js")  # c and js: below
    for page in WRITTEN:
        kinds = {kind for kind, _ in BLOCK.findall(page.read_text())} - {*others, *RUN}
        assert kinds <= {*ELSEWHERE.get(page.stem, [()])[0]}, page
    for name, (excused, _) in ELSEWHERE.items():
        assert any({*excused} <= {kind for kind, _ in BLOCK.findall(p.read_text())} for p in WRITTEN if p.stem == name)
    (bundles,) = [text for page in WRITTEN if page.stem == "bundles" for text in blocks(page, "c")]
    assert bundles in [text for kind, text in BLOCKS if kind == "c"]


def kinds_of(page: Path) -> list[str]:
    return [kind for kind in RUN if kind not in ELSEWHERE.get(page.stem, [()])[0] and blocks(page, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in WRITTEN if kinds_of(page)], ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_in_order(checkout: Path, tmp_path: Path, page: Path) -> None:
    """What it prints is there too, where the page says it."""
    python = str(checkout / ".venv" / "bin" / "python")
    kinds = kinds_of(page)
    lines = [line for text in blocks(page, "console") for line in text.splitlines()] if "console" in kinds else []
    for line in (line.removeprefix("$ ") for line in lines):
        if line.startswith("pip "):
            run(checkout, python, "-m", *shlex.split(line))
    if page.stem in PACKAGES:
        run(checkout, python, "-m", "pip", "install", PACKAGES[page.stem])
    folder = tmp_path / "page"
    lay_out(folder, page, kinds)
    if page.stem in FILES:
        found = json.loads((folder / "blocks.json").read_text())
        (folder / "blocks.json").write_text(json.dumps([(0, FILES[page.stem]), *found]))
    (tmp_path / "pages.json").write_text(json.dumps(["page"]))
    run(tmp_path, python, "-c", RUNNER)
    said = [line.rstrip() for line in (folder / "said.txt").read_text().splitlines()]
    for line in "".join(blocks(page, "text")).splitlines():
        assert line in said, said
    {"browser": in_node, "microcontroller": in_c}.get(page.stem, lambda page, folder: None)(page, folder)


def in_node(page: Path, folder: Path) -> None:
    """The page's first block, with samples, beside its network; of the second, which needs a browser, the words."""
    if not shutil.which("node"):
        pytest.skip("needs node")
    first, second = blocks(page, "js")
    begin, rest = first.split("\n\n", 1)
    end = "console.log(y.length, all.length, h.length);\n"
    (folder / "amp" / "main.mjs").write_text(f"{begin}\nconst samples = new Float32Array(64);\n{rest}{end}")
    assert run(folder / "amp", "node", "main.mjs") == "1 64 16\n"
    (folder / "amp" / "second.mjs").write_text(f"const source = null;\n{second}")
    run(folder / "amp", "node", "--check", "second.mjs")


def in_c(page: Path, folder: Path) -> None:
    """The page's program, with a reader of samples that ends it."""
    (program,) = blocks(page, "c")
    include, body = program.split("\n\n", 1)
    ours = "static int n; static void read_sample(float *x) { x[0] = 1; if (n++ == 3) exit(0); }"
    whole = f"#include <stdlib.h>\n{include}\n{ours}\nint main(void) {{\n{body}}}\n"
    (folder / "amp" / "main.c").write_text(whole)
    run(folder / "amp", "cc", "-std=c99", "-O2", "-Wall", "-Werror", "main.c", "amp.c", "-o", "main", "-lm")
    run(folder / "amp", str(folder / "amp" / "main"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_notebook_runs(checkout: Path, name: str) -> None:
    """From its first cell to its last. Packages that are not made for old Pythons may lack; their page names them."""
    python = str(checkout / ".venv" / "bin" / "python")
    run(checkout, python, "-m", "pip", "install", ".[notebooks,notebooks-torch,demo]")
    run(checkout, python, "tutorials/site/notebooks.py", "build/notebooks", name)
    notebook = json.loads((checkout / "build" / "notebooks" / f"{name}.ipynb").read_text())
    if lacks := notebook["metadata"]["tvm_rnn"]["lacks"]:
        assert sys.version_info < (3, 11), lacks
        pytest.skip(f"needs {', '.join(lacks)}")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    assert all(cell["execution_count"] for cell in cells) and any(cell["outputs"] for cell in cells)
