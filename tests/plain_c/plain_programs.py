"""Folders of plain C, compiled and run: by a compiler of this machine, or for another one under an emulator.

In: a network, its folder, inputs. Out: y of all rows, each of which is a stream of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")
HOST = ("gcc", *STRICT)


def built(folder: Path, compiler: Sequence[str] = HOST, *after: str) -> Path:
    """The example of a folder as a program."""
    program = folder.parent / f"{folder.name}_program"
    words = [*compiler, str(folder / f"{folder.name}.c"), str(folder / "example.c"), "-o", str(program), *after, "-lm"]
    subprocess.run(words, check=True)
    return program


def results(program: Path, inputs: Mapping[str, np.ndarray], emulator: Sequence[str] = ()) -> np.ndarray:
    """y [T, B, elements] of inputs [T, B, ...] in the type of C: a process for each row."""
    given = list(inputs.values())
    steps, batch = given[0].shape[:2]
    rows = []
    for row in range(batch):
        data = b"".join(x[t, row].tobytes() for t in range(steps) for x in given)
        done = subprocess.run([*emulator, str(program)], input=data, capture_output=True, check=True)
        rows.append(np.frombuffer(done.stdout, given[0].dtype).reshape(steps, -1))
    return np.stack(rows, 1)
