"""Web folders for tests, and node, which runs them.

In: folders as `export(web=...)` writes them, arrays. Out: what their JavaScript makes of these. Node and a compiler for
WebAssembly have to be there; where they are not, `missing` says which.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.cpu.c_compiler import find_compiler, run
from tvm_rnn.errors import BuildError
from tvm_rnn.target import TABLE

SCRIPT = Path(__file__).with_name("run_network.mjs")


@functools.cache
def missing() -> str:
    """What is missing; "" where all is there."""
    if shutil.which("node") is None:
        return "no node: apt-get install nodejs"
    try:
        compiler = find_compiler(TABLE["wasm32"].elsewhere)
        run([*compiler, "-x", "c", "-E", "-include", "stdlib.h", "-include", "string.h", "/dev/null"])
    except BuildError as error:
        return f"{error}; or apt-get install clang lld wasi-libc libclang-rt-14-dev-wasm32"
    return ""


def node(script: str | Path, *words: str | Path) -> str:
    """What a script prints."""
    done = subprocess.run(["node", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(web: Path, net: rnn.RNN, x: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """y of all steps in one call, and of a step at a time where the network can: [T, B, ...] each. held: constants."""
    steps, rows = next(iter(x.values())).shape[:2]
    files = {name: str(web.parent / f"{name}.raw") for name in (*x, *held)}
    for name, value in {**x, **held}.items():
        value.tofile(files[name])
    asked = {"rows": rows, "inputs": {n: files[n] for n in x}, "constants": {n: files[n] for n in held}}
    (web.parent / "asked.json").write_text(json.dumps(asked))
    node(SCRIPT, web / f"{web.name}.js", web.parent / "asked.json", web.parent / "y")
    found = [np.fromfile(path, net.dtype) for path in sorted(web.parent.glob("y.*.raw"))]
    return [y.reshape(steps, rows, *net.output_shape) for y in found]
