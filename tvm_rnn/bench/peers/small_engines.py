"""Engines for phones and small machines: ncnn, and tract. Whole sequences, and one step a call with states handed on.

In: a `Problem`. Out: what `worker.py` and `streaming.py` hand to a benchmark. ncnn gets a network in its own format,
tract an ONNX model. Both work on one thread here, and are called from Python, as the other peers are.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import models
from .models import Prepared, Problem, Unsupported

# ncnn's name of each cell of ours, and its gates of ours: i f o g of i f g o.
NCNN_CELLS: dict[str, tuple[str, dict[str, Any]]] = {"lstm": ("LSTM", {}), "gru": ("GRU", {}), "elman": ("RNN", {})}
NCNN_GATES = {"LSTM": [0, 1, 3, 2], "GRU": [0, 1, 2], "RNN": [0]}
NCNN_MAGIC, FLOATS = 7767517, struct.pack("<I", 0)  # what a text begins with; what floats begin with
THREADS = "1 thread"


def prepare_ncnn(problem: Problem) -> Prepared:
    """Whole sequences, of one row: ncnn has no batches."""
    version, net, _ = _ncnn(problem, stream=False)
    x = problem.x[:, 0]
    return Prepared(version, {THREADS: lambda: _extract(net, {"x": x}, ["y"])[0][:, None]})


def stream_ncnn(problem: Problem) -> Prepared:
    """A step of one row a call."""
    version, net, states = _ncnn(problem, stream=True)
    x, hidden = problem.x[:, 0], problem.hidden_size
    held: dict[str, np.ndarray] = {}

    def step(t: int) -> object:
        if t == 0:
            held.update((name, np.zeros((1, hidden), np.float32)) for name in states)
        y, *after = _extract(net, {"x": x[t : t + 1], **held}, ["y", *(f"{name}_out" for name in states)])
        held.update(zip(states, after, strict=True))
        return y

    return Prepared(version, {THREADS: step})


def _ncnn(problem: Problem, stream: bool) -> tuple[str, Any, Sequence[str]]:
    """ncnn's version, its network, and the names of the states that it takes and gives. Raises Unsupported."""
    kind, _ = problem.form(NCNN_CELLS)
    with models.imported("ncnn"):
        import ncnn
    if problem.manifest.num_directions != 1:
        raise Unsupported("it reads the future: both directions")
    if problem.batch != 1:
        raise Unsupported("it has no batches")
    if problem.x.dtype != np.float32:
        raise Unsupported(f"it has no recurrent layers in {problem.x.dtype}")
    layers, hidden = problem.manifest.num_layers, problem.hidden_size
    own = (["h", "c"] if kind == "LSTM" else ["h"]) if stream else []
    states = [f"{name}_{layer}" for layer in range(layers) for name in own]
    lines, weights, above = [f"Input {name} 0 1 {name}" for name in ["x", *states]], b"", "x"
    for layer in range(layers):
        W, R, b, second = (array[NCNN_GATES[kind]] for array in problem.gates(layer, 0))
        biases = np.concatenate([b, second[2:]]) if kind == "GRU" else b
        weights += b"".join(FLOATS + np.ascontiguousarray(array, np.float32).tobytes() for array in (W, biases, R))
        held = [f"{name}_{layer}" for name in own]
        below, above = above, "y" if layer == layers - 1 else f"x_{layer + 1}"
        blobs = " ".join([below, *held, above, *(f"{name}_out" for name in held)])
        count = 1 + len(held)
        lines.append(f"{kind} layer_{layer} {count} {count} {blobs} 0={hidden} 1={W.size}")
    heads = f"{NCNN_MAGIC}\n{len(lines)} {1 + layers + 2 * len(states)}\n"
    net = ncnn.Net()
    net.opt.num_threads, net.opt.use_bf16_storage, net.opt.use_fp16_storage = 1, False, False
    with tempfile.TemporaryDirectory() as folder:
        text, numbers = Path(folder, "net.param"), Path(folder, "net.bin")
        text.write_text(heads + "\n".join(lines) + "\n")
        numbers.write_bytes(weights)
        if net.load_param(str(text)) or net.load_model(str(numbers)):
            raise Unsupported("it does not read this network")
    return str(ncnn.__version__), net, states


def _extract(net: Any, given: dict[str, np.ndarray], wanted: Sequence[str]) -> list[np.ndarray]:
    import ncnn

    extractor = net.create_extractor()
    for name, value in given.items():
        extractor.input(name, ncnn.Mat(value))
    return [np.array(extractor.extract(name)[1]) for name in wanted]


def prepare_tract(problem: Problem) -> Prepared:
    """Whole sequences."""
    version, run = _tract(problem, stream=False)
    return Prepared(version, {THREADS: lambda: run([problem.x])[0]})


def stream_tract(problem: Problem) -> Prepared:
    """A step a call, with states as inputs and outputs."""
    version, run = _tract(problem, stream=True)
    x, layers = problem.x, problem.manifest.num_layers
    count = layers * (2 if problem.manifest.cell.startswith("lstm") else 1)
    zeros = [np.zeros((1, problem.batch, problem.hidden_size), x.dtype)] * count
    held: list[np.ndarray] = []

    def step(t: int) -> object:
        y, *held[:] = run([x[t : t + 1], *(held if t else zeros)])
        return y[0]

    return Prepared(version, {THREADS: step})


def _tract(problem: Problem, stream: bool) -> tuple[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]]:
    """tract's version, and what makes outputs of inputs. Raises Unsupported."""
    model = models.onnx_model(problem, stream)
    if stream and problem.manifest.num_directions != 1:
        raise Unsupported("it reads the future: both directions")
    with models.imported("tract"):
        import tract
    with tempfile.TemporaryDirectory() as folder, _refused(tract.TractError):
        path = Path(folder, "model.onnx")
        path.write_bytes(model)
        runnable = tract.onnx().load(path).into_model().into_runnable()

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [made.to_numpy() for made in runnable.run([np.ascontiguousarray(value) for value in inputs])]

    return importlib.metadata.version("tract"), run


@contextlib.contextmanager
def _refused(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        raise Unsupported(f"it refuses the ONNX model: {models.in_a_line(error)}") from None
