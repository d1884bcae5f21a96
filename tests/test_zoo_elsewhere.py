"""Every cell of the zoo, compiled here for other machines, is the oracle: its bundle's example runs under an emulator.

What is not installed (a compiler, qemu, the other system's C library) is skipped and named. `cross.tools` says where it
looks. WebAssembly runs in node.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cross
import javascript
import numpy as np
import pytest
from networks import arguments, constants, network

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.compiler import stage_texts
from tvm_rnn.oracle.tolerance import assert_close

STEPS, BATCH = 20, 3


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("target", "product"),
    [
        ("aarch64-linux-gnu", r"fmla\s+v\d+\.4s"),
        ("aarch64-linux-android", r"fmla\s+v\d+\.4s"),
        ("riscv64-linux-gnu", r"vfmacc\.v[fv]"),
        ("riscv64gc-linux-gnu", r"fmadd\.s"),
        ("wasm32", r"f32x4\.mul"),
    ],
)
def test_products_use_the_vectors_of_the_target(target: str, product: str) -> None:
    code = dict(stage_texts.stages(network("gru", 2, 4), target))["asm"]
    assert re.search(product, code)


@pytest.mark.slow
@pytest.mark.parametrize("name", cells.names())
@pytest.mark.parametrize("target", ["aarch64-linux-gnu", "riscv64gc-linux-gnu", "riscv64-linux-gnu"])
def test_every_cell_runs_elsewhere(target: str, name: str, tmp_path: Path) -> None:
    own = cross.tools(target)
    if isinstance(own, str):
        pytest.skip(own)
    net = network(name, 5, 7)
    module = rnn.compile(net, target, batch=1)
    assert module.is_elsewhere
    module.export(bundle=tmp_path / "far")
    command = cross.build_example(own, tmp_path / "far")
    for rows in (1, BATCH):  # one row's steps are a function of their own
        x, held = arguments(net, STEPS, rows)[0], constants(net, rows)
        expected, _ = rnn.reference(net)(x, **held)
        found = cross.run_example(command, tmp_path, x | held).reshape(expected.shape)
        assert_close((found, {}), (expected, {}), net.dtype, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["aarch64-linux-gnu", "riscv64gc-linux-gnu"])
def test_the_lines_of_the_readme_build_for_elsewhere(target: str, tmp_path: Path) -> None:
    """The compiler's and CMake's; what runs a program is left out, as it is for there."""
    own = cross.tools(target)
    if isinstance(own, str):
        pytest.skip(own)
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    net = network("gru", 5, 7)
    rnn.compile(net, target, batch=1).export(bundle=tmp_path / "far")
    text = (tmp_path / "far" / "README.md").read_text()
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]
    for line in (line for line in lines if not line.startswith(("#", "./"))):
        subprocess.run(["sh", "-ec", line], cwd=tmp_path / "far", check=True, capture_output=True)
    x = arguments(net, STEPS, 1)[0]
    expected, _ = rnn.reference(net)(x)
    for program in ("example_c", "build/example_c"):
        command = [*own.emulator, str(tmp_path / "far" / program)]
        found = cross.run_example(command, tmp_path, x).reshape(expected.shape)
        assert_close((found, {}), (expected, {}), net.dtype, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "both"])
@pytest.mark.parametrize("name", cells.names())
def test_every_cell_runs_in_node(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    if javascript.missing():
        pytest.skip(javascript.missing())
    net = network(name, 5, 7, **options)
    rnn.compile(net, "wasm32", batch=1).export(web=tmp_path / "far")
    for rows in (1, BATCH):
        x, held = arguments(net, STEPS, rows)[0], {n: np.zeros_like(v) for n, v in constants(net, rows).items()}
        expected, _ = rnn.reference(net)(x, **held)
        for found in javascript.results(tmp_path / "far", net, x, held):
            assert_close((found, {}), (expected, {}), net.dtype, STEPS)
