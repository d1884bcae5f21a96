"""A model's steps in the making: what can be known now is known now, the rest is compiled.

In: operations on values by name, and recurrent layers, from the frontends. Out: `Steps`: constants, declared inputs,
and steps; `Recurrent`, a layer among them. Of these `stacks.py` makes networks and a `Program`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.language.cell import Cell
from tvm_rnn.network.program import NETWORK, Declared, Step
from tvm_rnn.surroundings.evaluation import Refused, evaluated

from ..budget import Spending
from ..dtypes import check_fit
from .fields import Fields, Unreadable, integer, number

Array = np.ndarray

MOST_ITEM_BYTES = 8  # of an element, whatever its dtype


# What changes no value, only its place: a chain of these between two layers may come to nothing.
MOVES = {"Identity", "Dropout", "Transpose", "Concat", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Slice"}
MOVES |= {"Split", "Gather", "Tile"}
COMPARES = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not"}
# What is computed where all of its inputs are known: how many elements it makes is known before it does.
FOLDED = MOVES | COMPARES
FOLDED |= {"Size", "Cast", "Shape", "ConstantOfShape", "Range", "Pad", "ReverseSequence", "Where", "MatMul", "Gemm"}
FOLDED |= {"Tanh", "Exp", "Log", "Sqrt", "Floor", "Ceil", "Sin", "Cos", "Abs", "Neg", "Sign", "Round", "Reciprocal"}
FOLDED |= {"Relu", "Sigmoid", "Softplus", "Erf", "Elu", "LeakyRelu", "Clip", "Gelu", "Selu", "HardSigmoid", "HardSwish"}
FOLDED |= {"Softsign", "PRelu", "ThresholdedRelu", "Softmax", "LogSoftmax", "LengthsOfMask", "HoldLast"}
FOLDED |= {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Sum", "Mean", "ArgMax", "ArgMin"}
FOLDED |= {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp", "ReduceSumSquare"}
FOLDED |= {"ReduceL1", "ReduceL2", "BatchNormalization", "LayerNormalization", "ScatterElements", "ScatterND"}
# Operations whose results are of another dtype than their first input.
DTYPE_OF_RESULT = {
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin"), "int64"),
    **dict.fromkeys(COMPARES, "bool"),
    "LengthsOfMask": "int32",
}


class Steps:
    """The values of a model. dtypes: of those that were declared. spending: what reading the file has left."""

    def __init__(
        self, inputs: Sequence[Declared] = (), outputs: Sequence[Declared] = (), spending: Spending | None = None
    ) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, Array] = {}
        self.dtypes: dict[str, str] = {}
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.made: set[str] = set()
        self.taken: set[str] = set()
        self.spending = Spending() if spending is None else spending
        self._names = 0

    @property
    def declared(self) -> dict[str, Declared]:
        return {d.name: d for d in self.inputs}

    @property
    def makers(self) -> dict[str, Step]:
        """The step that makes a value, by the value's name."""
        return {output: step for step in self.steps for output in step.outputs}

    def declare(self, declared: Declared) -> None:
        """One more input of the model."""
        self.inputs.append(declared)
        self.dtypes[declared.name] = declared.dtype

    def known(self, name: str) -> bool:
        """Whether anything has made this value so far."""
        return self.is_constant(name) or name in self.declared or name in self.made

    def constant(self, name: str) -> Array | None:
        """The value, if it does not depend on inputs. Raises Unreadable where a file does not hold it."""
        return self.constants.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The value's shape, where it is known before the model runs."""
        value = self.constant(name)
        if value is not None:
            return value.shape
        axes = self.declared[name].shape if name in self.declared else None
        return None if axes is None or not all(isinstance(n, int) for n in axes) else tuple(int(n or 0) for n in axes)

    def dtype(self, name: str) -> str:
        """The value's dtype; "" where it is not known. Most operations give what their first input is."""
        makers = self.makers
        while True:
            value = self.constant(name)
            known = self.dtypes.get(name) or ("" if value is None else value.dtype.name)
            step = makers.get(name)
            if not known and name in self.declared:
                known = self.declared[name].dtype
            if known or step is None:
                return known
            if "dtype" in step.attributes or step.op in DTYPE_OF_RESULT:
                return str(step.attributes.get("dtype") or DTYPE_OF_RESULT[step.op])
            name = step.inputs[1 if step.op == "Where" else 0]

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        self._names += 1
        while f"{hint}#{self._names}" in self.taken:
            self._names += 1
        return f"{hint}#{self._names}"

    def keep(self, value: ArrayLike, dtype: str = "int64") -> str:
        """A new constant. Raises WeightError where it would be infinite."""
        name = self.fresh("constant")
        array = np.asarray(value)
        check_fit({"a constant": array} if array.dtype.kind == "f" else {}, dtype)
        self.constants[name] = np.array(array, dtype)
        return name

    def emit(self, op: str, inputs: Sequence[str], node: str, **attributes: object) -> str:
        """Add a step (or, where all its inputs are constants, its result) and return the name of what it makes."""
        name = self.fresh(node)
        self.add_named(op, inputs, name, node, **attributes)
        return name

    def add_named(self, op: str, inputs: Sequence[str], name: str, node: str, **attributes: object) -> None:
        """Add a step whose result has a name of the user's."""
        self.add(Step(op, tuple(inputs), (name,), attributes, node))

    def add(self, step: Step) -> None:
        """Add a step, or make its results now."""
        if step.op in FOLDED and all(name == "" or self.is_constant(name) for name in step.inputs):
            self._fold(step)
            return
        self.steps.append(step)
        self.made.update(step.outputs)

    def _fold(self, step: Step) -> None:
        values = [None if name == "" else self.constant(name) for name in step.inputs]
        made = self.compute(step, values)
        self.constants.update(zip(step.outputs, made, strict=False))
        self.made.update(step.outputs)

    def compute(self, step: Step, values: Sequence[Array | None], most: float = math.inf) -> list[Array]:
        """What an operation of FOLDED makes of arrays that are known now. Raises Unreadable, also where that has more
        elements than `most`."""
        try:
            elements = _elements(step.op, values, step.attributes)
        except (ValueError, IndexError, TypeError, KeyError, ArithmeticError, AttributeError) as reason:
            raise Unreadable(f"it cannot be computed: {reason}") from None
        if elements > most:
            raise Unreadable(f"{step.op} makes {elements} elements")
        self.make(step.op, elements)
        try:
            return evaluated(step.op, values, step.attributes, len(step.outputs))
        except Refused as reason:
            raise Unreadable(f"it cannot be computed: {reason}") from None

    def make(self, op: str, elements: int) -> None:
        """Count the elements of a constant that an operation makes, before it does."""
        self.spending.take(f"{op} makes a constant of {elements} elements", bytes=MOST_ITEM_BYTES * elements)

    def is_zero(self, name: str) -> bool:
        """Whether a value is 0 everywhere, whatever the inputs: as exporters make the first state of a network."""
        makers = self.makers
        while True:
            value = self.constant(name)
            if value is not None:
                return not value.any()
            step = makers.get(name)
            if step is None:
                return False
            if step.op == "ConstantOfShape":
                return number(step.attributes, "value", 0.0) == 0
            if step.op == "Concat" or step.op not in MOVES:
                return False
            name = step.inputs[0]  # the others say where its elements go


