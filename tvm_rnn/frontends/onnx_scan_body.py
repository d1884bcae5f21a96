"""The body of an ONNX Scan as a cell: its nodes traced, its results in the order and form that a cell has them.

In: a body and the shapes of its inputs, from `onnx_scan.py`. Out: `ScanBody`: a `Cell` and the values of its weights,
or everything that is wrong. Arrays of floats that the body reads become parameters, and with them their values weights.

Rows that end before others, as a body says it by the step's number and the lengths of rows, need nothing that holds
their results in a network whose rows have lengths of their own:

    new = where(t < lengths, f(x, old), old)   -->   new = f(x, old)
    y = where(t < lengths, g(x, old), 0)       -->   y = g(x, old)
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.graph.graph import Node, topological
from tvm_rnn.language import functions as f
from tvm_rnn.language.cell import Cell
from tvm_rnn.language.trace import Value, apply, lift

from ..errors import CellError
from .built_cells import Equations, build_cell
from .fields import Unreadable, Wrong
from .folding import Steps, held_dtype_of
from .onnx_equations import KNOWN, evaluate
from .onnx_file import Array, tensor_array, type_name
from .onnx_nodes import GraphSteps, constant_of, label, not_supported, ordinary_attributes
from .onnx_rows import Item

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

COUNTERS = ("int32", "int64")
MOVED = ("reshape", "index")  # what a truth value of a row may go through


def counts_steps(steps: Steps, name: str) -> bool:
    """Whether a value is 0, 1, 2, ...: a constant, or a Range."""
    makers = steps.makers
    while not steps.is_constant(name):
        step = makers.get(name)
        if step is None:
            return False
        if step.op == "Range":
            ends = [steps.constant(step.inputs[at]) for at in (0, 2)]
            return [None if end is None or end.size != 1 else float(end.reshape(())) for end in ends] == [0, 1]
        if step.op != "Identity" and not (step.op == "Cast" and step.attributes.get("dtype") in COUNTERS):
            return False
        name = step.inputs[0]
    value = steps.constant(name)
    return value is not None and value.ndim == 1 and np.array_equal(value, np.arange(len(value)))


@dataclass
class Ends:
    """Where rows end. counter: the body's name for the number of the step. lengths: the model's for those of rows."""

    counter: str
    dtype: str
    lengths: str = ""
    count: Node = field(default_factory=lambda: Node("input", name="count"))
    limit: Node = field(default_factory=lambda: Node("input", name="limit"))

    def compare(self, steps: Steps, op: str, names: list[str]) -> Item | None:
        """The truth value of `counter < lengths`, where a body's node with these inputs is that."""
        if op not in ("Less", "Greater") or len(names) != 2:
            return None
        left, right = names if op == "Less" else names[::-1]
        if left != self.counter or steps.is_constant(right) or not steps.known(right):
            return None
        declared = steps.declared.get(right)
        axes = 1 if declared is None or declared.shape is None else len(declared.shape)
        if axes != 1 or (declared is not None and declared.dtype != self.dtype):
            raise Unreadable(f"{right!r} is no list of lengths in {self.dtype}")
        if self.lengths not in ("", right):
            raise Unreadable(f"rows end by {self.lengths!r} and by {right!r}")
        self.lengths = right
        return Item(apply("less", Value(self.count), Value(self.limit)), True)

    def without(self, result: Value, old: Node | None) -> Value:
        """A result as it is before a row ends. old: the state that stays then; None where there is 0."""
        if not self.lengths:
            return result
        node = result.node
        if node.op == "where" and self._active(node.args[0]) and node.args[1].shape == node.shape:
            other = node.args[2]
            if other is old if old is not None else other.value is not None and not other.value.any():
                return Value(node.args[1])
        kept = "stay what it was" if old is not None else "become 0"
        raise Unreadable(f"does not {kept} for rows that have ended, as {self.lengths!r} says")

    def _active(self, node: Node) -> bool:
        while node.op in MOVED:
            node = node.args[0]
        return node.op == "less" and node.args == (self.count, self.limit)


Shape = tuple[int, ...]


def unsupported(steps: GraphSteps, graph: GraphProto) -> list[str]:
    """What would be refused in any case, by what nodes are called and their attributes alone."""
    found = Wrong()
    for node in graph.node:
        with found.noting(f"{label(node)} in its body: "):
            if node.op_type != "Constant":
                ordinary_attributes(steps, node, KNOWN)
    return found


