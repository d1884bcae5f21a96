"""Modules for a GPU that is not there: the real host program, linked with fake_cudart.c in place of the CUDA runtime.

In: a `Program`, or nothing for a tiny cell whose "kernel" is C++ of the host program. Out: shared objects and modules
that run on the CPU. Needs CUDA's headers, no GPU.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.cuda.codegen.cuda_text import Source, generate
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.errors import BuildError
from tvm_rnn.module_file.manifest import write_container
from tvm_rnn.target import GPUS

H = 3
HERE = Path(__file__).parent
# h = x + 0.5 h (the weight), m counts steps; y = h. Row b, step t, as cpu/lower_layer.py defines lengths and reset.
CELL = """
for (int64_t b = 0; b < B; ++b)
  for (int j = 0; j < 3; ++j) {
    REAL h = ((REAL*)state_in[0])[b * 3 + j], m = ((REAL*)state_in[1])[b * 3 + j];
    for (int64_t t = 0; t < T; ++t) {
      const bool active = !has_lengths || t < ((int64_t*)lengths)[b];
      if (active && has_reset && ((uint8_t*)reset)[t * B + b]) h = 0, m = 1;
      if (active) h = ((REAL*)input[0])[(t * B + b) * 3 + j] + ((REAL*)packed)[j] * h, m += 1;
      ((REAL*)output)[(t * B + b) * 3 + j] = active ? h : 0;
    }
    ((REAL*)state_out[0])[b * 3 + j] = h;
    ((REAL*)state_out[1])[b * 3 + j] = m;
  }
"""


def toolchain() -> nvcc.Toolchain:
    """The CUDA toolkit with the fake runtime for its own; skips the test where there is no toolkit."""
    try:
        tools = nvcc.find()
    except BuildError:
        pytest.skip("needs the CUDA toolkit's headers")
    return replace(tools, static=fake_object(tools.include))


@functools.cache
def fake_object(include: tuple[str, ...]) -> str:
    folder = tempfile.mkdtemp(prefix="fake_cudart_")
    output = str(Path(folder, "fake_cudart.o"))
    # Hidden: the CUDA runtime that a torch for GPUs loads must not answer in its place.
    flags = ["-O1", "-fPIC", "-fvisibility=hidden", *(f"-I{path}" for path in include)]
    subprocess.run(["gcc", *flags, "-c", str(HERE / "fake_cudart.c"), "-o", output], check=True)
    return output


def link(sources: list[Source], folder: Path) -> bytes:
    """The shared object of host programs, with the fake runtime."""
    tools = toolchain()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvcc, "find", lambda: tools)
        return nvcc.build(sources, folder, fast=False)[0]


def tiny_program(dtype: str = "float32") -> Program:
    program = Program(dtype)
    real = {"float32": "float", "float64": "double"}[dtype]
    weights = program.packed(H, dtype)
    program.pack.copy(weights, program.raw("w_l0", dtype), H * np.dtype(dtype).itemsize)
    program.buffer("room", "T * B * 3", dtype)
    program.input(0), program.state_out(1)
    program.sequence.code(f"using REAL = {real};")
    program.sequence.code(CELL)
    return program


@functools.cache
def tiny_elf(dtype: str = "float32", archs: tuple[str, ...] = ("sm_90a",)) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        sources = [generate(tiny_program(dtype), replace(GPUS["nvidia-h200"], arch=arch)) for arch in archs]
        return link(sources, Path(folder))


def tiny_manifest(dtype: str = "float32", archs: tuple[str, ...] = ("sm_90a",), **changes: Any) -> dict[str, Any]:
    target = {"name": "nvidia-h200", "kind": "cuda", "mcpu": "", "machine": platform.machine(), "features": []}
    parameters = [["w_l0", dtype]]
    kernels = [{"kernel": "cell", "registers": 32, "stack_bytes": 0, "spill_bytes": 8, "shared_bytes": 2000}]
    variant = {"target": "nvidia-h200", "packed_bytes": 256, "parameters": parameters, "kernels": kernels}
    variant |= {"templates": []}
    return {
        "format": 2,
        "versions": {"tvm_rnn": "0", "tvm": "0", "tvm_ffi": "0", "cuda": "0"},
        "cell": "tiny",
        "dtype": dtype,
        "precision": dtype,
        "weight_dtype": dtype,
        "num_layers": 1,
        "num_directions": 1,
        "inputs": [{"name": "x", "shape": [H]}],
        "output": {"name": "h", "shape": [H]},
        "states": [
            {"name": "h", "shapes": [[H]], "initial": 0.0},
            {"name": "m", "shapes": [[H]], "initial": 1.0},
        ],
        "weights": [{"name": "w_l0", "shape": [H]}],
        "target": target,
        "entry_points": ["sequence", "step", "init_state"],
        "batch": [1],
        "flops_per_row": 6.0,
        "templates": [],
        "passes": [],
        "created": "2026-01-01T00:00:00Z",
        "variants": [{"arch": arch, **variant} for arch in archs],
        **changes,
    }


def write_tiny(path: Path, dtype: str = "float32", archs: tuple[str, ...] = ("sm_90a",), **changes: Any) -> Path:
    weights = {"w_l0": np.full(H, 0.5, dtype)}
    write_container(tiny_elf(dtype, archs), tiny_manifest(dtype, archs, **changes), weights, path)
    return path


def expected(
    x: np.ndarray, h: np.ndarray | None = None, lengths: Any = None, reset: Any = None, weight: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """(y, last h) of the tiny cell."""
    T, B, _ = x.shape
    h = np.zeros((B, H), x.dtype) if h is None else h[0].copy()
    y = np.zeros((T, B, H), x.dtype)
    for t in range(T):
        for b in range(B):
            if lengths is None or t < lengths[b]:
                if reset is not None and reset[t][b]:
                    h[b] = 0
                y[t, b] = h[b] = x[t, b] + weight * h[b]
    return y, h[None]


class Log:
    """What the fake runtime of one shared object was asked to do."""

    def __init__(self, path: str | Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.fake_log.restype = ctypes.c_char_p
        self._library.fake_allocated.restype = ctypes.c_long

    def take(self) -> list[str]:
        """The operations since the last time: "what(stream, value)"."""
        words: list[str] = self._library.fake_log().decode().replace(") ", ")|").split("|")[:-1]
        self._library.fake_forget()
        return words

    @property
    def allocated(self) -> int:
        return int(self._library.fake_allocated())


__all__ = ["GPUS", "H", "Log", "expected", "link", "tiny_manifest", "tiny_program", "write_tiny"]
