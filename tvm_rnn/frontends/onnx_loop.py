"""ONNX's Loop over time as the Scan that it is: what its body gathers at the number of the step becomes a scan input.

In: a Loop node, from `onnx.py`. Out: the same as a Scan node, for `onnx_scan.py`, and the steps before it.

    Loop(M, true, h_0): x = Gather(X, i); h, y = f(x, h)   -->   Scan(h_0, Gather(X, [0 ... M - 1])): h, y = f(x, h)

What a body computes of the number alone (M - 1 - i, where it runs backwards) is computed for all steps at once.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import TYPE_CHECKING

from tvm_rnn.surroundings.nodes import import_onnx

from .fields import Unreadable, Wrong, integer
from .folding import Recurrent, held_dtype_of
from .onnx_file import Array, tensor_array, type_name
from .onnx_loop_condition import without_condition
from .onnx_nodes import GraphSteps, attributes_of, bodies, constant_of, label, ordinary_attributes
from .onnx_scan import read_scan
from .onnx_scan_body import unsupported

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

PLACES = ("Identity", "Add", "Sub", "Mul")  # what may be done with the number of the step before it is a place
ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE"}  # ONNX's names, where they are not ours in capitals


def read_loop(steps: GraphSteps, node: NodeProto, found: list[Recurrent]) -> None:
    """Add a Loop, as `read_scan` adds a Scan. Raises Unreadable with all that is wrong."""
    attributes_of(node, steps.source.opset)
    if not (graphs := bodies(node)):
        raise Unreadable("it has no body")
    (body,) = graphs
    wrong, more = _misfits(node, body), functools.partial(unsupported, steps, body)
    wrong.check(more)
    if early := _ends_early(steps, node, body):
        with wrong.noting():
            node = without_condition(steps, node, early)
            (body,) = bodies(node)
    wrong.check(more)
    rewritten = _Rewritten(steps, node, body)
    scan = rewritten.scan()
    rewritten.wrong.check(more)
    read_scan(steps, scan, found, label(node))


def _misfits(node: NodeProto, body: GraphProto) -> Wrong:
    """What the node and its body do not agree on, or do not say."""
    wrong = Wrong()
    if len(body.input) != len(node.input) or len(body.output) != len(node.output) + 1:
        got = f"{len(body.input)} inputs and {len(body.output)} outputs"
        wrong.append(f"its body has {got}, it has {len(node.input)} and {len(node.output)}")
    if not node.input[0]:
        wrong.append("it has no number of steps, and ends by a condition")
    if body.sparse_initializer:
        wrong.append("sparse initializers are not supported")
    if body.input and len(body.input[0].type.tensor_type.shape.dim):
        wrong.append(f"its body has {body.input[0].name!r}, the number of the step, with axes")
    made = [*(t.name for t in body.initializer), *(info.name for info in body.input)]
    made += [name for own in body.node for name in own.output if name]
    wrong += [f"value {name!r} of its body is made twice" for name, count in Counter(made).items() if count > 1]
    return wrong


def _ends_early(steps: GraphSteps, node: NodeProto, body: GraphProto) -> str:
    """Why it may end before its last step; "" where it cannot."""
    if node.input[1]:
        value = steps.constant(node.input[1])
        if value is None or not value.all():
            return f"its condition {node.input[1]!r} is not always true"
    makers = {output: own for own in body.node for output in own.output}
    name, seen = body.output[0].name, set[str]()
    while name in makers and makers[name].op_type == "Identity" and name not in seen:
        seen.add(name)
        name = next(iter(makers[name].input), "")
    if name == body.input[1].name:
        return ""
    try:
        own = _constants(steps, body)
        value = own[name] if name in own else None if name in makers else steps.constant(name)
    except Unreadable as reason:
        return str(reason)
    return "" if value is not None and value.all() else f"its body computes the condition {name!r} to go on"


def _constants(steps: GraphSteps, body: GraphProto) -> dict[str, Array]:
    """The body's own, as far as they can be read: what is wrong with one is said where it is used."""
    found = {}
    for tensor in body.initializer:
        with contextlib.suppress(Unreadable):
            found[tensor.name] = tensor_array(tensor, steps.source)
    for node in body.node:
        if node.op_type == "Constant" and len(node.output) == 1:
            with contextlib.suppress(Unreadable):
                found[node.output[0]], _ = constant_of(steps, node)
    return found


