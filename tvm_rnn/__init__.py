"""tvm_rnn: a compiler for recurrent neural network cells on Apache TVM.

A cell is a short Python function; `compile` turns a cell over time into a shared object that a thin runtime runs, on
CPUs (`target="llvm"`) or on NVIDIA GPUs (`target="cuda"`, or the name of one that need not be there).

Axes are one letter everywhere: T steps, B batch, I input, H hidden, G gates, L layers, D directions. Arrays are
time-major, [T, B, ...]. States are dicts by state name, each [L*D, B, width]. Gates are always an axis.

Most names are imported on first use: `import tvm_rnn.runtime` must stay quick and free of the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# Now, not lazily: functions that are named as their folder replace it as an attribute.
from .earlier_names import MOVED, install
from .explain.explanation import explain
from .language.cell import Cell, cell
from .oracle.reference import reference
from .runtime import runtime as _runtime
from .tune.tune_network import tune
from .version import __version__ as __version__

install()


def _export(module: _runtime.Module, *to: object) -> None:
    importlib.import_module(".bundle.export", __name__).export(module, *to)


_runtime.EXPORTERS.append(_export)  # the runtime knows nothing of the compiler, which writes files

if TYPE_CHECKING:  # what `__getattr__` finds when a name is first used, for type checkers and editors
    from . import cells
    from .budget import Budget
    from .compiler.compile import compile
    from .errors import *
    from .explain.explanation import Explanation
    from .explain.memory_plan import plan_memory
    from .frontends.keras import from_keras
    from .frontends.onnx import from_onnx
    from .frontends.onnx_export import to_onnx
    from .frontends.torch import from_torch, state_dict, to_torch_layer
    from .graph.tensor_expressions import te
    from .jax_layer.to_jax import to_jax
    from .language.functions import *
    from .network.rnn import RNN
    from .plain_c import write_c
    from .records import Record
    from .runtime.runtime import Module, load
    from .target import Target
    from .torch_layer import nn
    from .torch_layer.accelerate import accelerate
    from .torch_layer.fill_cache import fill_cache
    from .torch_layer.to_torch import to_torch

# Where names are that are imported on first use; errors are in errors.py, all others in language/functions.py.
_HOME = {
    "RNN": "network.rnn",
    "Budget": "budget",
    "Module": "runtime.runtime",
    "load": "runtime.runtime",
    "plan_memory": "explain.memory_plan",
    "Target": "target",
    "compile": "compiler.compile",
    "Explanation": "explain.explanation",
    "Record": "records",
    "from_keras": "frontends.keras",
    "from_onnx": "frontends.onnx",
    "from_torch": "frontends.torch",
    "state_dict": "frontends.torch",
    "to_onnx": "frontends.onnx_export",
    "to_torch_layer": "frontends.torch",
    "te": "graph.tensor_expressions",
    "write_c": "plain_c.folder",
    "to_jax": "jax_layer.to_jax",
    "to_torch": "torch_layer.to_torch",
    "accelerate": "torch_layer.accelerate",
    "fill_cache": "torch_layer.fill_cache",
}
_MODULES = {"cells": "cells", "nn": "torch_layer.nn"}

__all__ = [
    "RNN",
    "Budget",
    "BuildError",
    "Cell",
    "CellError",
    "ConfigError",
    "DeviceError",
    "Explanation",
    "InputError",
    "LoadError",
    "Module",
    "PassError",
    "Record",
    "Target",
    "TvmRnnError",
    "WeightError",
    "absolute",
    "accelerate",
    "argmax",
    "atan_spike",
    "cell",
    "cells",
    "clip",
    "compile",
    "concat",
    "conv",
    "cos",
    "cumprod",
    "cumsum",
    "dot",
    "einsum",
    "elu",
    "erf",
    "exp",
    "expand",
    "explain",
    "expm1",
    "fast_sigmoid_spike",
    "fill_cache",
    "flip",
    "floor",
    "from_keras",
    "from_onnx",
    "from_torch",
    "gelu",
    "hard_sigmoid",
    "hard_tanh",
    "layer_norm",
    "leaky_relu",
    "load",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "matmul",
    "matvec",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "negative",
    "nn",
    "one_hot",
    "outer",
    "plan_memory",
    "power",
    "random_normal",
    "random_uniform",
    "reference",
    "relu",
    "rename",
    "reshape",
    "rms_norm",
    "round",
    "sample",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "softsign",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "state_dict",
    "stop_gradient",
    "sum",
    "surrogate",
    "take",
    "tanh",
    "te",
    "to_int8",
    "to_jax",
    "to_onnx",
    "to_torch",
    "to_torch_layer",
    "to_uint8",
    "topk",
    "transpose",
    "triangle_spike",
    "tune",
    "var",
    "vecdot",
    "vecmat",
    "where",
    "write_c",
]


def __getattr__(name: str) -> object:
    moved = f"{__name__}.{name}" in MOVED
    if name not in __all__ and not moved:
        from .errors import nearest

        near = None if name.startswith("_") else nearest(name, __all__, 0.7)
        advice = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"module 'tvm_rnn' has no attribute {name!r}{advice}")
    if name in _MODULES or moved:
        return importlib.import_module(f".{_MODULES.get(name, name)}", __name__)
    home = _HOME.get(name) or ("errors" if name.endswith("Error") else "language.functions")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
