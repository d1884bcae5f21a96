"""Rows that end before others, as the body of an ONNX Scan says it: by the step's number and the lengths of rows.

In: the body's traced results, from `onnx_scan_body.py`. Out: the same without what holds them, for a network whose rows
have lengths of their own.

    new = where(t < lengths, f(x, old), old)   -->   new = f(x, old)
    y = where(t < lengths, g(x, old), 0)       -->   y = g(x, old)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tvm_rnn.graph.graph import Node
from tvm_rnn.language.trace import Value, apply

from .fields import Unreadable
from .folding import Steps
from .onnx_rows import Item

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
