"""Networks for tests: cells with sizes and random weights, compiled once per process, and drawn arguments.

In: a cell (of the zoo by its name, or any), sizes and options of `compile`. Out: (RNN, Module) pairs, inputs and states
in the network's dtype, and the comparison with the oracle.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.bench.suites.gpu import TAMED
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.target import Target

EXTRA = {"P": 3, "depth": 2, "Y": 3, "X": 4, "S": 4, "A": 2}  # sizes of the axes that are neither I nor H
# Cells that divide a vector by its own length, or subtract its mean, and the fewest units that this needs: with fewer
# the result is a sign, or a small difference of large numbers, of which float32 keeps few digits.
_LENGTHS = dict.fromkeys(("delta_net", "gated_delta_net", "gated_delta_net_conv", "lstm_layer_norm", "mamba2_conv"), 2)
FEWEST = _LENGTHS | dict.fromkeys(("gla", "mlstm_capped", "retnet", "retnet_rotary", "rwkv7"), 3)
SCORES = ("a",)  # inputs in 0..1: augru's attention; outside, its gate is none and the state grows without end

SPIKING = ("lif", "alif", "plif")  # a rounding error turns a spike over, so they are compared in float64


def network(
    cell: str | rnn.Cell, input_size: int, hidden_size: Any, seed: int = 3, scale: float = 1.0, **options: Any
) -> rnn.RNN:
    """An RNN with weights as `init` draws them, times `scale`: a chaotic cell multiplies rounding errors by a constant
    at every step, which no tolerance is meant for."""
    cell = rnn.cells.get(cell) if isinstance(cell, str) else cell
    options = {"dtype": "float64", **options} if cell.name in SPIKING else options
    sizes = {axis: size for axis, size in {**EXTRA, "H": hidden_size, **options}.items() if axis in cell.size_names}
    net = rnn.RNN(cell, input_size, **options | sizes).init(seed)
    parameter, factor = TAMED.get(cell.name, (None, 1.0))

    def scaled(name: str, value: np.ndarray) -> np.ndarray:
        return value * (scale * factor if name.startswith(f"{parameter}_l") else scale)

    return net.load({name: scaled(name, value) for name, value in net.weights.items()})


def compiled(
    cell: str | rnn.Cell,
    input_size: int,
    hidden_size: Any,
    target: str = "llvm",
    batch: tuple[int, ...] = (),
    without: tuple[str, ...] = (),
    **options: Any,
) -> tuple[rnn.RNN, rnn.Module]:
    """The network and its module; the same pair again for the same arguments, and as much of optimisation."""
    return _compiled((cell, input_size, hidden_size), (target, batch, without), Target.tvm_target, **options)


@functools.cache
def _compiled(
    sizes: tuple[Any, ...], how: tuple[str, tuple[int, ...], tuple[str, ...]], code: object, **options: Any
) -> tuple[rnn.RNN, rnn.Module]:
    net = network(*sizes, **options)
    return net, rnn.compile(net, how[0], how[1], without=how[2])


def arguments(net: rnn.RNN, steps: int, batch: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs [T, B, ...] and a state that is not the initial one, in the network's dtype.

    Inputs shrink where I is larger than H: `init` looks at H alone, and W x must not lie where float32 has no digits
    left (a cell without squashing of its input subtracts such numbers).
    """
    rng = np.random.default_rng(seed)
    scale = min(1.0, (net.layers[0].width / net.input_size) ** 0.5)

    def like(value: Any) -> Any:
        if isinstance(value, list):
            return [like(part) for part in value]
        with np.errstate(over="ignore"):  # what stands for -inf is -inf in float16
            return (value + rng.uniform(-0.5, 0.5, value.shape)).astype(net.dtype)

    shapes = net.input_shapes.items()
    drawn = {name: scale * rng.normal(size=(steps, batch, *shape)) for name, shape in shapes}
    x = {n: (1 / (1 + np.exp(-v)) if n in SCORES else v).astype(net.dtype) for n, v in drawn.items()}
    return x, {name: like(value) for name, value in first_state(net, batch).items()}


def first_state(net: rnn.RNN, batch: int) -> dict[str, Any]:
    """The initial state, and zeros for the cell's constants: a state that a call takes."""
    rows = net.num_layers * net.num_directions
    held = {name: np.zeros((rows, *value.shape)) for name, value in constants(net, batch).items()}
    return net.initial_state(batch) | held


def constants(net: rnn.RNN, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """What a call is given of the cell's constants, [B, *shape] each, in the network's dtype."""
    rng, sizes = np.random.default_rng(seed), net.layers[0].sizes
    own = {a.name: a.shape(sizes) for a in net.cell.states if a.name in net.cell.constants}
    return {name: rng.normal(size=(batch, *shape)).astype(net.dtype) for name, shape in own.items()}


def flags(steps: int, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """lengths in 0..T (the ends are among them where there are rows enough) and a reset in about one of 8 places."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, steps + 1, batch)
    lengths[: min(batch, 2)] = [steps, 0][: min(batch, 2)]
    return {"lengths": lengths, "reset": rng.random((steps, batch)) < 0.125}


def fitting(net: rnn.RNN, rows: dict[str, Any]) -> dict[str, Any]:
    """lengths and reset as the network takes them: no reset goes with constants."""
    return {name: value for name, value in rows.items() if name != "reset" or not net.cell.constants}


def check(net: rnn.RNN, module: rnn.Module, steps: int, batch: int, seed: int = 0, **rows: Any) -> None:
    """y and state of the module are the oracle's, from a given state, within the table's tolerance."""
    x, state = arguments(net, steps, batch, seed)
    rows = fitting(net, rows)
    assert_close(module(x, state, **rows), rnn.reference(net)(x, state, **rows), net.dtype, max(steps, 1))
