"""The dtypes and sizes of a program's values, by name, as far as ONNX's shape inference says.

In: a model's steps, networks among them. Out: `Types`. Sizes that have no name in the file get one each; what a
network makes follows from what it reads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_rnn.network.program import NETWORK, Step

from .folding import Recurrent, held_dtype_of
from .onnx_again import OPSET, code_of, node_of
from .onnx_file import TYPES, import_onnx
from .onnx_nodes import RECURRENT

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

    from .onnx_nodes import GraphSteps

SMALL = 1024  # elements of constants that may be shapes
Layers = Mapping[int, Sequence[Recurrent]]  # of each network


class Types:
    """Types by name. nodes: the steps' own, by what they make first; None: a step that is no operator."""

    def __init__(self, values: GraphSteps, steps: Sequence[Step], layers: Layers) -> None:
        self.values, self.steps, self.layers = values, steps, layers
        self.axes: dict[str, str] = {}
        self.types: dict[str, TypeProto] = {}
        self._note(_inferred(values.source.model))
        self.nodes: dict[str, NodeProto | None] = {}
        while self._networks():
            self._infer()
        self._infer()

    def dtype(self, name: str) -> str:
        if self.values.is_constant(name):
            value = self.values.constant(name)
            return "" if value is None else value.dtype.name
        own = self.types.get(name)
        return TYPES.get(own.tensor_type.elem_type, ("",))[0] if own is not None else ""

    def shape(self, name: str) -> list[int | str] | None:
        """Sizes and names; None: how many axes there are is not known."""
        dims = self._dims(name)
        return None if dims is None else [d if isinstance(d, int) else self._axis(d) for d in dims]

    def _dims(self, name: str) -> list[int | str] | None:
        """Sizes, and the names that ONNX's inference has for them."""
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

    def _note(self, model: ModelProto) -> None:
        graph = model.graph
        for value in (*graph.input, *graph.value_info, *graph.output):
            known = self.types.get(value.name)
            if known is None or not known.tensor_type.HasField("shape"):
                self.types[value.name] = value.type

    def _infer(self) -> None:
        """Types of what steps make, of the types that are known."""
        helper = import_onnx().helper
        nodes: list[NodeProto] = []
        for step in self.steps:
            name = next(filter(None, step.outputs))
            if self.nodes.get(name) is None:
                first = next(filter(None, step.inputs), "")
                self.nodes[name] = None if step.op == NETWORK else node_of(self.values, step, self.dtype(first))
            if (node := self.nodes[name]) is not None:
                nodes.append(node)
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(n for node in nodes for n in node.input if n and n not in made)
        small = [name for name in read if self.values.is_constant(name) and self._is_small(name)]
        inputs = [value for name in read if name not in small and (value := self._declared(name)) is not None]
        known = [helper.make_value_info(name, self.types[name]) for name in made if name in self.types]
        graph = helper.make_graph(nodes, "steps", inputs, [], [self._tensor(name) for name in small], value_info=known)
        opset = max(OPSET, self.values.source.opset)
        self._note(_inferred(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])))

    def _is_small(self, name: str) -> bool:
        value = self.values.constant(name)
        return value is not None and value.size <= SMALL

    def _tensor(self, name: str) -> TensorProto:
        made: TensorProto = import_onnx().numpy_helper.from_array(self.values.constant(name), name)
        return made

    def _declared(self, name: str) -> ValueInfoProto | None:
        helper, found = import_onnx().helper, None
        if (value := self.values.constant(name)) is not None:
            found = helper.make_tensor_value_info(name, code_of(value.dtype.name), value.shape)
        elif name in self.types:
            found = helper.make_value_info(name, self.types[name])
        return found

    def _networks(self) -> bool:
        """Note what networks make, where what they read is known. Returns whether anything new was."""
        helper, new = import_onnx().helper, False
        for step in (own for own in self.steps if own.op == NETWORK):
            layers, lead = self.layers[step.network], self._dims(step.inputs[0])
            if lead is None or len(lead) < 2 or any(layer.node.split()[0] not in RECURRENT for layer in layers):
                continue
            (steps, batch), states = lead[:2], len(layers[0].cell.states)
            y, *ends = step.outputs
            width = layers[-1].directions * layers[-1].hidden_size
            shapes = {y: [steps, batch, width]}
            for layer, end in zip([*layers] * states, ends, strict=False):
                shapes[end] = [layer.directions, batch, layer.hidden_size]
            code = code_of(held_dtype_of(layers[0].dtype))
            for name, shape in shapes.items():
                if name and name not in self.types:
                    self.types[name] = helper.make_tensor_type_proto(code, shape)
                    new = True
        return new


def _inferred(model: ModelProto) -> ModelProto:
    with contextlib.suppress(Exception):  # of a model that is too large; of another class in each version
        model = import_onnx().shape_inference.infer_shapes(model, data_prop=True)
    return model
