"""tvm_rnn: a compiler for recurrent neural network cells on Apache TVM.

A cell is a short Python function; `compile` turns a cell over time into a shared object that a thin runtime runs, on
CPUs (`target="llvm"`) or on NVIDIA GPUs (`target="cuda"`, or the name of one that need not be there).

Axes are one letter everywhere: T steps, B batch, I input, H hidden, G gates, L layers, D directions. Arrays are
time-major, [T, B, ...]. States are dicts by state name, each [L*D, B, width]. Gates are always an axis.

Most names are imported on first use: `import tvm_rnn.runtime` must stay quick and free of the compiler.
"""

from __future__ import annotations

import importlib
from typing import Any

# Now, not lazily: functions that are named as their folder replace it as an attribute.
from .earlier_names import MOVED, install
from .explain.explanation import explain
from .language.cell import Cell, cell
from .oracle.reference import reference
from .tune.tune_network import tune

install()

__version__ = "0.1.0"

_FUNCTIONS = [
    "absolute",
    "clip",
    "concat",
    "cos",
    "dot",
    "einsum",
    "elu",
    "erf",
    "exp",
    "expand",
    "gelu",
    "hard_sigmoid",
    "hard_tanh",
    "layer_norm",
    "leaky_relu",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "negative",
    "outer",
    "power",
    "relu",
    "reshape",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "softsign",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "sum",
    "tanh",
    "transpose",
    "var",
    "where",
]
_ERRORS = [
    "TvmRnnError",
    "CellError",
    "ConfigError",
    "WeightError",
    "InputError",
    "LoadError",
    "BuildError",
    "DeviceError",
    "PassError",
]
_HOME = {
    **dict.fromkeys(_FUNCTIONS, "language.functions"),
    **dict.fromkeys(_ERRORS, "errors"),
    "RNN": "network.rnn",
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
    "to_torch": "torch_layer.to_torch",
}
_MODULES = ("cells",)

__all__ = ["Cell", "cell", "explain", "reference", "tune", *_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES or f"{__name__}.{name}" in MOVED:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'tvm_rnn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
