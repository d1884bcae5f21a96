"""ONNX operators that the runtime's table has not, with their neighbours: graphs that TVM's Relax compiles.

In: a model's steps, where such operators are steps of their own (COMPILED, one node each). Out: the same steps, where
what lies together is one step with a `Graph` of calls, as `tvm_rnn/surroundings/` has it; or problems in words.

Neighbours go along if they are arithmetic on floats: what computes shapes stays with the runtime's table.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.network.program import COMPILED, Step
from tvm_rnn.surroundings.calls import Graph, Unsupported, calls_of

from .fields import Unreadable, Wrong
from .onnx_file import TYPES, import_onnx
from .stacks import needed, ordered

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TypeProto

    from .onnx_nodes import GraphSteps

FLOATS = ("float32", "float64")
# Operators of the runtime's table that go along: compared with ONNX's own tests too.
NEIGHBOURS = {"Add", "Sub", "Mul", "Div", "Abs", "Neg", "Sqrt", "Exp", "Reciprocal", "Clip", "Transpose", "Concat"}
NEIGHBOURS |= {"Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softsign"}
NEIGHBOURS |= {"BatchNormalization", "Squeeze", "Unsqueeze", "MatMul", "Gemm"}


@dataclass
class Region:
    """Steps that become one. names: what they read and make."""

    steps: list[Step]

    @property
    def made(self) -> list[str]:
        return [name for step in self.steps for name in step.outputs if name]

    @property
    def read(self) -> list[str]:
        made = {*self.made}
        return list(dict.fromkeys(n for step in self.steps for n in step.inputs if n and n not in made))

    @property
    def label(self) -> str:
        return next(step.node for step in self.steps if step.op == COMPILED)


def with_regions(values: GraphSteps, steps: Sequence[Step], wanted: Iterable[str]) -> tuple[list[Step], Wrong]:
    """The steps with a Graph in each COMPILED one, and what Relax cannot do."""
    problems, result, outputs = Wrong(), list(steps), [*wanted]
    if not any(step.op == COMPILED for step in steps):
        return result, problems
    types = _Types(values, steps)
    large = _regions(values, types, result)
    for region in large:
        try:
            result = _put(result, region, _compiled(values, types, region, result, outputs))
        except Unreadable:  # what is refused may be a neighbour: without them
            for step in (own for own in region.steps if own.op == COMPILED):
                with problems.noting():
                    alone = Region([step])
                    result = _put(result, alone, _compiled(values, types, alone, result, outputs))
    return needed(ordered(result), outputs), problems


def _put(steps: Sequence[Step], region: Region, one: Step) -> list[Step]:
    gone = {id(step) for step in region.steps}
    return ordered([*(step for step in steps if id(step) not in gone), one])


class _Types:
    """The types of the model's values by name, as far as ONNX's shape inference says."""

    def __init__(self, values: GraphSteps, steps: Sequence[Step]) -> None:
        onnx, model = import_onnx(), values.source.model
        with contextlib.suppress(Exception):  # of a model that is too large; of another class in each version
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        graph = model.graph
        self.types: dict[str, TypeProto] = {v.name: v.type for v in (*graph.input, *graph.output, *graph.value_info)}
        self.axes: dict[str, str] = {}
        for step in steps:  # a step's values may have other names by now
            node = next((values.nodes[name] for name in step.outputs if name in values.nodes), None)
            for own, name in zip(step.inputs, node.input if node is not None else (), strict=False):
                if name in self.types:
                    self.types.setdefault(own, self.types[name])

    def dtype(self, name: str) -> str:
        own = self.types.get(name)
        return TYPES.get(own.tensor_type.elem_type, ("",))[0] if own is not None else ""

    def shape(self, name: str) -> list[int | str] | None:
        """Sizes and names; None: how many axes there are is not known."""
        own = self.types.get(name)
        if own is None or not own.tensor_type.HasField("shape"):
            return None
        return [
            int(d.dim_value)
            if d.HasField("dim_value") and d.dim_value >= 0
            else self._axis(d.dim_param or f"{name}.{i}")
            for i, d in enumerate(own.tensor_type.shape.dim)
        ]

    def _axis(self, name: str) -> str:
        return self.axes.setdefault(name, f"n{len(self.axes)}")


def _regions(values: GraphSteps, types: _Types, steps: Sequence[Step]) -> list[Region]:
    """What can be one function each: no way leads from a region to itself through other steps."""
    makers = {output: step for step in steps for output in step.outputs}
    inside = {id(step): step.op == COMPILED or _goes_along(values, types, step) for step in steps}
    level: dict[int, int] = {}
    for step in ordered(steps):
        before = [makers[name] for name in step.inputs if name in makers]
        level[id(step)] = max((level[id(p)] + (inside[id(p)] != inside[id(step)]) for p in before), default=0)
    found: dict[int, list[Step]] = {}
    for step in ordered(steps):
        if inside[id(step)]:
            found.setdefault(level[id(step)], []).append(step)
    return [Region(part) for part in found.values() if any(step.op == COMPILED for step in part)]


def _goes_along(values: GraphSteps, types: _Types, step: Step) -> bool:
    """Whether a step of the runtime's table may be part of a region."""
    if step.op not in NEIGHBOURS or not all(name in values.nodes for name in step.outputs):
        return False
    read = [name for name in step.inputs if name and not values.is_constant(name)]
    return bool(read) and all(types.dtype(name) in FLOATS for name in (*read, *step.outputs))


