"""The house rules that a machine can check: arguments, names, docstrings, mirrored tests, and who may import whom."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tvm_rnn

ROOT = Path(__file__).resolve().parent.parent
MAX_POSITIONAL = 6
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# Lint pragmas that may remain, in all: each has a reason beside it. Lower this when one goes.
PRAGMA_BUDGET = 6
# How often the package may say `Any`: as a name in code, annotations included, or in an import. Lower it if it can be.
ANY_BUDGET = 230
# Tests that take 20 seconds each: an emulated GPU trains. Those of cuda/ plan and run the same kernels one by one.
NEVER_QUICK = {"runtime_cuda_training.py"}
# In brackets, so that this file does not contain what it forbids.
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|X{3})\b")
PRAGMA = re.compile(r"#\s*(?:no[q]a|type:\s*ig[n]ore|ruff:|pylint:|mypy:|fmt:)")
PRIVATE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w")
COMMAND = re.compile(r"\.command\(\"\w+\"[^)]*\)\((\w+)\)")
Function = ast.FunctionDef | ast.AsyncFunctionDef

PACKAGE = sorted(path for folder in ("tvm_rnn", "schedules") for path in (ROOT / folder).rglob("*.py"))
PYTHON = sorted({*PACKAGE, *(path for folder in ("tests", "tutorials") for path in (ROOT / folder).rglob("*.py"))})
TEXTS = sorted(
    {*PYTHON, *(ROOT / "tvm_rnn").glob("*.c"), *ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"}
    | {ROOT / ".ci" / "run"}
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def expect_none(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), name(path))


def trees(paths: list[Path]) -> Iterator[tuple[Path, ast.Module]]:
    return ((path, tree_of(path)) for path in paths)


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in nodes(tree) if isinstance(node, Function))


def imported(path: Path, node: ast.AST) -> list[str]:
    """The absolute names that an import statement names: modules, and what is taken from them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    here = parts[: len(parts) - node.level] if node.level else []
    base = ".".join([*here, *filter(None, [node.module])])
    return [f"{base}.{alias.name}" for alias in node.names]


def test_the_rules_see_the_files() -> None:
    assert {"tvm_rnn/runtime/runtime.py", "tests/test_house_rules.py"} <= {name(path) for path in PYTHON}


@pytest.mark.broad
def test_no_function_takes_more_than_six_facts_by_position() -> None:
    """What travels together is an object (`options.Options`). Not counted: self, arguments by name, and commands of the
    command line, whose arguments typer reads by name."""
    found = [
        f"{name(path)}:{f.lineno} {f.name}: {count}"
        for path, tree in trees(PACKAGE)
        for f in functions(tree)
        if (count := by_position(f)) > MAX_POSITIONAL and not is_command(f) and f.name not in registered(path)
    ]
    expect_none(found)


def by_position(function: Function) -> int:
    args = [*function.args.posonlyargs, *function.args.args]
    return len([arg for arg in args if arg.arg not in ("self", "cls")])


def is_command(function: Function) -> bool:
    return any(".command(" in ast.unparse(d) for d in function.decorator_list)


@functools.cache
def registered(path: Path) -> list[str]:
    """The commands of a file that another one registers: app.command("name")(function)."""
    if path.parent.name != "cli":
        return []
    return [found for file in path.parent.glob("*.py") for found in COMMAND.findall(text_of(file))]


@pytest.mark.parametrize(
    ("source", "count", "command"),
    [
        ("def f(self, a, b, *, c): ...", 2, False),
        ("def f(a, /, b, *more, c=1, **named): ...", 2, False),
        ("@app.command('x')\ndef f(a): ...", 1, True),
        ("@functools.cache\ndef f(a): ...", 1, False),
    ],
)
def test_arguments_are_counted(source: str, count: int, command: bool) -> None:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert by_position(function) == count and is_command(function) is command


def test_file_names_say_what_is_inside() -> None:
    expect_none([name(path) for path in PYTHON if VAGUE_NAMES & set(path.stem.split("_"))])


def test_modules_say_what_they_are_for() -> None:
    long = [(path, tree) for path, tree in trees(PACKAGE) if len(text_of(path).splitlines()) > 1]
    expect_none([name(path) for path, tree in long if not ast.get_docstring(tree)])


def test_what_users_call_is_explained() -> None:
    public = {n: getattr(tvm_rnn, n) for n in tvm_rnn.__all__}
    expect_none([f"tvm_rnn.{n}" for n, value in public.items() if not (value.__doc__ or "").strip()])


