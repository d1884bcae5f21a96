"""Print the ten longest files and the ten longest functions of the package: where to look for what could be simpler.

In: nothing. Out: lines of text; no length is an error. What a function's docstring says is not counted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tvm_rnn", "schedules")
COUNT = 10


def lengths() -> Iterator[tuple[str, int, str]]:
    """("files" or "functions", lines, where) of every file and function."""
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text, name = path.read_text(), path.relative_to(ROOT)
        yield "files", len(text.splitlines()), str(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
                lines = (node.end_lineno or 0) - node.lineno + 1
                lines -= 0 if said is None else (said.end_lineno or 0) - said.lineno + 1
                yield "functions", lines, f"{name}:{node.lineno} {node.name}"


def main() -> None:
    found = sorted(lengths(), key=lambda row: -row[1])
    for kind in ("files", "functions"):
        print(f"The longest {kind}:")
        for _, count, where in [row for row in found if row[0] == kind][:COUNT]:
            print(f"  {count:4} {where}")


if __name__ == "__main__":
    main()
