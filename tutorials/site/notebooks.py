"""Tutorials as notebooks, with what they print and draw.

In: `tutorials/[0-9]*.py`. Out: a notebook for each in the folder given, run from its first cell to its last in a folder
of its own: `python tutorials/site/notebooks.py build/notebooks`. One that is there and was made of the same text by the
same version is kept. Of a tutorial that imports what is not installed the notebook has no outputs, and says what lacks.
`generate.py` makes pages of them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

import tvm_rnn as rnn

TUTORIALS = Path(__file__).resolve().parent.parent
BESIDE = ("data", "drawing.py")  # what tutorials read and import
KEY, SECONDS = "tvm_rnn", 900  # in a notebook's metadata; of a cell


def lacking(program: str) -> list[str]:
    """Packages that a program imports and that are not installed: not those that it imports after an `if`, which asks
    for them, and not files beside it."""
    found, nodes = set[str](), list[ast.AST]([ast.parse(program)])
    while nodes:
        node = nodes.pop()
        if not isinstance(node, ast.If):
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    beside = {path.stem for path in TUTORIALS.glob("*.py")}
    return sorted(name for name in found - beside if importlib.util.find_spec(name) is None)


def run(path: Path, folder: Path) -> Path:
    """The notebook of a tutorial. Raises CellExecutionError where a cell fails."""
    program, target = path.read_text(), folder / f"{path.stem}.ipynb"
    made_of = {"digest": hashlib.sha256(f"{rnn.__version__} {program}".encode()).hexdigest(), "lacks": lacking(program)}
    if target.exists() and nbformat.read(target, 4).metadata.get(KEY) == made_of:
        return target
    notebook: Any = jupytext.read(path)
    notebook.metadata[KEY] = made_of
    if "__file__" in program:
        words = "a notebook has no file; this one is to lie beside the folder `data` of the tutorials"
        notebook.cells.insert(1, nbformat.v4.new_code_cell(f"__file__ = {path.name!r}  # {words}"))
    if not made_of["lacks"]:
        print(f"run {path.name}", flush=True)
        with tempfile.TemporaryDirectory() as place:
            for name in BESIDE:
                (Path(place) / name).symlink_to(TUTORIALS / name)
            where = {"metadata": {"path": place}}
            # Sockets that are files of this user, not ports of the machine, which anyone on it can listen to.
            sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{place}/kernel"}})
            NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where, config=sockets).execute()
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return target


def main(folder: Path, *names: str) -> None:
    """The notebooks of these tutorials, or of all. The line that says what a compiler is at is for those who wait."""
    os.environ["TVM_RNN_PROGRESS"] = "0"
    for path in sorted(TUTORIALS.glob("[0-9]*.py")):
        if not names or path.stem in names:
            run(path, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
