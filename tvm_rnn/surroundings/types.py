"""The dtypes and sizes of a program's values, by name, as far as ONNX's shape inference says.

In: a program, and the networks that it runs. Out: `Types`. Sizes that have no name in the file get one each; what a
network makes follows from what it reads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_rnn.dtypes import held_dtype
from tvm_rnn.network.program import NETWORK, Step
from tvm_rnn.network.rnn import RNN

from .nodes import CODES, DTYPES, Values, as_inferred, import_onnx, node_of, opset_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

SMALL = 1024  # elements of constants that may be shapes


class Types:
    """Types by name. nodes: the steps' own, by what they make first; None: a step that is no operator."""

    def __init__(self, values: Values, networks: Sequence[RNN]) -> None:
        self.values, self.steps, self.networks = values, values.program.steps, networks
        self.axes: dict[str, str] = {}
        self.types: dict[str, TypeProto] = {}
        self.nodes: dict[str, NodeProto | None] = {}
        make = import_onnx().helper.make_tensor_type_proto
        for own in values.program.inputs:
            shape = None if own.shape is None else [_named(own.name, i, n) for i, n in enumerate(own.shape)]
            self.types[own.name] = make(CODES[own.dtype], shape)
        self._infer()
        while self._made_by_networks():
            self._infer()

    def dtype(self, name: str) -> str:
        if (value := self.values.constant(name)) is not None:
            return value.dtype.name
        own = self.types.get(name)
        return DTYPES.get(own.tensor_type.elem_type, "") if own is not None else ""

    def _before(self, step: Step) -> str:
        """The dtype of a step's first input, as what makes it says where no type is known yet."""
        makers = {name: own for own in self.steps for name in own.outputs}
        name = next(filter(None, step.inputs), "")
        while not (found := self.dtype(name)) and (maker := makers.get(name)) is not None:
            if maker.op == NETWORK:
                return held_dtype(self.networks[maker.network].dtype)
            if "dtype" in maker.attributes:
                return str(maker.attributes["dtype"])
            name = next(filter(None, maker.inputs), "")
        return found

    def shape(self, name: str) -> list[int | str] | None:
        """Sizes and names; None: how many axes there are is not known."""
        dims = self._dims(name)
        return None if dims is None else [d if isinstance(d, int) else self._axis(d) for d in dims]

    def _dims(self, name: str) -> list[int | str] | None:
        """Sizes, and the names that ONNX's inference has for them."""
        if (value := self.values.constant(name)) is not None:
            return [*value.shape]
        own = self.types.get(name)
        if own is None or not own.tensor_type.HasField("shape"):
            return None
        return [
            int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or f"{name}.{i}"
            for i, d in enumerate(own.tensor_type.shape.dim)
        ]

    def _axis(self, name: str) -> str:
        return self.axes.setdefault(name, f"n{len(self.axes)}")

    def said(self, text: str) -> str:
        """A text about sizes with the names that the file has for them."""
        names = {own: name for name, own in self.axes.items()}
        return re.sub(r"\bn\d+\b", lambda found: names.get(found[0], found[0]), text)

    def _infer(self) -> None:
        """Types of what steps make, of the types that are known."""
        helper = import_onnx().helper
        nodes: list[NodeProto] = []
        for step in self.steps:
            name = next(filter(None, step.outputs))
            if self.nodes.get(name) is None:
                self.nodes[name] = node_of(self.values, step, self._before(step))
            if (node := self.nodes[name]) is not None:
                nodes += as_inferred(node)
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(n for node in nodes for n in node.input if n and n not in made)
        small = [name for name in read if (value := self.values.constant(name)) is not None and value.size <= SMALL]
        inputs = [own for name in read if name not in small and (own := self._declared(name)) is not None]
        known = [helper.make_value_info(name, self.types[name]) for name in made if name in self.types]
        graph = helper.make_graph(nodes, "steps", inputs, [], [self._tensor(name) for name in small], value_info=known)
        version = helper.make_opsetid("", opset_of([step.op for step in self.steps]))
        for own in _inferred(helper.make_model(graph, opset_imports=[version])).graph.value_info:
            before = self.types.get(own.name)
            if before is None or not before.tensor_type.HasField("shape"):
                self.types[own.name] = own.type

    def _tensor(self, name: str) -> TensorProto:
        made: TensorProto = import_onnx().numpy_helper.from_array(self.values.constant(name), name)
        return made

    def _declared(self, name: str) -> ValueInfoProto | None:
        helper, found = import_onnx().helper, None
        if (value := self.values.constant(name)) is not None:
            found = helper.make_tensor_value_info(name, CODES[value.dtype.name], value.shape)
        elif name in self.types:
            found = helper.make_value_info(name, self.types[name])
        return found

    def _made_by_networks(self) -> bool:
        """Note what networks make, where what they read is known. Returns whether anything new was."""
        new = False
        for step in (own for own in self.steps if own.op == NETWORK and own.outputs[0] not in self.types):
            lead = self._dims(step.inputs[0])
            if lead is not None and len(lead) >= 2:
                self._note(step, self.networks[step.network], lead[:2])
                new = True
        return new

    def _note(self, step: Step, net: RNN, lead: Sequence[int | str]) -> None:
        """lead: T and B of what the network reads."""
        (steps, batch), make = lead, import_onnx().helper.make_tensor_type_proto
        code, (y, *ends) = CODES[held_dtype(net.dtype)], step.outputs
        states = [layer.graph.states[i].shape for i in range(len(net.cell.states)) for layer in net.layers]
        shapes = [net.num_directions, batch]
        self.types[y] = make(code, [steps, batch, *net.output_shape])
        self.types |= {end: make(code, [*shapes, *own]) for end, own in zip(ends, states, strict=False) if end}


def _named(name: str, place: int, size: int | str | None) -> int | str:
    return f"{name}.{place}" if size is None else size


def _inferred(model: ModelProto) -> ModelProto:
    with contextlib.suppress(Exception):  # of a model that is too large; of another class in each version
        model = import_onnx().shape_inference.infer_shapes(model, data_prop=True)
    return model
