"""Bundles for other machines, run here by an emulator: its programs, and what they print.

In: a bundle `far` of `rnn.compile(net, target)`, which cannot be called here. Out: its outputs, as its example.c makes
them. A compiler (`find_compiler`), qemu's user mode, and the other system's C library have to be there; where they are
not, `tools` says which.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_rnn.cpu.c_compiler import find_compiler
from tvm_rnn.errors import BuildError
from tvm_rnn.target import table_row


@dataclass(frozen=True)
class Tools:
    """How programs of a target are built and run here."""

    compiler: tuple[str, ...]
    emulator: tuple[str, ...]


def tools(target: str) -> Tools | str:
    """The tools, or what is missing. $TVM_RNN_SYSROOTS: a folder with the systems' folders, if not /usr."""
    row = table_row(target)
    assert row is not None
    try:
        compiler = find_compiler(row.elsewhere)
    except BuildError as error:
        return str(error)
    names = [f"qemu-{row.machine}", f"qemu-{row.machine}-static"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        return f"no {names[0]}: apt-get install qemu-user"
    if row.isa == "rvv" and not _knows_vectors(found):
        return f"{found} is older than 8.1, which stops at vectors: bookworm-backports has a later qemu-user"
    root = Path(os.environ.get("TVM_RNN_SYSROOTS", "/usr"), row.triple)
    if not (root / "lib").is_dir():
        return (
            f"no C library of {row.triple} in {root}: apt-get install libc6-{row.machine.replace('aarch', 'arm')}-cross"
        )
    return Tools(compiler, (found, *(["-cpu", "rv64,v=true"] if row.isa == "rvv" else []), "-L", str(root)))


def _knows_vectors(qemu: str) -> bool:
    """Whether it is at least 8.1: those before it fail in an assertion."""
    said = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.split("version ")[1].split(".")[:2]
    return (int(major), int(minor)) >= (8, 1)


def build_example(own: Tools, bundle: Path) -> Sequence[str]:
    """The command that runs the bundle's example.c, which is built as its README says."""
    (command,) = re.findall(r"^.* example\.c .*$", (bundle / "README.md").read_text(), re.M)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where python3 is this one
    done = subprocess.run(["sh", "-ec", command], cwd=bundle, env={**os.environ, "PATH": path}, capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stderr.decode()}"
    return [*own.emulator, str(bundle / "example_c")]


def run_example(example: Sequence[str], scratch: Path, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """All outputs of an example, flat. scratch: a folder for files."""
    files = []
    for name, value in inputs.items():
        value.tofile(scratch / f"{name}.raw")
        files.append(str(scratch / f"{name}.raw"))
    x = next(iter(inputs.values()))
    command = [*example, "--batch", str(x.shape[1]), "--output", str(scratch / "y.raw"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return np.fromfile(scratch / "y.raw", x.dtype)
