"""Steps of a model as the functions of operations.c take them: which function, and numbers in an order of its own.

In: a step of `manifest.model`. Out: `Encoded`, for program.py; or Impossible, which says what a bundle cannot do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_rnn.module_file.schema import CpuNetwork, ModelStep

NETWORK, COMPILED = "Network", "Compiled"
DTYPES = {"bool": 0, "int32": 1, "int64": 2, "float32": 3, "float64": 4}  # IS_BOOL, ... of operations.h
INNER = {**DTYPES, "uint8": 5, "int8": 6}  # IS_UINT8, IS_INT8: inside of a model
MOST_AXES, MOST_VALUES = 8, 256

# In the order of operations.c.
UNARY = re.findall(
    r"\w+",
    """
    Tanh Exp Log Sqrt Floor Ceil Sin Cos Abs Neg Sign Round Reciprocal Relu Sigmoid Softplus Erf Elu
    LeakyRelu Not
    """,
)
BINARY = re.findall(
    r"\w+",
    "Add Sub Mul Div Mod Fmod Pow Max Min Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor",
)
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "LogSumExp"]
# What parameters these have, with the values that they have where nothing is said.
PARAMETERS = {"Elu": {"alpha": 1.0}, "LeakyRelu": {"alpha": 0.01}}


class Impossible(Exception):
    """What a bundle cannot do, in words."""


@dataclass(frozen=True)
class Encoded:
    """A step as operations.c takes it. function: of operations.c, or of the module's file where `compiled`."""

    function: str
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    compiled: bool = False


Attributes = Mapping[str, Any]
Encoder = Callable[[Attributes], Encoded]


def _form(function: str, *ints: int | str | tuple[str, int], **floats: float) -> Encoder:
    """Of an operation whose attributes are handed on as they are. ints: numbers, names of lists that may not be there
    (how many, then they), attributes with what they are where nothing is said; floats: of these alone."""

    def encode(a: Attributes) -> Encoded:
        numbers = list[int]()
        for item in ints:
            if isinstance(item, int):
                numbers.append(item)
            elif isinstance(item, tuple):
                numbers.append(int(a.get(*item)))
            else:
                values = a.get(item)
                numbers += [-1] if values is None else [len(values), *map(int, values)]
        return Encoded(function, tuple(numbers), tuple(float(a.get(name, value)) for name, value in floats.items()))

    return encode


def _unary(name: str) -> Encoder:
    return _form("unary", UNARY.index(name), **PARAMETERS.get(name, {}))


def _binary(name: str) -> Encoder:
    return _form("binary", BINARY.index(name))


def _dtype(name: object, among: Mapping[str, int] = DTYPES) -> int:
    if name not in among:
        raise Impossible(f"dtype {name}")
    return among[str(name)]


def _softmax(logarithm: bool) -> Encoder:
    def encode(a: Attributes) -> Encoded:
        flat = bool(a.get("flatten"))
        return Encoded("softmax", (int(a.get("axis", 1 if flat else -1)), int(flat), int(logarithm)))

    return encode


def _clip(a: Attributes) -> Encoded:
    limits = [(float(a.get(name) is not None), float(a.get(name) or 0)) for name in ("min", "max")]
    return Encoded("clip", (), tuple(n for pair in limits for n in pair))


def _pad(a: Attributes) -> Encoded:
    modes, mode = ("constant", "edge", "reflect"), str(a.get("mode", "constant"))
    if mode not in modes:
        raise Impossible(f"mode {mode}")
    return _form("pad", modes.index(mode), "pads", value=0.0)(a)


def _shape(a: Attributes) -> Encoded:
    end = a.get("end")
    return _form("shape", ("start", 0), int(end is not None), int(end or 0))(a)


ENCODERS: dict[str, Encoder] = {
    **{name: _unary(name) for name in UNARY},
    **{name: _binary(name) for name in BINARY if name not in ("Mod", "Fmod")},
    **{
        f"Reduce{name}": _form("reduce", number, ("keepdims", 1), ("noop_with_empty_axes", 0), "axes")
        for number, name in enumerate(REDUCTIONS)
    },
    **{name: _form(name.lower()) for name in ("Identity", "Dropout", "Tile", "Size", "Expand", "Range", "Where")},
    "MatMul": _form("matmul"),
    "Mod": lambda a: _binary("Fmod" if a.get("fmod", 0) else "Mod")(a),
    "Transpose": _form("transpose", "perm"),
    "Concat": _form("concat", ("axis", 0)),
    "Cast": lambda a: Encoded("cast", (_dtype(a["dtype"]),)),
    "Reshape": _form("reshape", ("allowzero", 0)),
    "Flatten": _form("flatten", ("axis", 1)),
    "Squeeze": _form("squeeze", "axes"),
    "Unsqueeze": _form("unsqueeze", "axes"),
    "Slice": _form("slice", "starts", "ends", -1, -1),
    "Split": _form("split", ("axis", 0), ("num_outputs", 0), "split"),
    "Shape": _shape,
    "ConstantOfShape": lambda a: _form("constant_of_shape", _dtype(a.get("dtype", "float32")), value=0.0)(a),
    "Pad": _pad,
    "Gather": _form("gather", ("axis", 0)),
    "ReverseSequence": _form("reverse_sequence", ("time_axis", 0), ("batch_axis", 1)),
    "Clip": _clip,
    "Softmax": _softmax(False),
    "LogSoftmax": _softmax(True),
    "ArgMax": _form("extremum", 1, ("axis", 0), ("keepdims", 1), ("select_last_index", 0)),
    "ArgMin": _form("extremum", 0, ("axis", 0), ("keepdims", 1), ("select_last_index", 0)),
    "BatchNormalization": _form("batch_normalization", epsilon=1e-5),
    "LayerNormalization": _form("layer_normalization", ("axis", -1), epsilon=1e-5),
    "LengthsOfMask": _form("lengths_of_mask"),
    "HoldLast": _form("hold_last"),
}


def encode(step: ModelStep, networks: Sequence[CpuNetwork]) -> Encoded:
    """A step's function and numbers. networks: what the manifest says of each. Raises Impossible."""
    a: Attributes = step.attributes
    if max(len(step.inputs), len(step.outputs)) > MOST_VALUES:
        raise Impossible(f"more than {MOST_VALUES} inputs or outputs")
    if step.op == COMPILED:
        kinds, memory = [_dtype(name, INNER) for name in a["dtypes"]], [_dtype(name, INNER) for name in a["memory"]]
        if max(a["axes"], default=0) > MOST_AXES:
            raise Impossible(f"a result of {max(a['axes'])} axes")
        numbers = (len(step.inputs) - int(a["constants"]), *a["axes"], *kinds, len(memory), *memory)
        return Encoded(str(a["function"]), numbers, compiled=True)
    if step.op != NETWORK:
        if step.op not in ENCODERS:
            raise Impossible("the operation has no form in C")
        return ENCODERS[step.op](a)
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
