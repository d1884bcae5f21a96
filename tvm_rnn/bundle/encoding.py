"""Steps of a model as the functions of operations.c take them: which function, and numbers in an order of its own.

In: a step of `manifest.model`. Out: `Encoded`, for program.py; or Impossible, which says what a bundle cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_rnn.module_file.schema import CpuNetwork, ModelStep

NETWORK = "Network"
DTYPES = {"bool": 0, "int32": 1, "int64": 2, "float32": 3, "float64": 4}  # IS_BOOL, ... of operations.h
MOST_AXES, MOST_VALUES = 8, 64

# In the order of operations.c.
UNARY = [
    "Tanh",
    "Exp",
    "Log",
    "Sqrt",
    "Floor",
    "Ceil",
    "Sin",
    "Cos",
    "Abs",
    "Neg",
    "Sign",
    "Round",
    "Reciprocal",
    "Relu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Erf",
    "HardSwish",
    "Gelu",
    "GeluTanh",
    "Elu",
    "Selu",
    "LeakyRelu",
    "ThresholdedRelu",
    "HardSigmoid",
    "Not",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Fmod",
    "Pow",
    "Max",
    "Min",
    "PRelu",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "And",
    "Or",
    "Xor",
]
REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSumExp"]
# What parameters these have, with the values that they have where nothing is said.
PARAMETERS = {
    "Elu": {"alpha": 1.0},
    "Selu": {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}


class Impossible(Exception):
    """What a bundle cannot do, in words."""


@dataclass(frozen=True)
class Encoded:
    """A step as operations.c takes it."""

    function: str
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()


Attributes = Mapping[str, Any]


def _list(values: Any) -> tuple[int, ...]:
    """A list that may not be there: how many numbers, then they."""
    return (-1,) if values is None else (len(values), *(int(v) for v in values))


def _dtype(name: object) -> int:
    if name not in DTYPES:
        raise Impossible(f"dtype {name}")
    return DTYPES[name]


def _int(a: Attributes, name: str, default: int = 0) -> int:
    return int(a.get(name, default))


def _float(a: Attributes, name: str, default: float) -> float:
    return float(a.get(name, default))


def _gelu(a: Attributes) -> Encoded:
    name = "GeluTanh" if str(a.get("approximate", "none")) == "tanh" else "Gelu"
    return Encoded("unary", (UNARY.index(name),))


def _unary(name: str) -> Callable[[Attributes], Encoded]:
    parameters = PARAMETERS.get(name, {})
    return lambda a: Encoded("unary", (UNARY.index(name),), tuple(_float(a, k, v) for k, v in parameters.items()))


def _binary(name: str) -> Callable[[Attributes], Encoded]:
    return lambda a: Encoded("binary", (BINARY.index(name),))


def _fold(name: str, mean: bool = False) -> Callable[[Attributes], Encoded]:
    return lambda a: Encoded("fold", (BINARY.index(name), int(mean)))


def _reduction(name: str) -> Callable[[Attributes], Encoded]:
    def encode(a: Attributes) -> Encoded:
        how = (REDUCTIONS.index(name), _int(a, "keepdims", 1), _int(a, "noop_with_empty_axes"))
        return Encoded("reduce", (*how, *_list(a.get("axes"))))

    return encode


def _softmax(logarithm: bool) -> Callable[[Attributes], Encoded]:
    def encode(a: Attributes) -> Encoded:
        flat = bool(a.get("flatten"))
        return Encoded("softmax", (_int(a, "axis", 1 if flat else -1), int(flat), int(logarithm)))

    return encode


def _clip(a: Attributes) -> Encoded:
    limits = [(float(a.get(name) is not None), float(a.get(name) or 0)) for name in ("min", "max")]
    return Encoded("clip", (), tuple(n for pair in limits for n in pair))


def _pad(a: Attributes) -> Encoded:
    modes, mode = ("constant", "edge", "reflect"), str(a.get("mode", "constant"))
    if mode not in modes:
        raise Impossible(f"mode {mode}")
    return Encoded("pad", (modes.index(mode), *_list(a.get("pads"))), (_float(a, "value", 0.0),))


def _shape(a: Attributes) -> Encoded:
    end = a.get("end")
    return Encoded("shape", (_int(a, "start"), int(end is not None), int(end or 0)))


def _constant_of_shape(a: Attributes) -> Encoded:
    return Encoded("constant_of_shape", (_dtype(a.get("dtype", "float32")),), (_float(a, "value", 0.0),))


def _slice(a: Attributes) -> Encoded:
    return Encoded("slice", (*_list(a.get("starts")), *_list(a.get("ends")), -1, -1))


def _extremum(largest: bool) -> Callable[[Attributes], Encoded]:
    def encode(a: Attributes) -> Encoded:
        more = (_int(a, "axis"), _int(a, "keepdims", 1), _int(a, "select_last_index"))
        return Encoded("extremum", (int(largest), *more))

    return encode


def _plain(function: str) -> Callable[[Attributes], Encoded]:
    return lambda a: Encoded(function)


ENCODERS: dict[str, Callable[[Attributes], Encoded]] = {
    **{name: _unary(name) for name in UNARY if name not in ("Gelu", "GeluTanh")},
    **{name: _binary(name) for name in BINARY if name not in ("Mod", "Fmod", "Max", "Min")},
    **{f"Reduce{name}": _reduction(name) for name in REDUCTIONS},
    **{name: _plain(name.lower()) for name in ("Identity", "Dropout", "Tile", "Size", "Expand", "Range", "Where")},
    "Gelu": _gelu,
    "Mod": lambda a: Encoded("binary", (BINARY.index("Fmod" if a.get("fmod", 0) else "Mod"),)),
    "Max": _fold("Max"),
    "Min": _fold("Min"),
    "Sum": _fold("Add"),
    "Mean": _fold("Add", mean=True),
    "Transpose": lambda a: Encoded("transpose", _list(a.get("perm"))),
    "Concat": lambda a: Encoded("concat", (int(a["axis"]),)),
    "Cast": lambda a: Encoded("cast", (_dtype(a["dtype"]),)),
    "Reshape": lambda a: Encoded("reshape", (_int(a, "allowzero"),)),
    "Flatten": lambda a: Encoded("flatten", (_int(a, "axis", 1),)),
    "Squeeze": lambda a: Encoded("squeeze", _list(a.get("axes"))),
    "Unsqueeze": lambda a: Encoded("unsqueeze", _list(a.get("axes"))),
    "Slice": _slice,
    "Split": lambda a: Encoded("split", (_int(a, "axis"), _int(a, "num_outputs"), *_list(a.get("split")))),
    "Shape": _shape,
    "ConstantOfShape": _constant_of_shape,
    "Pad": _pad,
    "Gather": lambda a: Encoded("gather", (_int(a, "axis"),)),
    "ReverseSequence": lambda a: Encoded("reverse_sequence", (_int(a, "time_axis"), _int(a, "batch_axis", 1))),
    "Clip": _clip,
    "MatMul": _plain("matmul"),
    "Gemm": lambda a: Encoded(
        "gemm", (_int(a, "transA"), _int(a, "transB")), (_float(a, "alpha", 1.0), _float(a, "beta", 1.0))
    ),
    "Softmax": _softmax(False),
    "LogSoftmax": _softmax(True),
    "ArgMax": _extremum(True),
    "ArgMin": _extremum(False),
    "BatchNormalization": lambda a: Encoded("batch_normalization", (), (_float(a, "epsilon", 1e-5),)),
    "LayerNormalization": lambda a: Encoded(
        "layer_normalization", (_int(a, "axis", -1),), (_float(a, "epsilon", 1e-5),)
    ),
    "LengthsOfMask": _plain("lengths_of_mask"),
    "HoldLast": _plain("hold_last"),
}


def encode(step: ModelStep, networks: Sequence[CpuNetwork]) -> Encoded:
    """A step's function and numbers. networks: what the manifest says of each. Raises Impossible."""
    a: Attributes = step.attributes
    if max(len(step.inputs), len(step.outputs)) > MOST_VALUES:
        raise Impossible(f"more than {MOST_VALUES} inputs or outputs")
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
    return Encoded("", (number, layers, *parts, len(y), *y, *(n for tail in tails for n in tail), *_weights(a, m)))


def _weights(a: Attributes, m: CpuNetwork) -> tuple[int, ...]:
    """Of weights that are values: how many, and the rank and sizes of each."""
    names = a.get("weights", ())
    shapes = {item.name: item.shape for item in m.weights}
    return (len(names), *(n for name in names for n in (len(shapes[name]), *shapes[name]))) if names else ()
