"""Steps of a model as program.c takes them: which function, and numbers in an order of its own.

In: a step of `manifest.model`. Out: `Encoded`, for program.py; or Impossible, which says what a bundle cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_rnn.module_file.schema import CpuNetwork, ModelStep

NETWORK, COMPILED = "Network", "Compiled"
DTYPES = {"bool": 0, "int32": 1, "int64": 2, "float32": 3, "float64": 4, "float16": 5}  # IS_BOOL, ...
INNER = {**DTYPES, "uint8": 6, "int8": 7, "int16": 8}  # IS_UINT8, ... of program.h: inside of a model
MOST_AXES, MOST_VALUES = 8, 256


class Impossible(Exception):
    """What a bundle cannot do, in words."""


@dataclass(frozen=True)
class Encoded:
    """A step as program.c takes it. function: of the module's file; "" for a network."""

    function: str
    ints: tuple[int, ...] = ()


Attributes = Mapping[str, Any]


def _dtype(name: object) -> int:
    if name not in INNER:
        raise Impossible(f"dtype {name}")
    return INNER[str(name)]


def encode(step: ModelStep, networks: Sequence[CpuNetwork]) -> Encoded:
    """A step's function and numbers. networks: what the manifest says of each. Raises Impossible."""
    a: Attributes = step.attributes
    if max(len(step.inputs), len(step.outputs)) > MOST_VALUES:
        raise Impossible(f"more than {MOST_VALUES} inputs or outputs")
    if step.op == COMPILED:
        kinds, memory = [_dtype(name) for name in a["dtypes"]], [_dtype(name) for name in a["memory"]]
        if max(a["axes"], default=0) > MOST_AXES:
            raise Impossible(f"a result of {max(a['axes'])} axes")
        numbers = (len(step.inputs) - int(a["constants"]), *a["axes"], *kinds, len(memory), *memory)
        return Encoded(str(a["function"]), numbers)
    if step.op != NETWORK:
        raise Impossible("it is not compiled: compile the model again")
    number = int(a["network"])
    m = networks[number]
    directions, layers = m.num_directions, m.num_layers
    shapes = [tuple(shape) for state in m.states for shape in state.shapes]
    first, *rest = m.output.shape or [1]
    y = (directions * first, *rest) if m.output.shape else (directions,) * (directions > 1)
    parts = [directions * math.prod(shape) for shape in shapes]
    tails = [(2 + len(shape), directions, -1, *shape) for shape in shapes]
    names, known = a.get("weights", ()), {item.name: item.shape for item in m.weights}
    # Of weights that are values: how many, and the rank and sizes of each.
    weights = (len(names), *(n for name in names for n in (len(known[name]), *known[name]))) if names else ()
    return Encoded("", (number, layers, *parts, len(y), *y, *(n for tail in tails for n in tail), *weights))
