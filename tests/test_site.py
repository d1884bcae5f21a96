"""The documentation: its code runs and prints what it says, its pages are made from the sources, its links hold."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import javascript
import pytest
from typer.core import TyperGroup
from typer.main import get_command

import tvm_rnn as rnn
from tvm_rnn.cli import app
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.schedule.schedule_template import templates

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "tutorials" / "site"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
GPUS = SITE / "pages" / "reference" / "gpus.md"
WRITTEN = sorted([*SITE.glob("*.md"), *SITE.glob("pages/**/*.md")])
LONG = (
    "browser",
    "deploy",
    "deploy_c",
    "frameworks",
    "generate",
    "import",
    "rl",
    "train",
    "training",
    "tune",
)  # of seconds
# What blocks need that `pip install .` does not bring, and how the page says so, before them or in them.
NEEDS = {"torch": "`pip install torch`", "onnx": '`pip install ".[onnx]"`', "--html": '`pip install ".[report]"`'}
PROGRAMS = ("python", "py3", "py")
# One process for all pages: to import TVM takes longer than most pages do. Blocks run in their order.
RUNNER = """
import contextlib, io, json, os
from tvm_rnn.cli.commands import app
home = os.getcwd()
for name in json.load(open("pages.json")):
    out, names = io.StringIO(), {"__name__": "page"}
    os.chdir(os.path.join(home, name))
    with contextlib.redirect_stdout(out):
        for first, block in json.load(open("blocks.json")):
            if isinstance(block, str):
                exec(compile("\\n" * first + block, os.path.abspath("page.py"), "exec"), names)
            else:
                app(block, standalone_mode=False)
    open("said.txt", "w").write(out.getvalue())
"""


def lay_out(folder: Path, page: Path, kinds: Sequence[str]) -> None:
    """What RUNNER runs of a page: its blocks of these kinds. A program's come with the line where they begin in the
    whole program, which is what tracebacks and sources of functions are read from; of a shell's, our commands."""
    program, found = "", list[tuple[int, object]]()
    for kind, text in BLOCK.findall(page.read_text()):
        if kind in kinds and kind in PROGRAMS:
            found.append((program.count("\n"), text))
            program += text
        elif kind in kinds:
            lines = [shlex.split(line.removeprefix("$ "), comments=True) for line in text.splitlines()]
            found += [(0, words[1:]) for words in lines if words[0] == "tvm-rnn"]
    folder.mkdir(exist_ok=True)
    (folder / "page.py").write_text(program)
    (folder / "blocks.json").write_text(json.dumps(found))


def blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    for needed in ("grandalf", "vl_convert"):
        pytest.importorskip(needed)
    sys.path.insert(0, str(SITE))
    spec = importlib.util.spec_from_file_location("generate", SITE / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(SITE))
    return module


@pytest.mark.slow
@pytest.mark.parametrize("long", [False, True])
def test_the_code_of_every_page_runs_and_prints_what_is_said(tmp_path: Path, long: bool) -> None:
    pages, expected = [], {}
    for path in (path for path in WRITTEN if (path.stem in LONG) == long):
        python, shell = blocks(path, "python"), blocks(path, "bash")
        if python or shell:
            assert all(line.startswith("tvm-rnn ") for text in shell for line in text.splitlines())
            lay_out(tmp_path / path.stem, path, ("python", "bash"))
            pages.append(path.stem)
            expected[path.stem] = "".join(blocks(path, "text"))
    assert len(pages) == len(LONG) if long else len(pages) >= 4
    (tmp_path / "pages.json").write_text(json.dumps(pages))
    done = run(tmp_path, "-c", RUNNER)
    assert done.returncode == 0, done.stderr
    for name, text in expected.items():
        said = (tmp_path / name / "said.txt").read_text()
        for line in text.splitlines():
            assert line in [part.rstrip() for part in said.splitlines()], (name, said)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in WRITTEN if blocks(page, "py3")], ids=lambda page: str(page.stem))
