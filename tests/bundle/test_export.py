"""export: what a module is written as, and what it says where it is told nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_module import Tiny

from tvm_rnn.bundle.export import export
from tvm_rnn.errors import ConfigError
from tvm_rnn.runtime import runtime


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to write"):
        export(runtime.load(Tiny().write(tmp_path / "m.so")), None, None, None, None)


@pytest.mark.broad
def test_importing_the_package_tells_the_runtime_who_writes(tmp_path: Path) -> None:
    """Whatever of it is imported first, and without what writes: that comes with the first file."""
    path = Tiny().write(tmp_path / "m.so")
    code = f"""
import sys
from tvm_rnn.runtime import runtime
assert "tvm_rnn.bundle" not in sys.modules and len(runtime.EXPORTERS) == 1
runtime.load({str(path)!r}).export({str(tmp_path / "n.so")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "n.so").is_file()