class _Rewritten:
    """A Loop's body without its number of the step."""

    def __init__(self, steps: GraphSteps, node: NodeProto, body: GraphProto) -> None:
        self.steps, self.node, self.body, self.where = steps, node, body, label(node)
        self.onnx = import_onnx()
        self.inside = {name for own in body.node for name in own.output} | {info.name for info in body.input}
        self.inside |= {tensor.name for tensor in body.initializer}
        self.own = _constants(steps, body)
        count = steps.emit("Reshape", [node.input[0], steps.keep([])], self.where)
        self.every = steps.emit("Range", [steps.keep(0), count, steps.keep(1)], self.where)
        self.places = {body.input[0].name: self.every}  # by the body's name: the value of the model for all steps
        self.given: list[tuple[ValueInfoProto, str, int]] = []  # scan inputs: ours, the model's value, its axis T
        self.wrong = Wrong()

    def scan(self) -> NodeProto:
        """The Scan node."""
        helper, body = self.onnx.helper, self.body
        kept = self._read_later([own for own in body.node if not self._moved(own)])
        count, held = body.input[0].name, body.input[1].name
        read = {name for own in kept for name in own.input} | {info.name for info in body.output[1:]}
        if held in read:
            self.wrong.append(f"its body computes with {held!r}, the condition")
        if count in read:
            info = helper.make_tensor_value_info(count, self.onnx.TensorProto.INT64, [])
            self.given.append((info, self.every, 0))
        states = list(body.input)[2:]
        if not self.given and states:
            self.given.append(self._nothing(states[0]))
        graph = helper.make_graph(
            kept,
            body.name or "body",
            [*states, *(info for info, _, _ in self.given)],
            list(body.output)[1:],
            list(body.initializer),
        )
        return helper.make_node(
            "Scan",
            [*self.node.input[2:], *(value for _, value, _ in self.given)],
            list(self.node.output),
            name=self.node.name,
            body=graph,
            num_scan_inputs=len(self.given),
            scan_input_axes=[axis for _, _, axis in self.given] or None,
        )

    def _nothing(self, state: ValueInfoProto) -> tuple[ValueInfoProto, str, int]:
        """Zeros in the place of scan inputs, for a body that takes none: one for each row and step."""
        steps, where, first = self.steps, self.where, self.node.input[2]
        kind, dims = state.type.tensor_type.elem_type, state.type.tensor_type.shape.dim[:1]
        sizes = [steps.emit("Reshape", [self.node.input[0], steps.keep([1])], where)]
        if dims:
            sizes.append(
                steps.emit("Slice", [steps.emit("Shape", [first], where), *map(steps.keep, ([0], [1]))], where)
            )
        shape = steps.emit("Concat", [*sizes, steps.keep([1])], where, axis=0)
        zeros = steps.emit(
            "Expand", [steps.keep(0.0, held_dtype_of(steps.dtype(first) or type_name(kind))), shape], where
        )
        own = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims]
        return self.onnx.helper.make_tensor_value_info(steps.fresh("nothing"), kind, [*own, 1]), zeros, 0

    def _read_later(self, nodes: list[NodeProto]) -> list[NodeProto]:
        """Those that a result needs: the number of the step and the condition go where nobody reads them."""
        wanted, kept = {info.name for info in list(self.body.output)[1:]}, []
        for own in reversed(nodes):
            if not wanted.isdisjoint(own.output):
                wanted.update(own.input)
                kept.append(own)
        return kept[::-1]

    def _moved(self, own: NodeProto) -> bool:
        """Whether a node is not the body's any more: it takes a step of a value of the model. What computes a place is
        computed for all steps at once, too."""
        with self.wrong.noting(f"{label(own)} in its body: "):
            if own.op_type == "Gather" and len(own.input) == 2 and own.input[1] in self.places:
                return self._taken(own)
            if own.op_type in PLACES and not self.places.keys().isdisjoint(own.input):
                values = [self._number(name) for name in own.input]
                if all(values):
                    self.places[own.output[0]] = self.steps.emit(own.op_type, [v for v in values if v], self.where)
        return False

    def _taken(self, own: NodeProto) -> bool:
        data = own.input[0]
        if data in self.inside:
            return False
        if not self.steps.known(data):
            raise Unreadable(f"value {data!r} is missing, or made later")
        axis = integer(ordinary_attributes(self.steps, own), "axis", 0)
        info = self._declared(own.output[0], data, axis)
        value = self.steps.emit("Gather", [data, self.places[own.input[1]]], self.where, axis=axis)
        self.given.append((info, value, axis))
        return True

    def _number(self, name: str) -> str | None:
        """The model's value for a place in the body, or for one whole number that is the same for all steps."""
        if name in self.places:
            return self.places[name]
        value = self.own.get(name)
        if value is not None and value.ndim == 0 and value.dtype.kind == "i":
            return self.steps.keep(value)
        return name if name not in self.inside and _is_number(self.steps, name) else None

    def _declared(self, name: str, data: str, axis: int) -> ValueInfoProto:
        """What the body has at a place of a value of the model."""
        for info in self.body.value_info:
            if info.name == name and info.type.tensor_type.HasField("shape"):
                return info
        value, declared = self.steps.constant(data), self.steps.declared.get(data)
        shape: list[int | str | None] | None = None
        if value is not None:
            shape = [*value.shape]
        elif declared is not None and declared.shape is not None:
            shape = list(declared.shape)
        if shape is None or not -len(shape) <= axis < len(shape):
            raise Unreadable(f"the shape of {data!r} is not known, or it has no axis {axis}")
        shape.pop(axis)
        dtype = self.steps.dtypes.get(data) or ("undefined" if value is None else value.dtype.name)
        element = self.onnx.TensorProto.DataType.Value(ELEMENTS.get(dtype, dtype.upper()))
        return self.onnx.helper.make_tensor_value_info(name, element, shape)


def _is_number(steps: GraphSteps, name: str) -> bool:
    """Whether a value of the model has no axes: a constant, an input, or what comes of those and of sizes."""
    makers = steps.makers
    stack, seen = [name], set[str]()
    while stack:
        name = stack.pop()
        value, declared, step = steps.constant(name), steps.declared.get(name), makers.get(name)
        if name in seen or (value is not None and value.ndim == 0) or (declared is not None and declared.shape == ()):
            continue
        seen.add(name)
        if step is None or step.op not in (*PLACES, "Cast", "Gather", "Size"):
            return False
        if step.op == "Gather":  # a number of a list of numbers
            data = makers.get(step.inputs[0])
            if data is None or data.op != "Shape":
                return False
            stack.append(step.inputs[1])
        elif step.op != "Size":
            stack += step.inputs
    return True