def test_the_code_with_torch_runs_in_order(tmp_path: Path, page: Path) -> None:
    pytest.importorskip("torch")
    in_order = [text for kind, text in BLOCK.findall(page.read_text()) if kind in ("python", "py3")]
    (tmp_path / "page.py").write_text("\n".join(in_order))
    done = run(tmp_path, "page.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", sorted(SITE.glob("pages/reference/*.md")), ids=lambda page: str(page.stem))
def test_what_a_block_needs_is_said_before_it(page: Path) -> None:
    text = page.read_text()
    for found in re.finditer(r"^```(python|py3|bash)\n(.*?)^```$", text, re.M | re.S):
        code = re.sub(r"#.*|torch-loop|--against \S+", "", found[2])  # comments name what is elsewhere
        for word, advice in NEEDS.items():
            chapter = text[: found.start()].rpartition("\n## ")[2]
            assert word not in code or advice in chapter, f"{word}:\n{found[2]}"


ELSEWHERE = [
    line for page in WRITTEN for kind in ("sh", "console") for text in blocks(page, kind) for line in text.splitlines()
]


@pytest.mark.parametrize("line", sorted({line.removeprefix("$ ") for line in ELSEWHERE if "tvm-rnn " in line}))
def test_commands_that_run_elsewhere_have_options_that_there_are(line: str) -> None:
    """Their words are read as typer reads them; nothing is run."""
    name, *words = shlex.split(line, comments=True)[1:]
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    with group.make_context("tvm-rnn", [name], resilient_parsing=True) as context:
        group.commands[name].make_context(name, words, parent=context)


@pytest.mark.slow
def test_the_gpu_page_compiles(tmp_path: Path) -> None:
    """Without a GPU: its Python up to the call, then its commands."""
    try:
        nvcc.find()
    except rnn.BuildError:
        pytest.skip("needs a CUDA compiler")
    (program,) = blocks(GPUS, "py")
    lines = [line for line in program.splitlines() if not line.startswith("y, state")]
    (tmp_path / "gpu.py").write_text("\n".join(["import tvm_rnn as rnn", *lines]).replace('"cuda"', '"nvidia-h200"'))
    assert run(tmp_path, "gpu.py").returncode == 0
    (tmp_path / "lstm_gpu.so").unlink()
    words = [shlex.split(line)[2:] for text in blocks(GPUS, "console") for line in text.splitlines()]
    said = f"from tvm_rnn.cli import app\nfor words in {words}: app(words, standalone_mode=False)"
    assert run(tmp_path, "-c", said).returncode == 0 and (tmp_path / "lstm_gpu.so").exists()


@pytest.mark.slow
def test_the_program_in_javascript_is_one(tmp_path: Path) -> None:
    if javascript.missing():
        pytest.skip(javascript.missing())
    (program,) = blocks(SITE / "pages" / "reference" / "bundles.md", "js")
    rnn.compile(rnn.RNN(rnn.cells.lstm, 1, 4).init(seed=0), "wasm32", batch=1).export(web=tmp_path / "amp")
    (tmp_path / "amp" / "main.mjs").write_text(f"{program}\nconsole.log(y.length);\n")
    assert javascript.node(tmp_path / "amp" / "main.mjs") == "4\n"


def test_the_schedules_of_the_gpu_table_exist() -> None:
    named = re.findall(r"^\| `(\w+)` \| one launch|^\| `(\w+)` \| the same", GPUS.read_text(), re.M)
    assert {a or b for a, b in named} == {n for n, t in templates().items() if "cuda" in t.targets} - {"gemm_cuda"}


def test_every_command_of_the_command_line_is_shown() -> None:
    known = {c.name or (c.callback.__name__ if c.callback else "") for c in app.registered_commands}
    known |= {group.name or "" for group in app.registered_groups}
    commands = "".join(blocks(SITE / "pages" / "reference" / "commands.md", "bash"))
    assert {line.split()[1] for line in commands.splitlines()} == known


def test_every_variable_of_the_environment_is_told() -> None:
    """Those that the package reads, in Python and in C; names of macros are others."""
    read = re.compile(r"\"(TVM_RNN_[A-Z_]+)\"")
    sources = [*(ROOT / "tvm_rnn").rglob("*.py"), *(ROOT / "tvm_rnn" / "cpu" / "c").glob("*.c")]
    known = {name for path in sources for name in read.findall(path.read_text())}
    told = re.findall(r"^\| `(TVM_RNN_\w+)` \|", (SITE / "pages" / "reference" / "commands.md").read_text(), re.M)
    assert known and sorted(known) == told


