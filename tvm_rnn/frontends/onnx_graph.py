"""An ONNX graph's values: tensors that are read when they are asked for, declared inputs and outputs.

In: a model, from `onnx_file.py`. Out: `GraphSteps`, to which `onnx.py` adds nodes; and what is wrong with declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_rnn.network.program import Declared

from .fields import Unreadable
from .folding import Steps
from .onnx_file import Array, Source, stored_elements, tensor_array, type_name

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

RECURRENT = ("RNN", "LSTM", "GRU")
BODIES = ("Scan", "Loop")  # nodes with one step of a recurrence in them


def label(node: NodeProto) -> str:
    """How messages name a node."""
    name = node.name or next(filter(None, node.output), "")
    return f"{node.op_type} {name!r}"


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node has for attributes."""
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


class GraphSteps(Steps):
    """The values of a graph, in the making."""

    def __init__(self, source: Source) -> None:
        self.source, self.graph = source, source.model.graph
        graphs = [self.graph, *(body for node in self.graph.node for body in bodies(node))]
        super().__init__(stored=sum(stored_elements(tensor, source) for g in graphs for tensor in g.initializer))
        self.problems: list[str] = []
        self.tensors = {t.name: t for t in self.graph.initializer}
        self.inputs = self._declared(self.graph.input)
        self.outputs = self._declared(self.graph.output)
        self.taken = {name for n in self.graph.node for name in (*n.input, *n.output)} | {*self.tensors, *self.declared}

    def _declared(self, values: Sequence[ValueInfoProto]) -> list[Declared]:
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

    def constant(self, name: str) -> Array | None:
        """The value, if it does not depend on inputs. Raises Unreadable where the file does not hold it."""
        if name not in self.constants and name in self.tensors:
            self.constants[name] = tensor_array(self.tensors[name], self.source)
            self.dtypes.setdefault(name, type_name(self.tensors[name].data_type))
        return self.constants.get(name)

    def is_constant(self, name: str) -> bool:
        """Also one that was not read yet."""
        return name in self.tensors or name in self.constants
