"""The operations of operations.c, called one by one from Python: what test_encoding.py compares with their models.

In: steps and NumPy arrays. Out: NumPy arrays, or OperationError with what the C code says.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tiny_module import include_flags

import tvm_rnn
from tvm_rnn.bundle.encoding import DTYPES, MOST_AXES, MOST_VALUES, encode
from tvm_rnn.module_file.schema import ModelStep

FOLDER = Path(tvm_rnn.__file__).parent / "bundle"
NAMES = {code: name for name, code in DTYPES.items()}


class OperationError(Exception):
    """What an operation refused."""


class Value(ctypes.Structure):
    """struct value of operations.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MOST_AXES),
        ("count", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_uint8),
        ("owned", ctypes.c_uint8),
        ("there", ctypes.c_uint8),
    ]


class Work(ctypes.Structure):
    """struct work of operations.h."""

    _fields_ = [
        ("ins_", ctypes.POINTER(Value) * MOST_VALUES),
        ("outs_", ctypes.POINTER(Value) * MOST_VALUES),
        ("ins", ctypes.c_int32),
        ("outs", ctypes.c_int32),
        ("int_count", ctypes.c_int32),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("floats", ctypes.POINTER(ctypes.c_double)),
    ]


@functools.cache
def library() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "operations.so")
        sources = [str(FOLDER / name) for name in ("operations.c", "engine.c", "code_file.c")]
        options = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *include_flags()]
        subprocess.run(["gcc", *options, *sources, "-o", str(output), "-lm", "-ldl"], check=True)
        found = ctypes.CDLL(str(output))
    found.engine_error.restype = ctypes.c_char_p
    return found


def value_of(array: np.ndarray) -> Value:
    shape = (ctypes.c_int64 * MOST_AXES)(*array.shape)
    return Value(array.ctypes.data, shape, array.size, array.ndim, DTYPES[array.dtype.name], 0, 1)


def run(step: Mapping[str, Any], given: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of one step. given: arrays, None for what is not given. Raises OperationError, and Impossible."""
    own = encode(ModelStep(**step), ())
    arrays = [None if a is None else np.ascontiguousarray(a).reshape(np.shape(a)) for a in given]
    inputs = [None if a is None else value_of(a) for a in arrays]
    outputs = [Value() for _ in step["outputs"]]
    work = Work(ins=len(inputs), outs=len(outputs), int_count=len(own.ints))
    for i, value in enumerate(inputs):
        if value is not None:
            work.ins_[i] = ctypes.pointer(value)
    for i, value in enumerate(outputs):
        work.outs_[i] = ctypes.pointer(value)
    work.ints = (ctypes.c_int64 * (len(own.ints) + 1))(*own.ints)
    work.floats = (ctypes.c_double * (len(own.floats) + 1))(*own.floats)
    status = getattr(library(), f"op_{own.function}")(ctypes.byref(work))
    found = [_taken(value) for value in outputs if value.there]
    for value in outputs:
        library().value_free(ctypes.byref(value))
    if status:
        raise OperationError(library().engine_error().decode())
    return found


def _taken(value: Value) -> np.ndarray:
    dtype = np.dtype(NAMES[value.dtype])
    data = ctypes.string_at(value.data, value.count * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(tuple(value.shape)[: value.rank]).copy()