def test_the_table_of_the_zoo_is_complete() -> None:
    text = (SITE / "pages" / "reference" / "zoo.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == rnn.cells.names()


def test_every_pass_is_explained() -> None:
    rows = re.findall(r"^\| (\w+) \|", (SITE / "pages" / "explanation" / "pipeline.md").read_text(), re.M)
    assert [row for row in rows if row in PASS_NAMES] == list(PASS_NAMES)


def test_commands_that_are_only_shown_exist() -> None:
    known = {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}
    makefile = (ROOT / "Makefile").read_text()
    for path in (*WRITTEN, ROOT / ".github" / "CONTRIBUTING.md"):
        for line in (line for text in blocks(path, "console") for line in text.splitlines()):
            words = line.removeprefix("$ ").split()
            if words[0] == "tvm-rnn":
                assert words[1] in known, line
            elif words[0] == "make":
                assert re.search(rf"^{words[1]}:", makefile, re.M), line


def test_files_that_are_named_exist() -> None:
    for path in (*WRITTEN, ROOT / ".github" / "CONTRIBUTING.md"):
        for name in re.findall(r"`((?:tvm_rnn|schedules|tests|tutorials)/[\w/.]+)`", path.read_text()):
            assert (ROOT / name).exists(), (path.name, name)


def test_every_line_of_the_tables_of_torch_names_tests_that_there_are() -> None:
    """`file.py::test`, in tests/torch_layer/; names without a file are of the file before."""
    page = (SITE / "pages" / "howto" / "train.md").read_text()
    tables = re.findall(r"^\| what \|.*test, in `tests/torch_layer/`.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M)
    assert len(tables) == 2
    for row in "".join(tables).splitlines():
        cell, text = row.split(" | ")[-1], ""
        named = re.findall(r"`(?:([\w./]+\.py)::)?(test_\w+)`", cell)
        assert named or "the same tests" in cell, row
        for file, test in named:
            text = (ROOT / "tests" / "torch_layer" / file).read_text() if file else text
            assert f"def {test}(" in text, (file, test)


def test_the_reference_of_the_language_is_the_op_table(site: ModuleType) -> None:
    page = site.language()
    for op in TABLE.values():
        assert f"| `{op.name}` |" in page
    for name in ("einsum", "softmax", "where", "layer_norm"):
        assert f"| `{name}` |" in page


@pytest.mark.parametrize("name", ["lstm", "mlstm"])
def test_a_cell_has_a_page(site: ModuleType, name: str) -> None:
    page = site.zoo(name)
    assert page.startswith(f"# {name}\n") and "<math" in page and '<svg class="graph"' in page
    assert rnn.cells.get(name).doc.split("\n")[0] in page and "## Speed" in page
    assert ("us per step" in page) == (name == "lstm")


def test_every_stage_has_a_page_that_ends_in_a_file(site: ModuleType) -> None:
    found = list(site.stages())
    assert len(found) > 15
    for _, _, text in found:
        file = re.search(r"Open `([\w/.]+)`\.\n$", text)
        assert file and (ROOT / file[1]).is_file()


def test_tutorials_become_pages(site: ModuleType) -> None:
    page = site.tutorial(ROOT / "tutorials" / "01_compile_an_lstm.py")
    assert page.startswith("# 1. ") and "```python\n" in page and "# %%" not in page


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_every_link_holds(tmp_path: Path, site: ModuleType) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    site.generate(tmp_path / "docs")
    done = run(tmp_path, "-m", "mkdocs", "build", "--strict", "-f", str(tmp_path / "docs" / "mkdocs.yml"))
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    html = tmp_path / "docs" / "html"
    pages = {path.relative_to(html).as_posix(): path.read_text() for path in html.rglob("*.html")}
    assert {"index.html", "language.html", "numerics.html", "zoo/lstm.html", "how/cell.html"} <= pages.keys()
    for name, text in pages.items():
        assert not re.search(r'(?:src|href)="https?://(?!squidfunk|www\.w3)[^"]*\.(?:js|css|woff2?)"', text), name
        for link in re.findall(r'href="([^"#:]+\.html)(?:#[^"]*)?"', text) if name != "404.html" else ():
            assert ((html / name).parent / link).resolve().is_file(), (name, link)


def test_the_search_needs_nothing_from_elsewhere() -> None:
    """`offline` would have pages fetch a worker for files: they have their own, found by its name."""
    settings = (SITE / "mkdocs.yml").read_text()
    assert "offline" in settings and "polyfills: [iframe-worker.js]" in settings
    assert (SITE / "pages" / "iframe-worker.js").exists() and (SITE / "pages" / "math.js").exists()


def test_what_a_notebook_prints_in_colour_is_plain_on_a_page(site: ModuleType) -> None:
    style = "color: #008080; text-decoration-color: #008080; font-weight: bold"
    said = f'<pre style="white-space:pre;overflow-x:auto">H=<span style="{style}">256</span></pre>'
    assert site.of_page(said) == '<pre class="wide" tabindex="0">H=<span style="font-weight: bold">256</span></pre>'


def test_docstrings_are_prose_but_for_what_is_set_in_columns(site: ModuleType) -> None:
    text = site.prose("One line\nand `a_b` more, a*b.\n\n    indented\n\nname   what")
    assert text == "One line and `a_b` more, a\\*b.\n\n```text\nindented\n```\n\n```text\nname   what\n```"


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_the_figure_of_the_readme_is_drawn_from_stored_records(site: ModuleType, paper: str) -> None:
    drawn = (SITE / "pages" / "images" / f"speed_{paper}.svg").read_text()
    files = [(path, one) for path, one in site.benchmarks.stored() if path.stem.startswith("zoo")]
    assert files
    for _, one in files:
        assert one.facts["date"][:10] in drawn and one.facts["device"] in drawn
        for line in (line for line in one.lines if line.ours["cell"] in site.benchmarks.FIRST):
            ratios = [ratio for peer in one.peers if (ratio := line.ratio(peer)) is not None]
            assert ratios and all(re.search(rf">{ratio:.1f}(<| \()", drawn) for ratio in ratios)


def test_the_page_of_benchmarks_names_every_miss(site: ModuleType) -> None:
    text = site.benchmarks.page((SITE / "pages" / "benchmarks.md").read_text())
    assert not re.search(r"<!-- \w+ -->", text)
    rows = site.benchmarks.rows()
    slower = [row for row in rows if row["ratio"] is not None and row["ratio"] < 1]
    assert len(rows) > 10 and f"slower in {len(slower)}." in text
    for row in slower:
        assert f"| {row['point']} | " in text and f"| {row['ratio']:.2f} | " in text
    for spec in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text):
        assert json.loads(spec)["data"]["values"]
    made_up = [{**rows[0], "framework": "torch", "ratio": 0.5, "us": 1.0}]
    assert any("0.50" in line for line in site.benchmarks.misses(made_up))


def test_records_of_every_kind_are_drawn(site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole models, files, a framework that no page knows, facts that lack some, what was left out, half a line."""
    facts = {"kind": "facts", "date": "2026-01-01T00:00:00Z", "device": "a CPU", "load": 0.5, "versions": {}}
    written: dict[str, list[dict[str, object]]] = {
        "models": [
            {"kind": "model", "model": "vad", "framework": "tvm_rnn", "us": 50.0, "ratio": 1.5, "error": 1e-6},
            {"kind": "model", "model": "vad", "framework": "onnxruntime", "us": 75.0, "version": "1"},
            {"kind": "model", "model": "beats", "framework": "tvm_rnn", "reason": "not installed"},
        ],
        "whole": [
            {"kind": "point", "point": "beats", "package": "p", "framework": "tvm_rnn-graph", "us": 9.0, "error": 0.0},
            {"kind": "point", "point": "beats", "package": "p", "framework": "tvm_rnn", "us": 10.0, "error": 0.0},
            {"kind": "point", "point": "beats", "package": "p", "framework": "torch", "us": 8.0, "error": 0.0},
        ],
        "audio": [
            {"kind": "point", "point": "lstm-h8", "cell": "lstm", "hidden": 8, "steps": 64, "batch": 1}
            | {"precision": "float32", "framework": name, "us_per_step": us, "spread": 0.1, "tail_us": [1, 2, 3]}
            for name, us in (("tvm_rnn", 2.0), ("someone's", 6.0))
        ],
    }
    for name, records in written.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in [facts, *records]) + '{"kind": ')
    (tmp_path / "empty.jsonl").write_text("")
    monkeypatch.setattr(site.benchmarks, "RECORDS", tmp_path)
    text = site.benchmarks.page((SITE / "pages" / "benchmarks.md").read_text())
    rows = {(row["suite"], row["framework"]): row["ratio"] for row in site.benchmarks.rows()}
    assert rows["models", "onnxruntime"] == 1.5 and rows["whole", "torch"] == 0.8 and rows["audio", "someone's"] == 3.0
    assert rows["whole", "tvm_rnn-graph"] is None and "| beats | whole | PyTorch, its layer | 0.80 |" in text
    assert "slower in 1." in text and all(f"### {name}" in text for name in written) and "### empty" not in text


def test_what_is_no_point_has_a_table(site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        {"kind": "facts", "device": "a machine", "date": "2026-11-26T10:00:00Z", "command": "", "load": 0.5},
        {"kind": "compile", "network": "lif", "framework": "tvm_rnn", "inference": 1.0, "training": 4.0},
        {"kind": "compile", "network": "gru", "framework": "tvm_rnn", "reason": "no compiler"},
    ]
    (tmp_path / "compile.jsonl").write_text("\n".join(map(json.dumps, records)))
    monkeypatch.setattr(site.benchmarks, "RECORDS", tmp_path)
    counted = {"kind": "instructions", "point": "lstm-h16", "framework": "cmsis-nn", "numbers": "8 bits"}
    (tmp_path / "counted.jsonl").write_text(
        "\n".join(map(json.dumps, [records[0], {**counted, "instructions": 14556, "error": 0.0182}]))
    )
    assert not site.benchmarks.rows()
    text = "\n".join(site.benchmarks.runs())
    assert "| lif | 1.00 | 4.00 |" in text and "| lstm-h16 | cmsis-nn | 8 bits | 14,556 | 1.8e-02 |" in text


def test_the_history_of_records_is_what_git_has(site: ModuleType, tmp_path: Path) -> None:
    """Two runs of a file in two commits, and a third commit that changed no figure."""

    def git(*words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    def run(date: str, us: float, more: str = "") -> None:
        facts = {"kind": "facts", "date": date, "device": "a GPU", "load": 0.5, "versions": {}}
        form = {"cell": "lstm", "input": 1, "hidden": 2, "layers": 1, "directions": 1, "sizes": [], "without": []}
        point = {"kind": "point", "point": "lstm-h2", **form, "steps": 3, "batch": 4, "precision": "float32"}
        point |= {"framework": "tvm_rnn", "us_per_step": us, "spread": 0.0, "lengths": False, "eager": False}
        (tmp_path / "zoo.jsonl").write_text(f"{json.dumps(facts)}\n{json.dumps(point)}\n{more}")
        git("add", ".")
        git("commit", "-m", date)

    history = site.benchmarks.history
    assert not [*history.versions(tmp_path)]  # no checkout
    git("init", "-q")
    run("2026-01-01T00:00:00Z", 4.0)
    assert not history.rows([*history.versions(tmp_path)])  # one run is no line
    run("2026-01-02T00:00:00Z", 2.0)
    run("2026-01-02T00:00:00Z", 2.0, more="\n")
    found = [*history.versions(tmp_path)]
    assert [row["us"] for row in history.rows(found)] == [4.0, 2.0]
    assert len({row["commit"] for row in history.rows(found)}) == 2
    assert "| 0.50 over 1 |" in [*history.table(found)][-1]


def test_a_gpu_then_and_now_says_what_has_no_record(site: ModuleType, tmp_path: Path) -> None:
    facts = {"kind": "facts", "device": "a GPU", "date": "2026-01-01T00:00:00Z", "commit": "1234", "versions": {}}
    then = [{"point": name, "us_per_step": 6.0, "best_us_per_step": 9.0} for name in ("known", "gone")]
    then += [{"figure": "mean", "suite": "grid", "mean": 1.5}, {"figure": "memory", "was": "1.6"}]
    now = {
        "kind": "point",
        "point": "known",
        "cell": "lstm",
        "precision": "bfloat16",
        "hidden": 8,
        "steps": 4,
        "batch": 1,
    }
    rows = [{**now, "framework": name, "us_per_step": us} for name, us in (("tvm_rnn", 4.0), ("torch", 8.0))]
    (tmp_path / "earlier").mkdir()
    for path, own in {"earlier/gpu.jsonl": [facts, *then], "grid.jsonl": [facts, *rows]}.items():
        (tmp_path / path).write_text("".join(json.dumps(line) + "\n" for line in own))
    assert site.benchmarks.earlier.table(tmp_path).splitlines()[4:] == [
        "| known | 6 | 1.50 | 4 | 2.00 | 1.50 | grid |",
        "| gone | 6 | 1.50 | no record |  |  |  |",
        "| mean |  | 1.50 |  | 2.00 |  | grid |",
        "| memory |  | 1.6 | no record |  |  |  |",
    ]


@pytest.mark.parametrize(("page", "folder"), [("in_pytorch.md", "pytorch"), ("onnx_tests.md", "onnx")])
def test_a_page_of_records_has_all_of_them(site: ModuleType, tmp_path: Path, page: str, folder: str) -> None:
    """Every stored file is on the page, and every failure has its reason."""
    records = site.page_records
    text = records.page((SITE / "pages" / "reference" / page).read_text())
    assert "<!-- records" not in text and text.count("`; ") == 0
    for path in (records.RECORDS / folder).glob("*.jsonl"):
        facts, *lines = map(json.loads, path.read_text().splitlines())
        assert f"`{facts['command']}`" in text and lines
        assert all(line["reason"] for line in lines if line.get("outcome", "passed") != "passed")
        named = [
            line for line in lines if line["kind"] == "test" and (folder == "pytorch" or line["outcome"] != "passed")
        ]
        assert all(f"`{line['name']}`" in text for line in named)
    with pytest.raises(ValueError, match="no records are stored"):
        records.page("<!-- records: models -->", tmp_path)


def test_tests_of_onnx_are_counted_and_reasons_have_no_names_of_nodes(site: ModuleType) -> None:
    refused = "from_onnx: this model cannot be used got: Det 'y': operator Det is not supported do: cut it"
    lines = [("moves", "a", "passed", ""), ("moves", "b", "refused", refused), ("numbers", "c", "wrong", "values")]
    made = [dict(zip(("group", "name", "outcome", "reason"), own, strict=True)) | {"kind": "test"} for own in lines]
    text = site.page_records.onnx_tests([{"kind": "facts"}, *made])
    assert "| moves | 1 | 1 | 0 |" in text and "| **all** | **1** | **1** | **1** |" in text
    assert "| operator Det is not supported | `b` |" in text and "| values | `c` |" in text


def test_pages_of_explanation_have_their_pictures(site: ModuleType) -> None:
    """Every mark names a picture; those of turns and steps are drawn here."""
    pages = [path.read_text() for path in sorted((SITE / "pages" / "explanation").glob("*.md"))]
    marks = [mark for text in pages for mark in site.pictures.MARK.findall(text)]
    assert {kind for kind, _ in marks} == {"graph", "step", "turns", "steps"}
    assert all(name in ("trace", *PASS_NAMES) for kind, name in marks if kind == "graph")
    for kind, name in marks:
        if kind in ("turns", "steps"):
            assert "<svg" in site.pictures.illustrated(f"<!-- {kind} {name} -->")
    with pytest.raises(KeyError):
        site.pictures.illustrated("<!-- steps of-nobody -->")


@pytest.mark.broad
def test_pictures_that_the_compiler_draws(site: ModuleType) -> None:
    drawn = site.pictures.illustrated("<!-- step lstm -->\n<!-- graph hoist_gemms -->")
    assert drawn.count("<svg") == 2 and "512 units" in drawn