def _elements(op: str, values: Sequence[Array | None], attributes: Fields) -> int:
    """How many elements a step will make of constants, so that a few bytes of a file cannot ask for all memory."""
    sizes = [v.size for v in values if v is not None]
    shapes = [v.shape for v in values if v is not None]
    if op in ("Expand", "ConstantOfShape"):
        shape = [int(n) for n in np.asarray(values[-1]).reshape(-1)]
        return math.prod(max(n, 1) for n in shape) * (sizes[0] if op == "Expand" else 1)
    if op == "Tile":
        return sizes[0] * math.prod(max(int(n), 1) for n in np.asarray(values[1]).reshape(-1))
    if op == "Range":
        start, limit, delta = (float(np.asarray(v).reshape(())) for v in values)
        return max(0, math.ceil((limit - start) / delta))
    if op == "Pad":
        pads = values[1] if len(values) > 1 else attributes.get("pads", ())
        widest = sum(abs(int(n)) for n in np.asarray(pads, np.int64).reshape(-1).tolist())
        return math.prod(n + widest for n in shapes[0])
    if op == "Gather":
        axis = integer(attributes, "axis", 0)
        return sizes[1] * (sizes[0] // max(1, shapes[0][axis]))
    if op in ("MatMul", "Gemm"):
        return sizes[0] * sizes[1]
    if op in ("Concat", "Shape", "Size"):
        return sum(sizes)
    return max(math.prod(max(axis) for axis in _aligned(shapes)), *sizes, 1)


def _aligned(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sizes of each axis of a broadcast, from the last one on."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return list(zip(*padded, strict=True))


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