def test_public_functions_and_classes_are_explained() -> None:
    """But for those whose body is one expression: that says it all."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    bare = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path, tree in trees(PACKAGE)
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
        if not (len(node.body) == 1 and isinstance(node.body[0], ast.Return | ast.Expr))
    ]
    expect_none(bare)


def mirror(source: Path) -> Path:
    """tests/a/test_b.py of tvm_rnn/a/b.py, tests/schedules/test_x.py of schedules/x.py."""
    parts = source.relative_to(ROOT).parts
    folders = parts[1:-1] if parts[0] == "tvm_rnn" else parts[:-1]
    return ROOT.joinpath("tests", *folders, f"test_{source.name}")


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("tvm_rnn/errors.py", "tests/test_errors.py"),
        ("tvm_rnn/a/b/c.py", "tests/a/b/test_c.py"),
        ("schedules/x.py", "tests/schedules/test_x.py"),
    ],
)
def test_the_tests_mirror_the_folders(source: str, test: str) -> None:
    assert mirror(ROOT / source) == ROOT / test


def test_every_source_file_has_a_test_at_the_same_place() -> None:
    exempt = {"__init__.py", "__main__.py"}
    sources = [path for path in PACKAGE if path.name not in exempt and path.parent.name != "cells"]
    expect_none([f"{name(path)}: no {name(mirror(path))}" for path in sources if not mirror(path).is_file()])
    assert list((ROOT / "tests").rglob("test_cells.py"))  # one for all cells


def test_every_test_file_has_a_test_that_make_test_runs(
    request: pytest.FixtureRequest, quick_files: dict[Path, bool]
) -> None:
    """Every one that is the test of a source file, of those that this run has collected. A test that needs a GPU or a
    framework counts where it is skipped."""
    if any("::" in argument for argument in request.config.args):
        pytest.skip("only some tests of a file were asked for")
    mirrors = {mirror(path) for path in PACKAGE if path.name not in NEVER_QUICK}
    expect_none([name(path) for path, quick in quick_files.items() if path in mirrors and not quick])


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{name(path)}:{number}"
        for path in TEXTS
        if path.is_file()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    expect_none(found)


def test_lint_pragmas_are_few() -> None:
    found = [
        f"{name(path)}:{number}"
        for path in PYTHON
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if PRAGMA.search(line)
    ]
    expect_none(found if len(found) > PRAGMA_BUDGET else [])


def test_any_is_rare() -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path, tree in trees(PACKAGE)
        for node in nodes(tree)
        if (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.alias) and node.name == "Any")
    ]
    expect_none(found if len(found) > ANY_BUDGET else [])


def test_no_path_of_someones_machine() -> None:
    expect_none([name(path) for path in TEXTS if path.is_file() and PRIVATE_PATH.search(text_of(path))])


def test_templates_are_discovered_never_imported_by_name() -> None:
    templates = {path.stem for path in (ROOT / "schedules").glob("*.py")} - {"__init__"}
    sources = [path for path in PACKAGE if "tvm_rnn" in path.relative_to(ROOT).parts]
    found = [
        f"{name(path)}:{node.lineno} {module}"
        for path, tree in trees(sources)
        for node in nodes(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in imported(path, node)
        if "schedules" in module.split(".")[:-1] and templates & set(module.split("."))
    ]
    expect_none(found)


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Everything in the body of a `try` that catches ImportError."""
    return {
        node
        for block in nodes(tree)
        if isinstance(block, ast.Try)
        and any(isinstance(h.type, ast.Name) and h.type.id == "ImportError" for h in block.handlers)
        for statement in block.body
        for node in ast.walk(statement)
    }


def test_the_runtime_stands_alone() -> None:
    """Its files can be copied beside a .so: of the package they import each other, and errors where they are there."""
    for path in sorted((ROOT / "tvm_rnn" / "runtime").glob("*.py")):
        tree = tree_of(path)
        guarded = _guarded(tree)
        for node in nodes(tree):
            for module in imported(path, node):
                where = f"{path.name}:{getattr(node, 'lineno', 0)} imports {module}"
                assert module.split(".")[0] != "tvm", where
                if module.startswith("tvm_rnn.") and not module.startswith("tvm_rnn.runtime."):
                    assert module.startswith("tvm_rnn.errors.") and node in guarded, where


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import tvm.te", ["tvm.te"]),
        ("from .schedules import gemm", ["tvm_rnn.schedules.gemm"]),
        ("from ..schedules.gemm import x", ["schedules.gemm.x"]),
        ("from . import schedules", ["tvm_rnn.schedules"]),
        ("x = 1", []),
    ],
)
def test_imports_are_read_with_their_absolute_names(source: str, names: list[str]) -> None:
    (statement,) = ast.parse(source).body
    assert imported(ROOT / "tvm_rnn" / "build.py", statement) == names


def test_a_folder_s_map_names_all_of_its_files_and_no_other() -> None:
    """`cells/` is discovered, and files of frontends and bundles are named after what they read or write."""
    wrong = []
    for path in (p for p in PACKAGE if p.name == "__init__.py" and p.parent.name not in ("tvm_rnn", "schedules")):
        named = re.findall(r"`([\w/*]+\.(?:py|h))`", ast.get_docstring(tree_of(path)) or "")
        wrong += [f"{name(path)}: {n}" for n in named if not [*path.parent.glob(n), *(ROOT / "tvm_rnn").glob(n)]]
        if path.parent.name not in ("cells", "frontends", "bundle"):
            files = [file for file in path.parent.glob("*.py") if file != path]
            wrong += [name(file) for file in files if not any(file.match(n) for n in named)]
    expect_none(wrong)
