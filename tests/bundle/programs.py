"""Bundles for tests and programs that use them: built by a C or C++ compiler, run with nothing but the bundle.

In: modules, sources. Out: paths of programs, and what they printed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from tiny_module import Tiny

from tvm_rnn.runtime import runtime

STRICT = ["-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]


def tiny_bundle(folder: Path, tiny: Tiny, name: str = "tiny", weights: Any = None) -> Path:
    """The bundle of a module that no compiler of ours was needed for; its file lies beside it."""
    path = tiny.write(folder / f"{name}.so", weights)
    runtime.load(path).export(bundle=folder / name)
    return folder / name


def build(source: Path, program: Path, bundle: Path, *options: str) -> Path:
    """Compile one file against a bundle. C is C99 and C++ is C++11."""
    cpp = source.suffix == ".cpp"
    kind = ["g++", "-std=c++11"] if cpp else ["gcc", "-std=c99"]
    words = [
        *kind,
        *STRICT,
        str(source),
        "-o",
        str(program),
        f"-I{bundle}",
        f"-L{bundle}",
        f"-l{bundle.name}",
        *options,
    ]
    subprocess.run(words, check=True)
    return program


def run(program: Path, bundle: Path, *words: Any, code: int = 0, given: bytes = b"") -> bytes:
    """stdout (with code 1: stderr) of a program whose environment says only where the bundle is."""
    env = {"LD_LIBRARY_PATH": str(bundle), **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
    done = subprocess.run([program, *map(str, words)], env=env, capture_output=True, input=given, check=False)
    assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
    return done.stderr if code else done.stdout


def examples(bundle: Path, folder: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The last step as the C and the C++ example print it, and all steps as the C one writes them."""
    batch = next(iter(inputs.values())).shape[1]
    files = []
    for name, value in inputs.items():
        value.tofile(folder / f"{name}.raw")
        files.append(folder / f"{name}.raw")
    found = []
    for source in ("example.c", "example.cpp"):
        program = build(bundle / source, folder / source.replace(".", "_"), bundle)
        more = ["--output", folder / "y.raw"] if source == "example.c" else []
        printed = run(program, bundle, "--batch", batch, *more, *files).decode()
        dtype = next(iter(inputs.values())).dtype
        found.append(np.array(printed.split("\n")[-batch - 1 : -1], dtype=object))
        found[-1] = np.array([row.split() for row in found[-1]], dtype)
    return [*found, np.fromfile(folder / "y.raw", dtype)]
