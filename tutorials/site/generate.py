"""The pages of the documentation site: those written by hand, and those made from the sources they speak of.

In: `pages/` beside this file, the op table, the zoo, module docstrings, tutorials. Out: a folder that mkdocs
builds: `python tutorials/site/generate.py build/docs build/notebooks build/amplifier && mkdocs build -f
build/docs/mkdocs.yml`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import benchmarks
import page_records
import pictures

import tvm_rnn as rnn
from tvm_rnn.explain.html.drawing import draw
from tvm_rnn.explain.html.page import FONT
from tvm_rnn.explain.tables import cell_facts
from tvm_rnn.graph.equations import equations, math
from tvm_rnn.graph.graph_text import graph_text
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.language import functions
from tvm_rnn.oracle.tolerance import TABLE as TOLERANCES
from tvm_rnn.passes import pipeline
from tvm_rnn.schedule.record_files import read
from tvm_rnn.target import resolve

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZES = {"H": 16, "P": 4, "depth": 2, "Y": 4, "X": 4, "S": 4, "A": 3}  # of the networks that pages show
# What people do who change the compiler, and pages of `howto/` that explain rather than instruct.
FOR_CONTRIBUTORS = ("cell", "operation", "schedule", "gpu")
EXPLAINED = ("linear",)
ENTRANCES = ("pytorch", "jax", "keras", "onnx", "audio", "rl")
KINDS = {
    "pointwise": "Element by element",
    "move": "Views: no arithmetic, no memory",
    "reduce": "Over one axis",
    "contract": "Products",
    "sum_rows": "Sums over T and B, which gradients of weights are made of; cells cannot write them",
    "scan": "Recurrences over all time; the compiler writes them",
    "random": "Made of counters: masks, which options of an RNN write, and numbers, which cells draw",
}
PLATFORMS = ("Platforms", "platforms.md")
CHANGING = (("What TVM does", "contributing/tvm.md"), ("A first day", "contributing/newcomer.md"))
# What a page says of what is beside it on the site alone.
PLAYED = re.compile(r"^<!-- on the site: (.*?) -->$", re.M | re.S)
Nav = list[tuple[str, str]]


def tutorial(path: Path) -> str:
    """A percent-format Python file as Markdown."""
    parts = re.split(r"^# %%(.*)$", path.read_text(), flags=re.M)
    found = []
    for kind, body in zip(parts[1::2], parts[2::2], strict=True):
        body = body.strip("\n")
        if "[markdown]" in kind:
            found.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines()))
        elif body:
            found.append(f"```python\n{body}\n```")
    return "\n\n".join(found)


def lesson(path: Path, notebooks: Path | None, pages: Path) -> str:
    """The page of a tutorial, with its pictures beside it: of its notebook, which has what each cell printed, else of
    its source."""
    about = f"This page is the file `tutorials/{path.name}`: run it, change it."
    if notebooks is None:
        text = tutorial(path)
    else:
        from nbconvert import MarkdownExporter

        notebook = notebooks / f"{path.stem}.ipynb"
        text, resources = MarkdownExporter().from_filename(notebook, {"output_files_dir": f"{path.stem}_files"})
        pages.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook, pages)
        for name, data in resources["outputs"].items():
            (pages / name).parent.mkdir(exist_ok=True)
            (pages / name).write_bytes(data)
        text = of_page(text)
        about += f" [As a notebook]({path.stem}.ipynb)"
        lacks = json.loads(notebook.read_text())["metadata"]["tvm_rnn"]["lacks"]
        about += f", not run here: it needs {', '.join(lacks)}." if lacks else ", with its results."
    return re.sub(r"\]\((\d\d_\w+)\.py\)", r"](\1.md)", text.strip("\n")) + f"\n\n{about}\n"


def of_page(text: str) -> str:
    """What rich prints in a notebook, for a page that is light or dark: without colours of its own, and keys reach it
    where it scrolls."""
    text = re.sub(r'<pre style="white-space:pre;[^"]*">', '<pre class="wide" tabindex="0">', text)
    return re.sub(r"(?<=[\"; ])(text-decoration-)?color: #\w{6};? ?", "", text)


def language() -> str:
    """The functions of the cell language, and the op table behind them."""
    lines = ["# The cell language", "", (HERE / "language.md").read_text(), "## Functions", ""]
    lines += ["All of them are names of `tvm_rnn`; most have NumPy's meaning. `axis` counts from the end.", ""]
    lines += ["| function | what it is |", "|---|---|"]
    for name in sorted(set(rnn.__all__) & set(vars(functions))):
        words = (getattr(functions, name).__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{name}` | {' '.join(words.split())} |")
    lines += ["", "## Operations", ""]
    lines += [
        "What functions are made of: one row of `tvm_rnn/graph/ops.py` each, with its shape rule, its meaning in",
        "NumPy, its expression in TVM and its gradient. A cell that is made of these can be compiled and trained.",
        "",
    ]
    for kind, title in KINDS.items():
        lines += [f"### {title}", "", "| operation | operands | gradient | FLOPs per element |", "|---|---|---|---|"]
        for op in (op for op in TABLE.values() if op.kind == kind):
            arity = "any" if op.arity is None else op.arity
            lines.append(f"| `{op.name}` | {arity} | {'yes' if op.gradient else 'no'} | {op.cost} |")
        lines.append("")
    return "\n".join(lines)


def zoo(name: str) -> str:
    """One cell: its documentation, equations, graph, arguments, source and measured figures."""
    cell = rnn.cells.get(name)
    facts = cell_facts(cell)
    sizes = {axis: size for axis, size in SIZES.items() if axis in cell.size_names}
    net = rnn.RNN(cell, 8 if "I" in cell.size_names else sizes.get("H", 8), **sizes)
    stages = pipeline.run(net, resolve("x86-64-v4"))
    trace, last = stages[0][1].graphs[0], stages[-1][1].graphs[0]
    first, _, rest = cell.doc.partition("\n")
    lines = [f"# {name}", "", first, "", *([prose(inspect.cleandoc(rest)), ""] if rest.strip() else [])]
    lines += ["## Equations", "", *(f"<div>{math(row)}</div>\n" for _, row in equations(trace))]
    lines += ["## Arguments", "", "| kind | name | dims |", "|---|---|---|"]
    for kind in ("inputs", "states", "weights"):
        lines += [f"| {kind[:-1]} | `{n}` | `[{', '.join(dims)}]` |" for n, dims in facts[kind].items()]
    home = Path(cell.function.__code__.co_filename).name
    lines += ["", f"The layer emits `{facts['output']}`. Written in `tvm_rnn/cells/{home}`."]
    lines += ["", "## What becomes of it", "", f'<div class="wide">{draw(last, f"{name} after all passes")}</div>', ""]
    lines += [f"```text\n{graph_text(last)}\n```", "", "## Speed", "", *_speed(name)]
    return "\n".join(lines) + "\n"


def _speed(name: str) -> Iterator[str]:
    """What ships of measurements of a cell: beside other frameworks, and as tuning recorded it."""
    beside = benchmarks.of_cell(name)
    if beside:
        yield "Microseconds per step; others with their time over ours. See [benchmarks](../benchmarks.md):\n"
        yield "| device | network | tvm_rnn | others |\n|---|---|---:|---|"
        yield "\n".join(beside) + "\n"
    rows = []
    for target in ("nvidia-h200", "znver5"):
        for record in read([ROOT / "schedules" / "records"], target).records:
            if record.workload["cell"] == name and record.workload.get("steps"):
                us = record.median_us / record.workload["steps"]
                when = record.date[:10]
                rows.append(f"| {target} | {record.name} | {record.workload['steps']} | {us:.3g} | {when} |")
    if rows:
        yield "By `tvm-rnn tune`, all layers with their products of inputs; see [benchmarks](../benchmarks.md):\n"
        yield "| target | network | T | us per step | on |\n|---|---|---|---|---|"
        yield "\n".join(sorted(rows))
    elif not beside:
        yield "No measurement of this cell ships. On your machine:\n"
    yield f"\n```console\n$ tvm-rnn bench --suite zoo --only {name}\n$ tvm-rnn explain {name} --batch 16\n```"


def prose(text: str) -> str:
    """Paragraphs of a docstring as Markdown, so that lines are as long as the page is wide; what is set in columns or
    indented keeps its lines."""
    found = []
    for part in text.split("\n\n"):
        columns = any(line.startswith(" ") or re.search(r"\S  +\S", line) for line in part.splitlines())
        words = " ".join(part.split())
        plain = [
            piece if n % 2 else re.sub(r"([\\*_<>[\]|#])", r"\\\1", piece) for n, piece in enumerate(words.split("`"))
        ]
        found.append(f"```text\n{textwrap.dedent(part)}\n```" if columns else "`".join(plain))
    return "\n\n".join(found)


def stages() -> Iterator[tuple[str, str, str]]:
    """One page per row of the table of stages: (name, file name, text)."""
    table = (HERE / "pages" / "explanation" / "pipeline.md").read_text()
    shown = dict(pipeline.run(rnn.RNN(rnn.cells.lstm, 8, 16), resolve("x86-64-v4")))
    for name, what, file in re.findall(r"^\| ([\w ]+) \| (.*?) \| `([\w/.]+)`.*\|$", table, re.M):
        doc = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
        head, _, rest = doc.partition("\n\n")
        lines = [f"# {name}", "", what[0].upper() + what[1:] + ".", "", " ".join(head.split()), ""]
        lines += [prose(rest), ""] if rest else []
        if name in shown:
            lines += [f"An LSTM after this stage (`tvm-rnn show lstm --stage {name}`):", ""]
            lines += [f"```text\n{graph_text(shown[name].graphs[0])}\n```", ""]
        lines += [f"Open `{file}`."]
        yield name, re.sub(r"\W+", "_", name.lower()), "\n".join(lines) + "\n"


def numerics() -> str:
    """The tolerances, by dtype and steps."""
    lines = [
        (HERE / "numerics.md").read_text(),
        "| dtype | up to T | largest relative error allowed |",
        "|---|---|---|",
    ]
    for dtype, rows in TOLERANCES.items():
        lines += [f"| `{dtype}` | {'any' if most == float('inf') else most} | {limit:g} |" for most, limit in rows]
    return "\n".join(lines) + "\n"


def navigation(parts: Sequence[tuple[str, Nav]]) -> str:
    """The end of mkdocs.yml."""
    lines = ["nav:"]
    for title, pages in parts:
        lines.append(f"  - {title}:")
        lines += [f"    - {name}: {path}" for name, path in pages]
    return "\n".join(lines) + "\n"


def generate(folder: Path, notebooks: Path | None = None, played: Path | None = None) -> None:
    """Write the pages and mkdocs.yml to an empty or missing folder, or one that this wrote before.

    notebooks: the folder that `notebooks.py` wrote; None: pages of tutorials show no results. played: the one that
    `amplifier.py` writes; where it is not there the site has no amplifier to play."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    shutil.copytree(HERE / "pages", pages)
    shutil.copy(FONT, pages)  # of equations

    def write(path: str, text: str) -> str:
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        (pages / path).write_text(text)
        return path

    lessons: Nav = []
    for path in sorted((ROOT / "tutorials").glob("[0-9]*.py")):
        text = lesson(path, notebooks, pages / "tutorials")
        lessons.append((text.split("\n")[0].removeprefix("# "), write(f"tutorials/{path.stem}.md", text)))
    pipeline, reading = "explanation/pipeline.md", "reference/zoo.md"
    own = {path.stem: (_title(path), f"howto/{path.name}") for path in sorted((HERE / "pages/howto").glob("*.md"))}
    works: Nav = [(name, write(f"how/{file}.md", text)) for name, file, text in stages()]
    write(pipeline, linked((pages / pipeline).read_text(), {name: f"../{path}" for name, path in works}))
    cells: Nav = [(name, write(f"zoo/{name}.md", zoo(name))) for name in rnn.cells.names()]
    write(reading, linked((pages / reading).read_text(), {f"`{name}`": f"../{path}" for name, path in cells}))
    for path in sorted((HERE / "pages" / "explanation").glob("*.md")):
        if path.name != Path(pipeline).name:
            write(f"explanation/{path.name}", pictures.illustrated(path.read_text()))
    with_amplifier = played is not None and played.is_dir()
    write("howto/browser.md", PLAYED.sub(r"\1" if with_amplifier else "", (pages / "howto" / "browser.md").read_text()))
    if with_amplifier:  # its README would be a page
        shutil.copytree(played, pages / "howto", ignore=shutil.ignore_patterns("README.md"), dirs_exist_ok=True)
    write("language.md", language())
    write("numerics.md", numerics())
    write("contributing/index.md", (ROOT / ".github" / "CONTRIBUTING.md").read_text())
    for measured in ("reference/in_pytorch.md", "reference/onnx_tests.md"):
        write(measured, page_records.page((pages / measured).read_text()))
    write("benchmarks.md", benchmarks.page((pages / "benchmarks.md").read_text()))
    (pages / "vega.js").write_text(benchmarks.script())
    reference = [("The cell language", "language.md"), *_titled("reference"), ("Numerics", "numerics.md"), PLATFORMS]
    guides = [page for name, page in own.items() if name not in (*FOR_CONTRIBUTORS, *EXPLAINED)]
    nav = navigation(
        [
            ("Start", [("Start here", "index.md"), *(_page("start", name) for name in ENTRANCES)]),
            ("Tutorials", lessons),
            ("How to", guides),
            ("Reference", reference),
            ("Explanation", [*_titled("explanation"), *(own[name] for name in EXPLAINED)]),
            ("Benchmarks", [("Benchmarks", "benchmarks.md")]),
            ("The zoo", cells),
            ("Stage by stage", works),
            (
                "Contributing",
                [("Contributing", "contributing/index.md"), *(own[name] for name in FOR_CONTRIBUTORS), *CHANGING],
            ),
        ]
    )
    (folder / "mkdocs.yml").write_text((HERE / "mkdocs.yml").read_text() + nav)


def linked(text: str, pages: Mapping[str, str]) -> str:
    """Tables whose cells name pages, with links to these: whole cells, or names in backquotes."""
    for name, path in pages.items():
        whole = re.escape(name) if name.startswith("`") else rf"(?<=^\| ){re.escape(name)}(?= \|)"
        text = re.sub(whole, lambda found, path=path: f"[{found[0]}]({path})", text, flags=re.M)
    return text


def _titled(folder: str) -> Nav:
    """The pages of a folder in the order of their titles."""
    return sorted(_page(folder, path.stem) for path in (HERE / "pages" / folder).glob("*.md"))


def _page(folder: str, name: str) -> tuple[str, str]:
    return _title(HERE / "pages" / folder / f"{name}.md"), f"{folder}/{name}.md"


def _title(path: Path) -> str:
    return path.read_text().split("\n")[0].removeprefix("# ")


if __name__ == "__main__":
    generate(*map(Path, sys.argv[1:]))
