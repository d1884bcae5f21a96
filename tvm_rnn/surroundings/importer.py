"""TVM's importer of ONNX graphs, with sizes as expressions, and with the forms that it has not or reads otherwise.

In: a model without networks whose nodes are of one operator set. Out: `Imported`: a Relax module, what is to be looked
at when it runs, and which sizes are elements of inputs.

What exporters compute shapes of (Shape, Gather, Mul, Concat ...) stays numbers (`sizes.py`) as long as it can; operands
whose sizes have different names are aligned, as a size of 1 goes with every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from .demands import Demand
from .forms import FORMS
from .graph_node import Asked, Bound, Item, Node
from .sizes import MOST_SIZES, computed, sizes_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

# Inputs that say how large results are, by place; where they are inputs of the model, their elements are sizes.
SHAPES = {"Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,)}
ALIGNED = {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Less", "LessOrEqual", "Greater"}
ALIGNED |= {"GreaterOrEqual", "Equal", "Where", "Max", "Min", "Sum", "Mean", "PRelu"}
MOST_GROUPS, WIDE = 8, 8  # of a convolution that becomes several; input channels of each


@dataclass
class Imported:
    """bounds: of the module's last outputs, which are there for these. demands: on sizes. numbers: of an input by its
    place, the names of sizes that its elements are."""

    module: tvm.IRModule
    bounds: list[Bound]
    demands: list[Demand]
    numbers: dict[int, list[tirx.Var]]


def imported(model: ModelProto) -> Imported:
    """A model as a Relax module. Raises what TVM raises, of many classes."""
    own = Importer()
    module = own.from_onnx(model.graph, max(entry.version for entry in model.opset_import))
    asked, places = own.asked, [name for name, _ in own.asked.given]
    return Imported(module, asked.bounds, asked.demands, {places.index(name): n for name, n in asked.numbers.items()})


class Importer(ONNXGraphImporter):
    """Reads one graph."""

    def __init__(self) -> None:
        super().__init__({}, "float32")
        self.asked = Asked(self.bb)

    def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
        """Said where an operator is read."""

    def _parse_graph_input(self, graph: GraphProto) -> None:
        super()._parse_graph_input(graph)
        self.asked.given = [*self._inputs.items()]
        for node in graph.node:
            for place in SHAPES.get(node.op_type, ()):
                name = node.input[place] if place < len(node.input) else ""
                if name in self._inputs and name not in self.asked.numbers:
                    self._as_sizes(name)

    def _as_sizes(self, name: str) -> None:
        """One more argument of the function, whose sizes are the elements of an input."""
        kind = self._inputs[name].ty
        length = kind.shape.values[0] if kind.shape is not None and kind.ndim == 1 else None
        if str(kind.dtype) == "int64" and isinstance(length, tirx.IntImm) and int(length) <= MOST_SIZES:
            self.asked.numbers[name] = [tirx.Var(f"{name}_{i}", "int64") for i in range(int(length))]
            self._inputs[f"{name}.sizes"] = relax.Var(f"{name}_sizes", relax.ShapeType(self.asked.numbers[name]))

    def _construct_nodes(self, graph: GraphProto) -> None:
        for node in graph.node:
            attributes = self._parse_attr(node.attribute)
            attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
            inputs = onnx_input(self._nodes[name] if name else None for name in node.input)
            made = self._made(Node(self.asked, node.op_type, inputs, attributes))
            if (
                isinstance(made, relax.Expr)
                and isinstance(made.ty, relax.TupleType)
                and not isinstance(made, relax.Tuple)
            ):
                made = [self.bb.emit(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]
            parts = [*made] if isinstance(made, relax.Tuple | list) else [made]
            self._nodes.update({name: part for name, part in zip(node.output, parts, strict=False) if name})
        for output in graph.output:
            self._nodes[output.name] = self.asked.array(self._nodes[output.name])
        for bound in self.asked.bounds:
            graph.output.add().name = name = f"bound.{len(graph.output)}"
            self._nodes[name] = bound.value

    def _parts(self, made: Item) -> list[Item]:
        """The values of which there may be several."""
        if isinstance(made, relax.Tuple | list):
            return [*made]
        if isinstance(made, np.ndarray) or not isinstance(made.ty, relax.TupleType):
            return [made]
        return [self.bb.emit(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]

    def _made(self, node: Node) -> Item:
        """A value, several as a tuple or a list, or sizes."""
        if node.op in ("Shape", "Size"):
            dims = sizes_of(node.shape(node.inputs[0]))
            if node.op == "Size":
                return computed("Size", [dims], {})
            return dims[int(node.attributes.get("start", 0)) : node.attributes.get("end")]
        given = [None if value is None else node.known(value) for value in node.inputs]
        if any(isinstance(value, np.ndarray) for value in node.inputs) and all(
            known is not None or value is None for known, value in zip(given, node.inputs, strict=True)
        ):
            found = computed(node.op, given, node.attributes)
            if found is not None:
                return relax.const(found, "bool") if found.dtype == bool else found
        if node.op in FORMS and (made := FORMS[node.op](node)) is not None:
            return self.bb.normalize(made) if isinstance(made, relax.Expr) else made
        return self._standard(node)

    def _standard(self, node: Node) -> Item:
        """What TVM's own importer makes of it, on operands that go together."""
        inputs = [None if value is None else self.asked.array(value) for value in node.inputs]
        if node.op in ALIGNED:
            inputs = node.aligned(inputs)
        if node.op == "Conv" and (groups := _groups(node, inputs)):
            return self._joined(node, groups)
        return self._convert_operator(node.op, onnx_input(inputs), node.attributes, self.opset)

    def _joined(self, node: Node, groups: list[list[relax.Expr | None]]) -> relax.Expr:
        """Convolutions of these operands, with their channels side by side."""
        own = {**node.attributes, "group": 1}
        made = [self._convert_operator(node.op, onnx_input(inputs), {**own}, self.opset) for inputs in groups]
        return self.bb.normalize(relax.op.concat([self.bb.normalize(part) for part in made], 1))


def _groups(node: Node, inputs: Sequence[relax.Expr | None]) -> list[list[relax.Expr | None]]:
    """The operands of each group of a convolution, where groups are few and wide: each is a product of matrices then.
    [] of others."""
    groups, (x, filters, bias) = int(node.attributes.get("group", 1)), [*inputs, None][:3]
    weights, shift = _constant(filters), _constant(bias)
    if not 1 < groups <= MOST_GROUPS or weights is None or (bias is not None and shift is None):
        return []
    rows, wide = weights.shape[:2]
    if wide < WIDE or rows % groups or node.shape(x)[1] != wide * groups:
        return []
    data = node.bb.emit(relax.op.split(x, groups, 1))
    shifts = [None] * groups if shift is None else [relax.const(own) for own in np.split(shift, groups)]
    own = [relax.const(part) for part in np.split(weights, groups)]
    return [[node.bb.emit(relax.TupleGetItem(data, i)), own[i], shifts[i]] for i in range(groups)]


def _constant(value: relax.Expr | None) -> np.ndarray | None:
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None
