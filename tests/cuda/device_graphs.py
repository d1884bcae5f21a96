"""Graphs of calls as functions for GPUs, whose kernels the emulator runs on the CPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import emulator
import numpy as np
import tvm_ffi
from fake_gpu import toolchain

from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.cuda.codegen.cuda_text import generate
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.surroundings import device_function
from tvm_rnn.cuda.surroundings.device_function import DeviceFunction
from tvm_rnn.surroundings.calls import Graph
from tvm_rnn.target import GPUS

Run = Callable[..., list[np.ndarray]]


def compiled(
    graph: Graph, tiles: bool = False, takes: Sequence[str] = (), gives: Sequence[str] = ()
) -> tuple[DeviceFunction, Run]:
    """The function, and a function of the graph's inputs that runs it. tiles: whatever their size, products are made by
    kernels of tiles. takes, gives: as of DeviceFunction."""
    few = 0 if tiles else device_function.FEW_ELEMENTS
    with mock.patch.object(device_function, "FEW_ELEMENTS", few):
        made = DeviceFunction("around", graph, takes, gives)
    program = Program()
    made.add_to(program)
    source, fake = generate(program, GPUS["nvidia-h200"]), toolchain()
    folder = Path(tempfile.mkdtemp(prefix="device_graph_"))
    objects = [*emulator.emulated(source, folder, fake.include), str(fake.static)]
    subprocess.run(["ld", "-r", "-o", str(folder / "gpu.o"), *objects], check=True)
    tools = replace(fake, static=str(folder / "gpu.o"))
    with mock.patch.object(nvcc, "find", lambda: tools), mock.patch.object(nvcc, "compile_cubin", emulator._no_cubin):
        elf = nvcc.build([source], folder, False)[0]
    (folder / "around.so").write_bytes(elf)
    library = tvm_ffi.load_module(str(folder / "around.so"))
    run, sizes = (library.get_function(f"{name}_sm_90a") for name in ("around", "around_sizes"))

    @mock.patch.dict(os.environ, FAKE_GPUS="90", FAKE_AT_ONCE="1")
    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        axes = np.array([size for array in inputs for size in array.shape] or [0], np.int64)
        counts = [len(value.shape) for value in graph.outputs]
        found = np.zeros(sum(counts) + 1 + 2 * len(made.looked_at), np.int64)
        sizes(0, 0, axes.ctypes.data, found.ctypes.data)
        rest, size = found.tolist(), int(found[sum(counts)])
        results, at = [], 0
        for dtype, count in zip(gives or [value.dtype for value in graph.outputs], counts, strict=True):
            poison = np.nan if dtype.startswith("float") else 0
            results.append(np.full(tuple(rest[at : at + count]), poison, dtype))
            at += count
        memory = np.full(size, 0xFF, np.uint8)
        arrays = [*map(np.ascontiguousarray, inputs), *(np.ascontiguousarray(v.array) for v in made.given), *results]
        run(0, 0, axes.ctypes.data, memory.ctypes.data, *(array.ctypes.data for array in arrays))
        return results

    return made, call
