"""Programs in C that call a whole model again and again: ours from its bundle, ONNX Runtime's by its C API.

In: a model's file, arrays of its inputs, a folder to build in. Out: `WholeProgram`s, each of which prints its outputs,
then times its calls one by one by a clock on the wall. `Unsupported` says what cannot be built or run, and why.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tvm_rnn.cpu.c_compiler import find_compiler, run
from tvm_rnn.errors import BuildError
from tvm_rnn.locations import PACKAGE
from tvm_rnn.runtime.runtime import Module

from .models import Unsupported

PATIENCE = 300.0  # seconds for a program that should end after a few
OPTIONS = ("-O2", "-x", "c", "-std=gnu11")
TIMES = re.compile(r"p50 (\S+) us, p99 (\S+) us, p99.9 (\S+) us")
# ONNX's numbers of element types: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, TensorProto.DataType
TYPES = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


class Calls(NamedTuple):
    """Microseconds of a call: percentiles."""

    p50: float
    p99: float
    p999: float


@dataclass(frozen=True)
class WholeProgram:
    """A built program. before, after: its words on both sides of the number of calls."""

    framework: str
    before: Sequence[str]
    after: Sequence[str]

    def run(self, calls: int) -> tuple[Calls, np.ndarray]:
        """What so many calls took, and every element of all outputs in turn, float64. Raises Unsupported."""
        command = [*self.before, str(calls), *self.after]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        except (subprocess.SubprocessError, OSError) as reason:
            raise Unsupported(f"its program failed: {str(reason).splitlines()[0][-200:]}") from None
        *lines, last = done.stdout.splitlines() or [""]
        found = TIMES.search(last)
        if done.returncode or found is None:
            raise Unsupported(f"its program failed: {done.stderr.strip()[-200:] or done.returncode}")
        return Calls(*map(float, found.groups())), _elements(iter(lines))


def _elements(lines: Iterator[str]) -> np.ndarray:
    """Of all outputs in turn. A line says an output's name and shape, others have its elements."""
    found = list[float]()
    for line in lines:
        _, _, shape = line.rpartition(" ") if " " in line else ("", "", "1")
        wanted = len(found) + math.prod(map(int, shape.split("x")))
        while len(found) < wanted:
            found += map(float, next(lines).split())
    return np.array(found, np.float64)


def bundle_program(module: Module, arrays: Mapping[str, np.ndarray], folder: Path) -> WholeProgram:
    """The program that comes with a bundle, as it is. arrays: in the order of the model's inputs."""
    bundle, name = folder / "whole", "whole"
    module.export(bundle=bundle)
    link = (f"-I{bundle}", f"-L{bundle}", f"-l{name}", f"-Wl,-rpath,{bundle}", "-lm")
    program = _built(bundle / "example.c", folder / "ours", link)
    words = list[str]()
    for i, value in enumerate(arrays.values()):
        words += [_written(value, folder / f"ours_{i}.raw"), "x".join(map(str, value.shape))]
    return WholeProgram("tvm_rnn", (str(program), "--time"), words)


def onnxruntime_program(
    model: Path, arrays: Mapping[str, np.ndarray], outputs: Sequence[str], folder: Path
) -> WholeProgram:
    """ONNX Runtime's library, as its Python package has it. outputs: their names."""
    spec = find_spec("onnxruntime")
    folders = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(folders[0]).glob("capi/libonnxruntime.so*")) if folders else []
    if not found:
        raise Unsupported("its Python package is not installed, or has no libonnxruntime.so")
    program = _built(PACKAGE / "bench" / "peers" / "calls_onnxruntime.c", folder / "onnxruntime", ("-ldl",))
    words = [str(len(arrays))]
    for i, (name, value) in enumerate(arrays.items()):
        shape = "x".join(map(str, value.shape)) or "-"
        words += [name, str(TYPES[value.dtype.name]), shape, _written(value, folder / f"theirs_{i}.raw")]
    return WholeProgram("onnxruntime", (str(program), str(found[-1]), os.fspath(model)), (*words, *outputs))


def _written(value: np.ndarray, path: Path) -> str:
    np.ascontiguousarray(value).tofile(path)
    return str(path)


def _built(source: Path, program: Path, after: Sequence[str]) -> Path:
    try:
        run([*find_compiler(), *OPTIONS, str(source), "-o", str(program), *after])
    except BuildError as reason:
        raise Unsupported(" ".join(str(reason).split())[:400]) from None
    return program
