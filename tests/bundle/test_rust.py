"""The program in Rust of the documentation: built by rustc, run with nothing but a bundle, compared with NumPy."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import run

import tvm_rnn as rnn

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tutorials" / "site" / "pages" / "howto" / "deploy_c.md"
# Where rustup puts it, which the PATH of a test run may lack.
RUSTC = shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))


@pytest.mark.broad
@pytest.mark.skipif(RUSTC is None, reason="needs rustc, Rust's compiler: https://rustup.rs")
def test_the_program_of_the_documentation(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.gru, 4, 8).init(seed=0)
    bundle = tmp_path / "gru"
    rnn.compile(net).export(bundle=bundle)
    (source,) = re.findall(r"^```rust\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    header = (bundle / "gru.h").read_text()
    for name, size in re.findall(r"const (\w+): usize = (\d+)", source):
        assert f"#define GRU_{name} {size}\n" in header
    (tmp_path / "main.rs").write_text(source)
    words = [str(RUSTC), "--edition", "2021", "-O", "-D", "warnings", "main.rs", "-L", str(bundle)]
    subprocess.run(words, cwd=tmp_path, check=True)
    x = np.random.default_rng(0).normal(size=(6, 1, 4)).astype("f4")
    x.tofile(tmp_path / "x.raw")
    printed = run(tmp_path / "main", bundle, tmp_path / "x.raw").decode().splitlines()
    expected, _ = rnn.reference(net)(x)
    np.testing.assert_allclose(np.array([row.split() for row in printed], "f4"), expected[:, 0], rtol=1e-5, atol=1e-6)
    assert b"No such file" in run(tmp_path / "main", bundle, tmp_path / "none", code=1)
