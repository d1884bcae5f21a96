"""A model of several recurrent networks, and what is around them.

In: networks, and the program that a frontend read. Out: `Model`, which `compile` takes as it takes an RNN; and what
networks of 16 bits are where float32 is asked for: a CPU has no arithmetic of theirs, a program in C no such type.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from tvm_rnn.dtypes import held_dtype

from .origin import Origin
from .program import Program, with_float32_inside
from .rnn import RNN


class Model:
    """Several recurrent networks and what is around them: what `from_onnx` gives where one RNN does not say it all.

    networks: RNNs with weights; `rnn.compile(model)` puts all of them into one file, whose `run` is how it is called.
    """

    def __init__(self, networks: Sequence[RNN], program: Program, origin: Origin) -> None:
        self.networks, self.program, self.origin = list(networks), program, origin

    def __repr__(self) -> str:
        return f"<Model of {', '.join(map(repr, self.networks))}>"

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Every network's, after the number of the network: "0.W_l0"."""
        return {f"{i}.{name}": value for i, net in enumerate(self.networks) for name, value in net.weights.items()}


Net = TypeVar("Net", RNN, Model, RNN | Model)


def widened(net: Net, precision: str | None, on_gpu: bool = True) -> Net:
    """The network in float32 if its precision is to be that and it, or what is around it, has parts of 16 bits: a copy
    with the same weights, every one of which float32 holds exactly. What is around networks is computed in float32 in
    any case, and keeps the dtypes of its inputs and outputs; so are the networks of a model for a CPU."""
    networks = net.networks if isinstance(net, Model) else [net]
    if not all(isinstance(own, RNN) for own in networks):
        return net  # `compile` refuses it
    program = net.program
    around = program is not None and "float16" in program.dtypes
    inside = any(own.dtype in ("float16", "bfloat16") for own in networks)
    whole = precision == "float32" or (program is not None and not precision and not on_gpu)
    if not (around or (inside and whole)):
        return net
    made = copy.copy(net)
    if program is not None:
        made.program = program.in_dtype("float32") if precision == "float32" else with_float32_inside(program)
    if whole and isinstance(made, Model):
        made.networks = [_widened(own) for own in networks]
    elif whole and isinstance(made, RNN):
        made.dtype = held_dtype(made.dtype)
    return made


def _widened(net: RNN) -> RNN:
    own = copy.copy(net)
    own.dtype = held_dtype(net.dtype)
    return own
