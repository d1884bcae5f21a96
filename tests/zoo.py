"""The zoo's cells with sizes, inputs and tame random weights, for tests of compiled modules."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvm_rnn as rnn

OTHER_SIZES = {"depth": 2, "P": 5}


def network(name: str, inputs: int, hidden: int, *, seed: int = 0, scale: float = 1.0, **options: Any) -> rnn.RNN:
    """A network of a zoo cell with random weights; a cell whose input is as wide as its state ignores `inputs`.

    scale shrinks the weights: a chaotic cell multiplies rounding errors by a constant at every step, which no tolerance
    is meant for.
    """
    c = rnn.cells.get(name)
    sizes = {n: OTHER_SIZES.get(n, 3) for n in c.size_names if n not in ("I", "H")}
    net = rnn.RNN(c, inputs if "I" in c.size_names else hidden, hidden, **sizes, **options).init(seed)
    for key in net.weights:
        net.weights[key] = (net.weights[key] * scale).astype(net.dtype)
    return net


def inputs_of(net: rnn.RNN, steps: int, batch: int, seed: int = 0) -> Any:
    """Inputs [T, B, ...] as a module takes them: one array, or a tuple."""
    rng = np.random.default_rng(seed)
    if net.cell.name == "augru":  # its second input is an attention score
        shape = (steps, batch, *net.layers[0].graph.inputs[0].shape)
        return rng.normal(size=shape).astype(net.dtype), rng.random((steps, batch, 1)).astype(net.dtype)
    arrays = tuple(rng.normal(size=(steps, batch, *n.shape)).astype(net.dtype) for n in net.layers[0].graph.inputs)
    return arrays if len(arrays) > 1 else arrays[0]


def random_state(net: rnn.RNN, batch: int, seed: int = 1) -> dict[str, Any]:
    """A state of half-normal values: positive, as stabilisers and normalisers are."""
    rng = np.random.default_rng(seed)

    def like(value: Any) -> Any:
        if isinstance(value, list):
            return [like(v) for v in value]
        return np.abs(rng.normal(size=value.shape)).astype(net.dtype)

    return {name: like(value) for name, value in net.initial_state(batch).items()}
