"""What a benchmark's process is given, made from an RNN without compiling it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.bench.peers.models import Problem
from tvm_rnn.runtime.runtime import Manifest

FITTING = [name for name in rnn.cells.names() if not rnn.cells.get(name).constants]  # which peers can run


def facts_of(net: rnn.RNN) -> dict[str, Any]:
    """The manifest of an RNN, as far as it does not speak of code."""
    return {
        "format": 2,
        "versions": {"tvm_rnn": rnn.__version__},
        "cell": net.cell.name,
        "dtype": net.dtype,
        "num_layers": net.num_layers,
        "num_directions": net.num_directions,
        "inputs": [{"name": name, "shape": shape} for name, shape in net.input_shapes.items()],
        "output": {"name": net.cell.output, "shape": net.layers[-1].output_shape},
        "states": [
            {"name": s.name, "shapes": [layer.graph.states[i].shape for layer in net.layers], "initial": 0.0}
            for i, s in enumerate(net.cell.states)
        ],
        "weights": [{"name": name, "shape": shape} for name, shape in net.weight_shapes.items()],
    }


def manifest_of(net: rnn.RNN) -> Manifest:
    """The same as read from a module's file."""
    manifest: Manifest = json.loads(json.dumps(facts_of(net)), object_hook=Manifest)
    return manifest


def problem_of(net: rnn.RNN, steps: int = 6, batch: int = 3, threads: int = 1) -> Problem:
    """A Problem with random inputs in -1..1 and the RNN's weights."""
    manifest, rng = manifest_of(net), np.random.default_rng(1)
    inputs = {i.name: rng.uniform(-1, 1, (steps, batch, *i.shape)).astype(net.dtype) for i in manifest.inputs}
    return Problem("module.so", manifest, net.weights, inputs, threads)


def small(name: str, num_layers: int = 2, bidirectional: bool = True, dtype: str = "float32") -> rnn.RNN:
    """A cell of the zoo with every size 4 (a projection's 3), and weights."""
    cell = rnn.cells.get(name)
    own = cell.inputs[0].dims.labels[:1]  # bound by input_size
    sizes = {axis: 3 if axis == "P" else 4 for axis in cell.size_names if axis not in own}
    return rnn.RNN(cell, 4, None, num_layers, bidirectional, dtype, **sizes).init(seed=2)
