"""ONNX operators that the runtime's table has not, with all that is around them: graphs that TVM's Relax compiles.

In: a model's steps, where such operators are steps of their own (COMPILED, one node each). Out: the same steps, where
what lies together is one step with a `Graph` of calls, as `tvm_rnn/surroundings/` has it; or problems in words.

What Relax cannot read, or reads otherwise than the standard says, stays with the runtime's table.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tvm_rnn.network.program import COMPILED, Step
from tvm_rnn.surroundings.calls import Graph, Unsupported, calls_of

from .fields import Unreadable, Wrong
from .onnx_again import OPSET, code_of, renamed
from .onnx_file import import_onnx
from .onnx_fit import Fit
from .onnx_types import Layers, Types
from .stacks import needed, ordered

if TYPE_CHECKING:
    from onnx import ModelProto

    from .onnx_nodes import GraphSteps

DTYPES = ("float32", "float64", "int64", "int32", "bool", "int8", "uint8")
FLOATS = DTYPES[:2]  # of operators that the runtime's table has not
# Rows of the runtime's table that Relax reads otherwise: the sign of a remainder, and the extremum of nothing.
OTHERWISE = {"Mod", "ReduceMax", "ReduceMin"}


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
        compiled = (step.node for step in self.steps if step.op == COMPILED)
        return next(compiled, self.steps[0].node)

    def count(self, op: str) -> int:
        return sum(step.op == op for step in self.steps)


def with_regions(
    values: GraphSteps, steps: Sequence[Step], wanted: Iterable[str], layers: Layers
) -> tuple[list[Step], Wrong]:
    """The steps with a Graph in each COMPILED one, and what Relax cannot do. layers: of each network."""
    if layers and not any(step.op == COMPILED for step in steps):
        return list(steps), Wrong()
    return _Regions(values, [*steps], [*wanted], Types(values, steps, layers)).compiled()


@dataclass
class _Regions:
    """A model's steps, and which of them Relax may have. refused: by what they make first."""

    values: GraphSteps
    steps: list[Step]
    wanted: list[str]
    types: Types
    refused: set[str] = field(default_factory=set)

    def compiled(self) -> tuple[list[Step], Wrong]:
        problems, result = Wrong(), self.steps
        for region in self.found():
            for part in self.readable(region, problems):
                gone = {id(step) for step in part.region.steps}
                result = ordered([*(step for step in result if id(step) not in gone), part.step])
        return needed(ordered(result), self.wanted), problems

    def readable(self, region: Region, problems: Wrong) -> list[Part]:
        """The region as a step; as several where Relax does not read all of it."""
        try:
            return [Part(region, self.step(region))]
        except Unreadable as reason:
            kept = [step for step in region.steps if step.op != COMPILED and not self.refuses(step)]
            if len(region.steps) == 1:
                problems.append(str(reason))
                return []
            if len(kept) + region.count(COMPILED) == len(region.steps):  # each by itself is well: numbers are not
                kept = [step for step in kept if self.is_float(step)]
            if len(kept) + region.count(COMPILED) == len(region.steps):
                kept = []
        self.refused |= {own.outputs[0] for own in region.steps if own.op != COMPILED and own not in kept}
        inside = {id(step) for step in region.steps}
        return [part for own in self.found(inside) for part in self.readable(own, problems)]

    def refuses(self, step: Step) -> bool:
        try:
            self.step(Region([step]))
        except Unreadable:
            return True
        return False

    def found(self, among: set[int] | None = None) -> list[Region]:
        """What can be one function each: no way leads from a region to itself through other steps."""
        makers = {output: step for step in self.steps for output in step.outputs}
        inside = {id(step): self.goes_along(step) and (among is None or id(step) in among) for step in self.steps}
        level: dict[int, int] = {}
        for step in ordered(self.steps):
            before = [makers[name] for name in step.inputs if name in makers]
            level[id(step)] = max((level[id(p)] + (inside[id(p)] != inside[id(step)]) for p in before), default=0)
        found: dict[int, list[Step]] = {}
        for step in ordered(self.steps):
            if inside[id(step)]:
                found.setdefault(level[id(step)], []).append(step)
        return [Region(part) for part in found.values()]

    def goes_along(self, step: Step) -> bool:
        """Whether a step may be part of a region."""
        if step.op == COMPILED:
            return True
        first = next(filter(None, step.outputs))
        if step.op in OTHERWISE or self.types.nodes.get(first) is None or step.outputs[0] in self.refused:
            return False
        if not Fit(self.types.shape, self.values.constant)(step):
            return False
        if step.op == "LayerNormalization" and any(step.outputs[1:]):  # its mean has other axes in Relax
            return False
        names = [name for name in (*step.inputs, *step.outputs) if name]
        known = (self.values.is_constant(name) or self.types.shape(name) is not None for name in names)
        return all(self.types.dtype(name) in DTYPES for name in names) and all(known)

    def is_float(self, step: Step) -> bool:
        names = [name for name in (*step.inputs, *step.outputs) if name and not self.values.is_constant(name)]
        return all(self.types.dtype(name) in FLOATS for name in names)

    def step(self, region: Region) -> Step:
        """Raises Unreadable."""
        own = {id(step) for step in region.steps}
        used = {name for step in self.steps if id(step) not in own for name in step.inputs} | {*self.wanted}
        outputs = tuple(name for name in region.made if name in used)
        inputs = tuple(name for name in region.read if not self.values.is_constant(name))
        graph = self.graph(region, inputs, outputs)
        return Step(COMPILED, inputs, outputs, {"graph": graph}, region.label)

    def graph(self, region: Region, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The region as a Graph. Raises Unreadable."""
        onnx, helper = import_onnx(), import_onnx().helper
        nodes = [self.types.nodes[next(filter(None, step.outputs))] for step in region.steps]
        read = dict.fromkeys(name for node in nodes if node is not None for name in node.input if name)
        names = {name: f"v{i}" for i, name in enumerate({**read, **dict.fromkeys(region.made)})}
        given = []
        for name in inputs:
            shape, dtype = self.types.shape(name), self.types.dtype(name)
            if shape is None or not dtype:
                raise Unreadable(f"{region.label}: how many axes {name!r} has is not known")
            if dtype not in DTYPES:
                raise Unreadable(f"{region.label}: {name!r} is {dtype}; {' and '.join(FLOATS)} are supported")
            given.append(helper.make_tensor_value_info(names[name], code_of(dtype), shape))
        made = [helper.make_tensor_value_info(names[name], 0, None) for name in outputs]
        known = [(name, self.values.constant(name)) for name in read]
        fixed = [onnx.numpy_helper.from_array(value, names[name]) for name, value in known if value is not None]
        again = [renamed(node, names) for node in nodes if node is not None]
        whole = helper.make_graph(again, "region", given, made, fixed)
        opset = max(OPSET, self.values.source.opset)
        graph = read_graph(helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)]), region.label)
        graph.demands = [replace(own, text=self.types.said(own.text)) for own in graph.demands]
        return graph


@dataclass
class Part:
    """A region, and the step that it becomes."""

    region: Region
    step: Step


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