@dataclass
class ScanBody:
    """A body. batched: whether its values have the batch as their first axis; else B is 1. counter: which of its inputs
    numbers the steps, if one does. wrong: why it cannot be used."""

    steps: GraphSteps
    graph: GraphProto
    where: str
    dtype: str
    batched: bool
    counter: int | None
    wrong: Wrong
    values: dict[str, Item] = field(default_factory=dict)
    params: dict[str, tuple[Node, str]] = field(default_factory=dict)  # by the body's name: leaf, value of the model
    refused: set[str] = field(default_factory=set)  # values that are not made, for reasons that are in `wrong`
    shapes_in: list[Shape] = field(default_factory=list)
    shapes_out: list[Shape] = field(default_factory=list)
    lengths: str = ""  # the value of the model that has the rows' lengths

    cell: Cell = field(init=False)
    weights: dict[str, str] = field(init=False)  # the value of each of the cell's parameters
    x: Node = field(init=False)

    def read(self, states: Sequence[Shape], inputs: Sequence[Shape]) -> None:
        """Trace it and make the cell; with nothing known of its inputs, only look for what is not supported."""
        if self.wrong:
            self.wrong.extend(unsupported(self.steps, self.graph))
            return
        self.shapes_in, names = [*inputs], _Names()
        own = [at for at in range(len(self.graph.input)) if at != self.counter]
        infos = [self.graph.input[at] for at in own]
        self.states = [
            Node("state", shape=shape, name=names.new(info.name)) for info, shape in zip(infos, states, strict=False)
        ]
        self.x = Node("input", shape=(sum(map(math.prod, inputs)),), name=names.new("x"))
        self.ends = self._ends()
        with self.wrong.noting():
            self._leaves([info.name for info in infos])
        self._nodes()
        results, pieces = self._results()
        if not self.wrong:
            self._cell(results, pieces, names)

    def _ends(self) -> Ends | None:
        if self.counter is None:
            return None
        info = self.graph.input[self.counter]
        found = Ends(info.name, type_name(info.type.tensor_type.elem_type))
        self._set(info.name, Item(Value(found.count)))
        return found

    # --- values ------------------------------------------------------------------------------------------------------

    def _leaves(self, names: Sequence[str]) -> None:
        """The body's inputs: states, and parts of x; then its own constants."""
        at = 0
        for name, leaf in zip(names, self.states, strict=False):
            self._set(name, Item(Value(leaf), self.batched))
        for name, shape in zip(names[len(self.states) :], self.shapes_in, strict=True):
            size = math.prod(shape)
            part = Value(self.x)[at : at + size]
            self._set(name, Item(part if len(shape) == 1 else f.reshape(part, shape), self.batched))
            at += size
        for tensor in self.graph.initializer:
            with self._refusing([tensor.name]):
                self._constant(tensor.name, tensor_array(tensor, self.steps.source), type_name(tensor.data_type))

    @contextmanager
    def _refusing(self, names: Sequence[str], where: str = "") -> Iterator[None]:
        """Note what cannot be used in this block, and that these values are not made then."""
        count = len(self.wrong)
        with self.wrong.noting(where):
            yield
        self.refused.update(name for name in names if name and len(self.wrong) > count)

    def _set(self, name: str, item: Item) -> None:
        if not name or name in self.values:
            raise Unreadable(f"value {name!r} of its body is made twice, or has no name")
        self.values[name] = item

    def _constant(self, name: str, array: Array, dtype: str, value: str = "") -> None:
        """An array that a body reads. value: its name in the model, if it has one there."""
        if array.dtype.kind == "f" and dtype != self.dtype:
            raise Unreadable(f"{name!r}, which its body reads, is {dtype}, its states are {self.dtype}")
        if array.dtype.kind != "f" or array.size < 2:
            self._set(name, Item(array))
            return
        leaf = Node("param", shape=array.shape, name=name)
        self.params[name] = (leaf, value or self.steps.keep(array, held_dtype_of(dtype)))
        self._set(name, Item(Value(leaf)))

    def _read(self, name: str) -> Item | None:
        """A value of the body, or of the model around it."""
        if name and name not in self.values:
            array = self.steps.constant(name)
            if array is None:
                known = "depends on what the model is given" if self.steps.known(name) else "is missing, or made later"
                raise Unreadable(f"value {name!r} {known}")
            self._constant(name, array, self.steps.dtypes.get(name) or array.dtype.name, name)
        return self.values[name] if name else None

    # --- nodes and results -------------------------------------------------------------------------------------------

    def _nodes(self) -> None:
        for node in self.graph.node:
            if not self.refused.isdisjoint(node.input):
                self.refused.update(filter(None, node.output))
                if node.op_type not in KNOWN:
                    self.wrong.append(f"{label(node)} in its body: {not_supported(node, KNOWN)}")
                continue
            with self._refusing(node.output, f"{label(node)} in its body: "):
                self._node(node)

    def _node(self, node: NodeProto) -> None:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            array, dtype = constant_of(self.steps, node)
            self._constant(node.output[0], array, dtype)
            return
        attributes = ordinary_attributes(self.steps, node, KNOWN)
        active = self.ends.compare(self.steps, node.op_type, list(node.input)) if self.ends and self.batched else None
        if active is not None:
            self._set(node.output[0], active)
            return
        items = [self._read(name) for name in node.input]
        moved = any(item is not None and not item.known for item in items)
        if node.op_type == "Cast" and moved and attributes["dtype"] != held_dtype_of(self.dtype):
            raise Unreadable(f"a cast of a value of the step to {attributes['dtype']}")
        for name, item in zip(
            node.output, evaluate(self.steps, node.op_type, items, attributes, len(node.output)), strict=False
        ):
            if name:
                self._set(name, item)

    def _results(self) -> tuple[list[Value], list[Value]]:
        """The new states; and each scan output as a vector (or where there is none, the first state)."""
        found = []
        for at, info in enumerate(self.graph.output):
            with self.wrong.noting(f"output {info.name!r} of its body "):
                if info.name not in self.refused:
                    found.append(self._result(info.name, self.states[at] if at < len(self.states) else None))
        if self.wrong:
            return [], []
        states, outputs = found[: len(self.states)], found[len(self.states) :]
        self.shapes_out = [value.shape for value in outputs]
        pieces = outputs or states[:1]
        return states, [v if len(v.shape) == 1 else f.reshape(v, (v.size,)) for v in pieces]

    def _result(self, name: str, state: Node | None) -> Value:
        """One of them. state: what it is the new value of, None for a scan output."""
        try:
            item = self._read(name)
        except Unreadable as reason:
            raise Unreadable(f"cannot be had: {reason}") from None
        if item is None or item.batched != self.batched:
            raise Unreadable("does not have the batch as its first axis" if self.batched else "has no name")
        value = lift(item.data)
        if self.ends is not None:
            value = self.ends.without(value, state)
        if value.node.boolean or (state is not None and value.shape != state.shape):
            expected = "numbers" + (f" of shape {list(state.shape)}" if state is not None else "")
            got = "truth values" if value.node.boolean else list(value.shape)
            raise Unreadable(f"has {got} for each row, expected {expected}")
        return value

    # --- the cell ----------------------------------------------------------------------------------------------------

    def _cell(self, results: Sequence[Value], pieces: Sequence[Value], names: _Names) -> None:
        y = f.concat(pieces) if len(pieces) > 1 else pieces[0]
        emitted = [state.name for state, new in zip(self.states, results, strict=True) if new.node is y.node]
        output = emitted[0] if emitted else names.new("y")
        roots = [*(value.node for value in results), *([] if emitted else [y.node])]
        used = {*topological(roots)}
        if self.ends is not None:
            self.lengths = self.ends.lengths
            if self.ends.count in used:
                self.wrong.append(f"its body computes with {self.ends.counter!r}, the number of the step")
                return
        kept = [(names.new(_plain(name)), leaf, value) for name, (leaf, value) in self.params.items() if leaf in used]
        leaves = {leaf: leaf.name for leaf in (*self.states, self.x)} | {leaf: name for name, leaf, _ in kept}
        self.weights = {name: value for name, _, value in kept}

        def dims(kind: str) -> dict[str, str]:
            return {name: " ".join(map(str, leaf.shape)) for leaf, name in leaves.items() if leaf.op == kind}

        doc, equations = f"One step of {self.where}.", _replayed(leaves, roots, self.where)
        try:
            self.cell = build_cell(
                "onnx_scan", doc, dims("input"), dims("state"), dims("param"), equations, output=output
            )
        except CellError as error:
            self.wrong.append(str(error).splitlines()[0])


def _replayed(leaves: Mapping[Node, str], roots: Sequence[Node], where: str) -> Equations:
    """The traced body, as equations of a cell's own arguments."""

    def equations(named: Mapping[str, Value]) -> tuple[Value, ...]:
        made = {leaf: named[name].node for leaf, name in leaves.items()}
        for node in topological(roots):
            if node not in made:
                made[node] = replace(node, args=tuple(made[arg] for arg in node.args), source=where)
        return tuple(Value(made[root]) for root in roots)

    return equations


def _plain(name: str) -> str:
    """A weight's name without layer and direction, as to_onnx writes them: `weight_name` adds these again."""
    return re.sub(r"_l\d+(_reverse)?$", "", name)


class _Names:
    """Names for a cell's arguments."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def new(self, wanted: str) -> str:
        """An identifier that nothing else has, as near to the wanted name as may be."""
        name = re.sub(r"\W", "_", re.sub(r"\.\d+$", "", wanted), flags=re.ASCII).strip("_")[:40] or "value"
        name = f"v{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
        count, found = 0, name
        while found in self.taken:
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        return found
