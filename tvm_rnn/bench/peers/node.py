"""Programs in node that call one network step by step, as a page does: ours from a folder for browsers, and
onnxruntime-web's session.

In: a `Problem` of one row, whose inputs are a stream's steps. Out: `Program`s, as `programs.py` makes them of C
(`calls.mjs`). `Unsupported` says what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tvm_rnn.runtime.runtime import Module

from .models import Problem, Unsupported, onnx_model
from .programs import HERE, NAME, Program

SCRIPT = str(HERE / "calls.mjs")
PACKAGE, MODULE = "onnxruntime-web", "dist/ort.node.min.mjs"


def web_program(module: Module, problem: Problem, folder: Path) -> Program:
    """Ours. module: of the problem's network, for wasm32. Raises Unsupported, BuildError."""
    module.export(web=folder / NAME)
    return _program("tvm_rnn", problem.manifest.versions["tvm_rnn"], "-", folder / NAME / f"{NAME}.js", problem)


def onnxruntime_web_program(problem: Problem, folder: Path, packages: str | os.PathLike[str]) -> Program:
    """onnxruntime-web's session of one thread, whose states are handed on. packages: the folder node_modules that has
    it. Raises Unsupported."""
    root = Path(packages).absolute() / PACKAGE
    if not (root / MODULE).is_file():
        raise Unsupported(f"{os.fspath(packages)!r} has no {PACKAGE}/{MODULE}: npm install {PACKAGE}")
    model = folder / "network.onnx"
    model.write_bytes(onnx_model(problem, stream=True))
    version = json.loads((root / "package.json").read_text())["version"]
    return _program(PACKAGE, version, str(root / MODULE), model, problem)


def _program(framework: str, version: str, engine: str, path: Path, problem: Problem) -> Program:
    node = shutil.which("node")
    if node is None:
        raise Unsupported("no node, which runs WebAssembly here: apt-get install nodejs")
    path.with_suffix(".weights").touch()
    runs = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return Program(framework, version, f"node {runs.removeprefix('v')}", path, problem, 1, (node, SCRIPT, engine))
