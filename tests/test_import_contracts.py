"""The contracts of imports in pyproject.toml: they hold, and an import that goes up breaks them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UPWARD = {
    "graph/ops.py": "def f():\n    from tvm_rnn.cli import commands\n",
    "cuda/layer/phases.py": "import typing\nif typing.TYPE_CHECKING:\n    from tvm_rnn.cuda.plan import wave\n",
    "cpu/link_nothing.py": "from tvm_rnn.cuda.plan import wave\n",
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("importlinter")
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-P", "-c", code, "--no-cache"]
    variables = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "tvm_rnn", tmp_path / "tvm_rnn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0 and "3 kept, 0 broken" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("file", UPWARD)
def test_an_import_that_goes_up_is_refused(copy: Path, file: str) -> None:
    path = copy / "tvm_rnn" / file
    path.write_text((path.read_text() if path.exists() else "") + "\n\n" + UPWARD[file])
    done = lint(copy)
    assert done.returncode == 1 and file.removesuffix(".py").rpartition("/")[2] in done.stdout, done.stdout
