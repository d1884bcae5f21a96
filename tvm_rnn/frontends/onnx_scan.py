"""ONNX's Scan: its body, one step of rows, as a cell of ours.

In: a Scan node, from `onnx.py`. Out: a `Recurrent`, one layer, and the steps that turn ONNX's arrays into ours and
back:

    theirs: states [B, *shape], scan inputs [T, B, *shape] and scan outputs [T, B, *shape], as many as there are
    ours:   states [1, B, *shape], x [T, B, I] and y [T, B, K]: all inputs, all outputs, side by side

Where a body cannot be one step of rows, because it has no batch, all of it is one row: B = 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_rnn.network.program import Step

from .fields import Fields, Unreadable, Wrong, integer, integers
from .folding import Recurrent, add_network
from .onnx_file import type_name
from .onnx_nodes import GraphSteps, attributes_of, bodies, label
from .onnx_rows import MOST_ELEMENTS
from .onnx_scan_body import COUNTERS, ScanBody, Shape, counts_steps, unsupported

if TYPE_CHECKING:
    from onnx import NodeProto

OLDEST = 9  # operator set: before, Scan was another operator
DTYPES = ("float32", "float64", "float16", "bfloat16")
FIRST = -(1 << 63)  # where a slice that runs backwards ends


def read_scan(steps: GraphSteps, node: NodeProto, found: list[Recurrent], where: str = "") -> None:
    """Add a Scan: its layer to `found`, its steps to `steps`. Raises Unreadable with all that is wrong. where: what
    messages call it, if it is a node of another kind in the model."""
    if steps.source.opset < OLDEST:
        raise Unreadable(f"Scan of operator set {steps.source.opset} is not supported, that of {OLDEST} and later is")
    scan = _Scan(steps, node, attributes_of(node, steps.source.opset), where or label(node))
    failed: list[Wrong] = []
    for batched in (True, False):
        body = scan.read(batched)
        if not body.wrong:
            layer = Recurrent(scan.where, body.cell, body.x.shape[0], 0, bool(scan.back[0]), scan.dtype, [body.weights])
            scan.add(body, layer, len(found))
            found.append(layer)
            return
        failed.append(body.wrong)
    # With a batch or without one: the reading that has less against it is what was meant.
    with_batch, without = failed
    raise Unreadable("; ".join(dict.fromkeys(with_batch if len(with_batch) <= len(without) else without)))


class _Scan:
    """A node and its attributes, with what they say of each other checked."""

    def __init__(self, steps: GraphSteps, node: NodeProto, a: Fields, where: str) -> None:
        self.steps, self.node, self.where = steps, node, where
        if "body" not in a or "num_scan_inputs" not in a:
            raise Unreadable("it has no body, or no num_scan_inputs")
        (self.body,), self.scanned = bodies(node), integer(a, "num_scan_inputs")
        self.states = len(node.input) - self.scanned
        self.emitted = len(self.body.output) - self.states
        wrong, more = Wrong(), functools.partial(unsupported, steps, self.body)
        if self.scanned < 1 or self.states < 1:
            wrong.append(f"it has {self.states} states and {self.scanned} scan inputs, both are needed")
        if len(self.body.input) != len(node.input) or len(self.body.output) != len(node.output) or self.emitted < 0:
            got = f"{len(self.body.input)} inputs and {len(self.body.output)} outputs"
            wrong.append(f"its body has {got}, it has {len(node.input)} and {len(node.output)}")
        if "" in node.input:
            wrong.append("an input is not given")
        if self.body.sparse_initializer:
            wrong.append("sparse initializers are not supported")
        wrong.check(more)
        back = _listed(a, "scan_input_directions", self.scanned, wrong, (0, 1))
        self.back_out = _listed(a, "scan_output_directions", self.emitted, wrong, (0, 1))
        axes = _listed(a, "scan_input_axes", self.scanned, wrong)
        self.axes_out = _listed(a, "scan_output_axes", self.emitted, wrong)
        self.dtypes = self._dtypes(wrong)
        self.counter = None if wrong else self._counter(back)
        self.dtype = "" if wrong else self._dtype(wrong)
        wrong.check(more)
        data = [at for at in range(self.scanned) if self.states + at != self.counter]
        self.inputs = [self.states + at for at in data]  # the scan inputs that are data, among the node's inputs
        self.back, self.axes = [back[at] for at in data], [axes[at] for at in data]

    def _dtypes(self, wrong: Wrong) -> list[str]:
        """The element type of each of the body's inputs: what the body says, else that of the model's value."""
        found = []
        for info, name in zip(self.body.input, self.node.input, strict=True):
            kind, own, outer = info.type.tensor_type.elem_type, "", ""
            with wrong.noting():
                outer = self.steps.dtype(name)
                own = type_name(kind) if kind else ""
            if outer and own and own != outer:
                wrong.append(f"{name!r} is {outer}, its body has it as {own}")
            found.append(own or outer)
        return found

    def _counter(self, back: Sequence[int]) -> int | None:
        """The scan input that numbers the steps, by which rows end, if there is one."""
        found = [at for at in range(self.states, len(self.dtypes)) if self.dtypes[at] in COUNTERS]
        if len(found) != 1 or self.scanned < 2 or len({*back}) > 1:
            return None
        (at,) = found
        kind = self.body.input[at].type.tensor_type
        number = kind.HasField("shape") and not len(kind.shape.dim)
        return at if number and counts_steps(self.steps, self.node.input[at]) else None

    def _dtype(self, wrong: Wrong) -> str:
        names = [info.name for info in self.body.input]
        found = {
            name: dtype for at, (name, dtype) in enumerate(zip(names, self.dtypes, strict=True)) if at != self.counter
        }
        first = next(iter(found.values()))
        if len({*found.values()}) > 1 or first not in DTYPES:
            text = ", ".join(f"{name} {dtype or 'unknown'}" for name, dtype in found.items())
            wrong.append(f"its states and scan inputs are not all of one of {', '.join(DTYPES)}: {text}")
        return first

    def read(self, batched: bool) -> ScanBody:
        """Its body, with or without a batch; what is wrong with it is in it."""
        wrong, shapes = Wrong(), list[Shape]()
        for at in range(len(self.node.input)):
            with wrong.noting():
                shapes.append(() if at == self.counter else self._shape(at, batched))
        inputs = [] if wrong else [shapes[at] for at in self.inputs]
        total = sum(map(math.prod, inputs))
        if total > MOST_ELEMENTS:
            wrong.append(f"its scan inputs have {total} elements for each row")
        found = ScanBody(self.steps, self.body, self.where, self.dtype, batched, self.counter, wrong)
        found.read(shapes[: self.states], inputs)
        for shape, axis in zip([] if wrong else found.shapes_out, self.axes_out, strict=False):
            rank = len(shape) + 1 + batched
            if not -rank <= axis < rank:
                wrong.append(f"a scan output has {rank} axes, and no axis {axis}")
        return found

    def _shape(self, at: int, batched: bool) -> Shape:
        """The sizes in a body's input that its values have for each row. Raises Unreadable where they are not known."""
        info, name = self.body.input[at], self.node.input[at]
        kind = info.type.tensor_type
        inner = None
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            inner = [int(d.dim_value) if d.HasField("dim_value") else None for d in kind.shape.dim]
        outer = self._outer(name)
        if outer is not None and at in self.inputs:
            axis = self.axes[self.inputs.index(at)]
            if not -len(outer) <= axis < len(outer):
                raise Unreadable(f"scan input {name!r} of {len(outer)} axes has no axis {axis}")
            outer.pop(axis)
        known = inner if inner is not None else outer
        if known is None:
            raise Unreadable(f"the shape of {info.name!r} in its body is not known")
        if outer is not None and len(outer) != len(known):
            raise Unreadable(f"{name!r} has {len(outer)} axes for each step, its body {len(known)}")
        pairs = list(zip(known, outer or known, strict=True))
        if any(n is not None and m is not None and n != m for n, m in pairs):
            raise Unreadable(f"{name!r} has shape {_text(outer or ())} for each step, its body {_text(known)}")
        merged = [n if n is not None else m for n, m in pairs]
        own = merged[1:] if batched else merged
        if batched and not merged:
            raise Unreadable(f"{info.name!r} in its body has no axis for the batch")
        if any(n is None or n < 1 for n in own) or math.prod(n or 1 for n in own) > MOST_ELEMENTS:
            sizes = "sizes other than the batch must be known" if batched else "its sizes must be known"
            raise Unreadable(f"{info.name!r} in its body has shape {_text(merged)}: {sizes}, and have an end")
        return tuple(n or 1 for n in own)

    def _outer(self, name: str) -> list[int | None] | None:
        value = self.steps.constant(name)
        if value is not None:
            return [*value.shape]
        declared = self.steps.declared.get(name)
        if declared is None or declared.shape is None:
            return None
        return [n if isinstance(n, int) else None for n in declared.shape]

    # --- the layer's step, and the steps between the node's inputs and outputs and the layer's -----------------------

    def add(self, body: ScanBody, layer: Recurrent, number: int) -> None:
        """Add them. number: the layer's, among the model's."""
        steps, ones = self.steps, [0] if body.batched else [0, 1]
        begin = []
        for name in self.node.input[: self.states]:
            begin.append("" if steps.is_zero(name) else self._emit("Unsqueeze", name, ones))
        x = [self._input(body, at) for at in range(len(self.inputs))]
        joined = x[0] if len(x) == 1 else steps.emit("Concat", x, self.where, axis=2)
        y, *ends = add_network(steps, layer, joined, body.lengths, begin, number)
        results, at = [self._emit("Squeeze", end, ones) for end in ends], 0
        for k, shape in enumerate(body.shapes_out):
            size = math.prod(shape)
            own = y if len(body.shapes_out) == 1 else self._emit("Slice", y, [at], [at + size], [2], [1])
            results.append(self._output(body, own, k))
            at += size
        for name, value in zip(self.node.output, results, strict=True):
            if name:
                steps.add(Step("Identity", (value,), (name,), {}, self.where))

    def _input(self, body: ScanBody, at: int) -> str:
        """A scan input as [T, B, size], in the network's direction."""
        shape, value = body.shapes_in[at], self.node.input[self.inputs[at]]
        rank = len(shape) + 1 + body.batched
        axis = self.axes[at] % rank
        if axis:
            value = self._emit("Transpose", value, perm=[axis, *(i for i in range(rank) if i != axis)])
        if len(shape) != 1 or not body.batched:
            value = self._emit("Reshape", value, [0, 0 if body.batched else 1, math.prod(shape)])
        return value if self.back[at] == self.back[0] else self._reversed(value)

    def _output(self, body: ScanBody, value: str, at: int) -> str:
        """A scan output, from its part of y."""
        shape = body.shapes_out[at]
        if self.back_out[at] != self.back[0]:
            value = self._reversed(value)
        if len(shape) != 1 or not body.batched:
            value = self._emit("Reshape", value, [0, *([0] if body.batched else []), *shape])
        rank = len(shape) + 1 + body.batched
        axis = self.axes_out[at] % rank
        perm = [*range(1, rank)]
        perm.insert(axis, 0)
        return self._emit("Transpose", value, perm=perm) if axis else value

    def _reversed(self, value: str) -> str:
        return self._emit("Slice", value, [-1], [FIRST], [0], [-1])

    def _emit(self, op: str, value: str, *numbers: Sequence[int], **attributes: object) -> str:
        """A step on a value and lists of whole numbers."""
        return self.steps.emit(op, [value, *(self.steps.keep(n) for n in numbers)], self.where, **attributes)


def _listed(a: Fields, name: str, count: int, wrong: Wrong, known: Sequence[int] = ()) -> list[int]:
    """An attribute with a number for each input or output; 0 where it is not given."""
    values = (integers(a, name) if name in a else []) or [0] * count
    if len(values) != count or (known and not {*values} <= {*known}):
        wrong.append(f"{name} is {values}, expected {count} numbers" + " of 0 and 1" * bool(known))
    return values


def _text(sizes: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in sizes)}]"
