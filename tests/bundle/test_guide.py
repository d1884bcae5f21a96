"""A bundle's README and CMakeLists name every file that is there, and none that is not; test_folder.py builds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import tiny_bundle
from tiny_module import Tiny


@pytest.mark.parametrize("directions", [1, 2])
def test_files_are_named(directions: int, tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, Tiny(directions=directions))
    table = re.findall(r"^\| (`.*) \|", (bundle / "README.md").read_text(), re.M)
    named = {name for row in table for name in re.findall(r"[\w.]+\.\w+", row.split(" | ")[0])}
    assert named | {"README.md"} == {path.name for path in bundle.iterdir()}
    cmake = (bundle / "CMakeLists.txt").read_text()
    assert ("stream" in cmake) == (directions == 1) and "tiny::tiny" in cmake
