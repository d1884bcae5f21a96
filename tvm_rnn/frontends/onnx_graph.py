"""An ONNX graph as steps: what can be known now is known now, the rest is for the runtime's table of operations.

In: a model, from `onnx_file.py`. Out: `Steps`, to which `onnx.py` adds recurrent nodes: values by name, which are
constants, declared inputs, or made by a step; and everything that is not supported, all of it at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..model import Declared, Step
from ..runtime_ops import MOVES, OPERATIONS
from .onnx_file import Array, Proto, Source, Unreadable, import_onnx, stored_elements, tensor_array, type_name

RECURRENT = ("RNN", "LSTM", "GRU")
# What constants that are made here may have in elements, all together: so many, and so many for each element of the
# file. Weights are copied a few times on their way, and a file of a few bytes cannot ask for all memory.
FREE_ELEMENTS, MADE_PER_ELEMENT = 1 << 24, 32


def label(node: Proto) -> str:
    """How messages name a node."""
    name = node.name or next(filter(None, node.output), "")
    return f"{node.op_type} {name!r}"


class Steps:
    """The values of a graph, in the making. Constants are read when they are asked for."""

    def __init__(self, source: Source) -> None:
        self.source, self.graph = source, source.model.graph
        self.problems: list[str] = []
        self.steps: list[Step] = []
        self.tensors = {t.name: t for t in self.graph.initializer}
        self.constants: dict[str, Array] = {}
        self.dtypes: dict[str, str] = {}  # of values that were declared, or are made by recurrent nodes
        self.inputs = self._declared(self.graph.input)
        self.outputs = self._declared(self.graph.output)
        self.declared = {d.name: d for d in self.inputs}
        self.made: set[str] = set()
        stored = sum(stored_elements(tensor, source) for tensor in self.graph.initializer)
        self.room = FREE_ELEMENTS + MADE_PER_ELEMENT * stored
        self._taken = {name for n in self.graph.node for name in (*n.input, *n.output)} | {
            *self.tensors,
            *self.declared,
        }
        self._names = 0

    def _declared(self, values: Sequence[Proto]) -> list[Declared]:
        found = []
        for value in values:
            if value.name in self.tensors and values is self.graph.input:
                continue  # old models list their weights among the inputs
            kind = value.type.tensor_type
            try:
                if not value.type.HasField("tensor_type"):
                    raise Unreadable("it is no tensor")
                dtype = type_name(kind.elem_type)
            except Unreadable as reason:
                self.problems.append(f"value {value.name!r}: {reason}")
                continue
            axes = [
                int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else (d.dim_param or None)
                for d in kind.shape.dim
            ]
            shape = tuple(axes) if kind.HasField("shape") else None
            found.append(Declared(value.name, "float32" if dtype == "bfloat16" else dtype, shape))
            self.dtypes[value.name] = dtype
        return found

    # --- values --------------------------------------------------------------------------------------------------

    def known(self, name: str) -> bool:
        """Whether anything has made this value so far."""
        return name in self.tensors or name in self.constants or name in self.declared or name in self.made

    def constant(self, name: str) -> Array | None:
        """The value, if it does not depend on inputs. Raises Unreadable where the file does not hold it."""
        if name not in self.constants and name in self.tensors:
            self.constants[name] = tensor_array(self.tensors[name], self.source)
            code = self.tensors[name].data_type
            self.dtypes.setdefault(name, type_name(code))
        return self.constants.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self.tensors or name in self.constants

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The value's shape, where it is known before the model runs."""
        value = self.constant(name)
        if value is not None:
            return value.shape
        axes = self.declared[name].shape if name in self.declared else None
        return None if axes is None or not all(isinstance(n, int) for n in axes) else tuple(int(n or 0) for n in axes)

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        self._names += 1
        while f"{hint}#{self._names}" in self._taken:
            self._names += 1
        return f"{hint}#{self._names}"

    def keep(self, value: Any, dtype: str = "int64") -> str:
        """A new constant."""
        name = self.fresh("constant")
        self.constants[name] = np.array(value, dtype)
        return name

    def emit(self, op: str, inputs: Sequence[str], node: str, count: int = 1, **attributes: Any) -> str:
        """Add a step (or, where all its inputs are constants, its result) and return the name of what it makes."""
        outputs = [self.fresh(node) for _ in range(count)]
        self.add(Step(op, tuple(inputs), tuple(outputs), attributes, node))
        return outputs[0]

    def add(self, step: Step) -> None:
        """Add a step, or make its results now."""
        if step.op in OPERATIONS and all(name == "" or self.is_constant(name) for name in step.inputs):
            self._fold(step)
            return
        self.steps.append(step)
        self.made.update(step.outputs)

    def _fold(self, step: Step) -> None:
        values = [None if name == "" else self.constant(name) for name in step.inputs]
        try:
            self.room -= _elements(step.op, values, step.attributes)
            if self.room < 0:
                raise Unreadable("it makes constants that are too large for a file of this size")
            with np.errstate(all="ignore"):
                made = OPERATIONS[step.op](values, step.attributes)
        except (ValueError, IndexError, TypeError, KeyError, ArithmeticError, MemoryError, AttributeError) as reason:
            raise Unreadable(f"it cannot be computed: {reason}") from None
        results = made if isinstance(made, list) else [made]
        for name, value in zip(step.outputs, results, strict=False):
            self.constants[name] = np.asarray(value)
        self.made.update(step.outputs)

    def is_zero(self, name: str) -> bool:
        """Whether a value is 0 everywhere, whatever the inputs: as exporters make the first state of a network."""
        makers = {output: step for step in self.steps for output in step.outputs}
        while True:
            value = self.constant(name)
            if value is not None:
                return not value.any()
            step = makers.get(name)
            if step is None:
                return False
            if step.op == "ConstantOfShape":
                return float(step.attributes.get("value", 0)) == 0
            if step.op == "Concat" or step.op not in MOVES:
                return False
            name = step.inputs[0]  # the others say where its elements go


def _elements(op: str, values: Sequence[Any], attributes: Mapping[str, Any]) -> int:
    """How many elements a step will make of constants, so that a few bytes of a file cannot ask for all memory."""
    sizes: list[int] = [int(v.size) for v in values if v is not None]
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
        widest = sum(abs(int(p)) for p in np.asarray(pads).reshape(-1))
        return math.prod(int(n) + widest for n in values[0].shape)
    if op == "Gather":
        axis = int(attributes.get("axis", 0))
        return sizes[1] * (sizes[0] // max(1, int(values[0].shape[axis])))
    if op in ("MatMul", "Gemm"):
        return sizes[0] * sizes[1]
    if op in ("Concat", "Shape", "Size"):
        return sum(sizes)
    shapes = [np.shape(v) for v in values if v is not None]
    return max(math.prod(max(axis) for axis in _aligned(shapes)), *sizes, 1)


def _aligned(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sizes of each axis of a broadcast, from the last one on."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return list(zip(*padded, strict=True))


__all__ = ["RECURRENT", "Steps", "import_onnx", "label"]