def _compiled(values: GraphSteps, types: _Types, region: Region, steps: Sequence[Step], wanted: Sequence[str]) -> Step:
    own = {id(step) for step in region.steps}
    used = {name for step in steps if id(step) not in own for name in step.inputs} | {*wanted}
    outputs = tuple(name for name in region.made if name in used)
    inputs = tuple(name for name in region.read if not values.is_constant(name))
    graph = _graph(values, types, region, inputs, outputs)
    return Step(COMPILED, inputs, outputs, {"graph": graph}, region.label)


def _graph(values: GraphSteps, types: _Types, region: Region, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The region as a Graph. Raises Unreadable."""
    onnx = import_onnx()
    helper, names = onnx.helper, {name: f"v{i}" for i, name in enumerate([*region.read, *region.made])}
    given = []
    for name in inputs:
        shape, dtype = types.shape(name), types.dtype(name)
        if shape is None or not dtype:
            raise Unreadable(f"{region.label}: how many axes {name!r} has is not known")
        if dtype not in FLOATS:
            raise Unreadable(f"{region.label}: {name!r} is {dtype}; {' and '.join(FLOATS)} are supported")
        code = next(code for code, (own, _) in TYPES.items() if own == dtype)
        given.append(helper.make_tensor_value_info(names[name], code, shape))
    made = [helper.make_tensor_value_info(names[name], 0, None) for name in outputs]
    fixed = [
        onnx.numpy_helper.from_array(values.constant(name), names[name])
        for name in region.read
        if values.is_constant(name)
    ]
    nodes = [_renamed(values.nodes[next(filter(None, step.outputs))], step, names) for step in region.steps]
    graph = helper.make_graph(nodes, "region", given, made, fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", values.source.opset)])
    return read_graph(model, region.label)


def read_graph(model: ModelProto, label: str) -> Graph:
    """A model without networks as a Graph. label: what messages name. Raises Unreadable."""
    from tvm.relax.frontend.onnx import from_onnx

    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot read
            warnings.simplefilter("ignore")
            return calls_of(from_onnx(model, keep_params_in_input=False))
    except Unsupported as reason:
        raise Unreadable(f"{label}: {reason}") from None
    except Exception as reason:  # of many classes, of TVM and of Python
        text = (str(reason).strip().splitlines() or [type(reason).__name__])[-1]
        raise Unreadable(f"{label}: TVM does not read it: {text:.200}") from None


def _renamed(node: NodeProto, step: Step, names: dict[str, str]) -> NodeProto:
    own = type(node)()
    own.CopyFrom(node)
    del own.input[:], own.output[:]
    own.input.extend(names.get(name, "") for name in step.inputs)
    own.output.extend(names.get(name, "") for name in step.outputs)
    return own
