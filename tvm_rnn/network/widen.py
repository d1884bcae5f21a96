"""Networks of 16 bits where float32 is asked for: a CPU has no arithmetic of theirs, and a program in C no such type.

In: an RNN or a Model, and the precision that a user gave. Out: the same where nothing is to be widened; else a copy in
float32 with the same weights, every one of which float32 holds exactly. The model around a network goes with it: its
float16 inputs, outputs, constants and casts become float32.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from tvm_rnn.dtypes import held_dtype

from .model import Model
from .rnn import RNN

Net = TypeVar("Net", RNN, Model, RNN | Model)


def widened(net: Net, precision: str | None) -> Net:
    """The network in float32 if its precision is to be that and it, or what is around it, has parts of 16 bits."""
    if precision != "float32" or not isinstance(net, RNN | Model):
        return net
    networks = net.networks if isinstance(net, Model) else [net]
    program = net.program
    around = program is not None and "float16" in program.dtypes
    if not around and not any(own.dtype in ("float16", "bfloat16") for own in networks):
        return net
    made = copy.copy(net)
    if program is not None:
        made.program = program.in_dtype("float32")
    if isinstance(made, Model):
        made.networks = [_widened(own) for own in networks]
    else:
        made.dtype = held_dtype(made.dtype)
    return made


def _widened(net: RNN) -> RNN:
    own = copy.copy(net)
    own.dtype = held_dtype(net.dtype)
    return own
