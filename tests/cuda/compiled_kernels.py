"""Kernels for tests: layers of zoo cells made for a GPU that need not be there, and the CUDA text of kernels."""

from __future__ import annotations

import functools
from typing import Any

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.cuda_text import compile_kernels
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.graph.graph import Graph, Layers
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.passed import Passed
from tvm_rnn.target import resolve

SIZES = {"depth": 2, "P": 3, "Y": 3, "X": 4, "S": 4, "A": 2}


def graph_of(name: str, inputs: int = 5, hidden: int = 7) -> Graph:
    """A zoo cell's graph after all passes."""
    return layers_of(name, inputs, hidden)[1].graphs[0]


@functools.cache
def layers_of(name: str, inputs: int = 5, hidden: int = 7, **options: Any) -> tuple[rnn.RNN, Layers]:
    cell = rnn.cells.get(name)
    sizes = {axis: size for axis, size in SIZES.items() if axis in cell.size_names}
    net = rnn.RNN(cell, inputs if "I" in cell.size_names else hidden, hidden, **sizes, **options)
    return net, pipeline.run(net, resolve("nvidia-h200"))[-1][1]


def passed_of(name: str, precision: str = "float32", batches: tuple[int, ...] = (), **options: Any) -> Passed:
    """The same network for planners; in float64 products are of a network in float64."""
    net, _ = layers_of(name, **({"dtype": precision} if precision == "float64" else {}), **options)
    return pipeline.passed(net, Options(resolve("nvidia-h200"), batches, precision=precision))


def text_of(*kernels: Kernel) -> str:
    """The kernels as CUDA text, without what TVM puts in front of them."""
    device, _ = compile_kernels({kernel.name: kernel.func for kernel in kernels}, resolve("nvidia-h200"))
    return device[device.index('extern "C" __global__') :]
