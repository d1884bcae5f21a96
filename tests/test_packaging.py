"""pyproject.toml, the Makefile and the folders agree with each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn.schedules

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="the standard library reads TOML from Python 3.11 on")
    with open(ROOT / "pyproject.toml", "rb") as file:
        found: dict[str, Any] = tomllib.load(file)
    return found


def test_every_folder_of_sources_is_installed(project: dict[str, Any]) -> None:
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "tvm_rnn").rglob("__init__.py")}
    names = {".".join(path.parts) for path in packages} | {"tvm_rnn.schedules"}
    assert set(project["tool"]["setuptools"]["packages"]) == names


def test_the_templates_are_a_package_of_ours_wherever_they_lie() -> None:
    assert tvm_rnn.schedules.__file__ is not None
    assert "tvm_rnn.schedules" in sys.modules
    assert {path.name for path in Path(tvm_rnn.schedules.__file__).parent.glob("*.py")} == {
        path.name for path in (ROOT / "schedules").glob("*.py")
    }


def test_what_is_not_python_is_installed_too(project: dict[str, Any]) -> None:
    patterns = project["tool"]["setuptools"]["package-data"]["tvm_rnn"]
    others = [p for p in (ROOT / "tvm_rnn").iterdir() if p.is_file() and p.suffix != ".py"]
    assert others and all(any(path.match(pattern) for pattern in patterns) for path in others)


def test_the_makefile_and_the_peers_extra_name_one_torch(project: dict[str, Any]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    pin = re.search(r"^TORCH := (.*)$", makefile, re.M)
    assert pin and pin[1] in project["project"]["optional-dependencies"]["peers"]


def test_every_target_of_the_makefile_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^{target}:.*## \S", makefile, re.M), target
