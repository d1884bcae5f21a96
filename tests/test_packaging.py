"""pyproject.toml, the Makefile and the folders agree with each other."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_the_conda_recipe_is_of_this_project(project: dict[str, Any]) -> None:
    """Its version, command and dependencies; it was not built yet (documentation: Platforms)."""
    recipe = (ROOT / ".github" / "conda" / "recipe.yaml").read_text()
    assert f'version: "{tvm_rnn.__version__}"' in recipe
    (command,) = project["project"]["scripts"]
    assert f"- {command} compile" in recipe
    for needed in map(Requirement, project["project"]["dependencies"]):
        exact = str(needed.specifier).startswith("==")
        assert (
            f"{needed.name}{needed.specifier}" in recipe if exact else f"- {needed.name} {needed.specifier}" in recipe
        )
    for own in re.findall(r"([\w-]+)==", recipe):  # what pip brings without its own requirements
        for needed in map(Requirement, importlib.metadata.requires(own) or ()):
            name = needed.name.replace("-", "_")
            assert needed.marker or f"- {name}" in recipe or name.startswith("apache_tvm"), (own, needed.name)


def test_every_target_of_the_makefile_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^{target}:.*## \S", makefile, re.M), target


LOCKS = ("requirements.lock", "requirements-docs.lock")


def locked() -> dict[str, list[str]]:
    """The versions of each package in the locks (one for each range of Pythons), of which every one has a digest."""
    entries = [e for name in LOCKS for e in re.split(r"^(?=\w)", (ROOT / name).read_text(), flags=re.M)[1:]]
    found: dict[str, list[str]] = {}
    for entry in entries:
        name, version = entry.split(maxsplit=1)[0].split("==")
        assert "--hash=sha256:" in entry, name
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def test_the_lock_has_what_the_project_asks_for(project: dict[str, Any]) -> None:
    versions = locked()
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *extras["test"], *extras["docs"], *extras["demo"]]
    for requirement in map(Requirement, [*wanted, *project["build-system"]["requires"]]):
        found = versions[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in found), requirement


def test_the_list_of_components_has_what_is_installed_with_the_package(project: dict[str, Any]) -> None:
    sbom = json.loads((ROOT / "tvm_rnn" / "sbom.cdx.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX" and sbom["metadata"]["component"]["name"] == "tvm_rnn"
    versions, components = locked(), {(c["name"], c["version"]) for c in sbom["components"]}
    assert {canonicalize_name(name) for name, _ in components} >= {
        canonicalize_name(Requirement(text).name) for text in project["project"]["dependencies"]
    }
    assert all(version in versions[canonicalize_name(name)] for name, version in components)


def test_nothing_locked_says_where_it_is_from() -> None:
    """An index is the choice of whoever installs."""
    for name in (*LOCKS, "tvm_rnn/sbom.cdx.json"):
        assert not re.search(r"index-url|find-links|pypi\.org|/simple/", (ROOT / name).read_text())
