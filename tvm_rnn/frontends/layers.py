"""One recurrent layer among a model's steps, whatever framework it is of.

In: a cell of ours, sizes, and the cell's parameters as values. Out: `Recurrent`, which `stacks.py` joins with others
and makes an RNN of; and its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_rnn.language.cell import Cell
from tvm_rnn.network.program import NETWORK, Step

from .folding import Steps

Array = np.ndarray


@dataclass
class Recurrent:
    """A layer: its cell, sizes, and for each direction the value of each of the cell's parameters.

    node: what messages call it. hidden_size: the cell's axis H, if it has one. biases: for each direction, where they
    are constants, the two that our b is the sum of, in our order of gates.
    """

    node: str
    cell: Cell
    input_size: int
    hidden_size: int
    reverse: bool
    dtype: str
    params: list[dict[str, str]]
    biases: list[tuple[Array, Array]] = field(default_factory=list)
    batch_first: bool = False

    @property
    def directions(self) -> int:
        return len(self.params)


def held_dtype_of(dtype: str) -> str:
    """The NumPy dtype of a layer's values around the network."""
    return "float32" if dtype == "bfloat16" else dtype


def add_network(
    steps: Steps, layer: Recurrent, x: str, lengths: str, begin: Sequence[str], number: int
) -> tuple[str, ...]:
    """The layer's step: y [T, B, D*H] and each last state [D, B, *shape], of x [T, B, I], lengths [B] and first states
    ("" for none). number: the layer's, among the model's."""
    outputs = tuple(steps.fresh(layer.node) for _ in range(1 + len(layer.cell.states)))
    steps.steps.append(Step(NETWORK, (x, lengths, *begin), outputs, {"network": number}, layer.node))
    steps.made.update(outputs)
    return outputs


def without_empty_rows(steps: Steps, layer: Recurrent, value: str, lengths: str) -> str:
    """A state [D, B, H] with 0 for rows of length 0, which have no last state: as ONNX Runtime and Keras have it."""
    zero = steps.keep(0, steps.dtypes.get(lengths, "int32"))
    empty = steps.emit("Equal", [lengths, zero], layer.node)
    empty = steps.emit("Unsqueeze", [empty, steps.keep([0, 2])], layer.node)
    return steps.emit("Where", [empty, steps.keep(0, held_dtype_of(layer.dtype)), value], layer.node)
