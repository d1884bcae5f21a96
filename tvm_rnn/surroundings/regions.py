"""Operators around networks, what lies together in one function: graphs that TVM's Relax compiles.

In: a program, and the networks that it runs. Out: its steps, where what lies together is one step (COMPILED) with a
`Graph` of calls; or problems in words.

What Relax cannot read, or reads otherwise than the standard says, stays with the runtime's table.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tvm_rnn.network.program import COMPILED, NETWORK, Program, Step, needed, ordered
from tvm_rnn.network.rnn import RNN

from .calls import Graph, Unsupported, calls_of
from .fit import Fit
from .nodes import CODES, Values, import_onnx, opset_of, renamed
from .types import Types

if TYPE_CHECKING:
    from onnx import ModelProto

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
        return self.steps[0].node or self.steps[0].op


def with_regions(program: Program, networks: Sequence[RNN], table: Collection[str]) -> tuple[list[Step], list[str]]:
    """The steps, each of which is a network, a COMPILED one with a Graph, or of the table; and what can be none."""
    values = Values(program)
    return _Regions(values, Types(values, networks), table).compiled()


@dataclass
class _Regions:
    """A model's steps, and which of them Relax may have. table: what can stay as it is. problems: what is neither.
    refused: by what they make first."""

    values: Values
    types: Types
    table: Collection[str]
    problems: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    @property
    def steps(self) -> Sequence[Step]:
        return self.values.program.steps

    @property
    def wanted(self) -> list[str]:
        return [own.name for own in self.values.program.outputs]

    def compiled(self) -> tuple[list[Step], list[str]]:
        result = [*self.steps]
        for region in self.found():
            for part in self.readable(region):
                gone = {id(step) for step in part.region.steps}
                result = ordered([*(step for step in result if id(step) not in gone), part.step])
        return needed(ordered(result), self.wanted), self.problems

    def readable(self, region: Region) -> list[Part]:
        """The region as a step. Where Relax does not read all of it: without what it reads nowhere, or in halves."""
        try:
            return [Part(region, self.step(region))]
        except Unsupported:
            if all(self.reads(step) for step in region.steps):
                half = len(region.steps) // 2
                parts = [Region(region.steps[:half]), Region(region.steps[half:])]
            else:
                inside = {id(step) for step in region.steps}
                parts = [Region([step for step in own.steps if id(step) in inside]) for own in self.found()]
                parts = [own for own in parts if own.steps]
            return [own for part in parts for own in self.readable(part)]

    def reads(self, step: Step) -> bool:
        """Whether Relax reads a step by itself; what neither it does nor the table is a problem."""
        try:
            self.step(Region([step]))
        except Unsupported as reason:
            self.refused.add(step.outputs[0])
            if step.op not in self.table:
                self.problems.append(str(reason))
        return step.outputs[0] not in self.refused

    def found(self) -> list[Region]:
        """What can be one function each: no way leads from a region to itself through other steps."""
        makers = {output: step for step in self.steps for output in step.outputs}
        inside = {id(step): self.goes_along(step) for step in self.steps}
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
        if step.op == NETWORK or step.outputs[0] in self.refused:
            return False
        if step.op not in self.table:
            return True
        if step.op in OTHERWISE or self.types.nodes.get(next(filter(None, step.outputs))) is None:
            return False
        if not Fit(self.types.shape, self.values.constant)(step):
            return False
        if step.op == "LayerNormalization" and any(step.outputs[1:]):  # its mean has other axes in Relax
            return False
        names = [name for name in (*step.inputs, *step.outputs) if name]
        return all(self.types.dtype(name) in DTYPES and self.types.shape(name) is not None for name in names)

    def is_constant(self, name: str) -> bool:
        return self.values.constant(name) is not None

    def step(self, region: Region) -> Step:
        """Raises Unsupported."""
        own = {id(step) for step in region.steps}
        used = {name for step in self.steps if id(step) not in own for name in step.inputs} | {*self.wanted}
        outputs = tuple(name for name in region.made if name in used)
        inputs = tuple(name for name in region.read if not self.is_constant(name))
        graph = self.graph(region, inputs, outputs)
        return Step(COMPILED, inputs, outputs, {"graph": graph}, region.label)

    def graph(self, region: Region, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The region as a Graph. Raises Unsupported."""
        onnx, helper = import_onnx(), import_onnx().helper
        nodes = [self.types.nodes[next(filter(None, step.outputs))] for step in region.steps]
        read = dict.fromkeys(name for node in nodes if node is not None for name in node.input if name)
        names = {name: f"v{i}" for i, name in enumerate({**read, **dict.fromkeys(region.made)})}
        given = []
        for name in inputs:
            shape, dtype = self.types.shape(name), self.types.dtype(name)
            if shape is None or not dtype:
                raise Unsupported(f"{region.label}: how many axes {name!r} has is not known")
            if dtype not in DTYPES:
                raise Unsupported(f"{region.label}: {name!r} is {dtype}; {' and '.join(FLOATS)} are supported")
            given.append(helper.make_tensor_value_info(names[name], CODES[dtype], shape))
        made = [helper.make_tensor_value_info(names[name], 0, None) for name in outputs]
        known = [(name, self.values.constant(name)) for name in read]
        fixed = [onnx.numpy_helper.from_array(value, names[name]) for name, value in known if value is not None]
        again = [renamed(node, names) for node in nodes if node is not None]
        whole = helper.make_graph(again, "region", given, made, fixed)
        version = helper.make_opsetid("", opset_of([step.op for step in region.steps]))
        graph = read_graph(helper.make_model(whole, opset_imports=[version]), region.label)
        graph.demands = [replace(own, text=self.types.said(own.text)) for own in graph.demands]
        return graph


@dataclass
class Part:
    """A region, and the step that it becomes."""

    region: Region
    step: Step


def read_graph(model: ModelProto, label: str) -> Graph:
    """A model without networks as a Graph. label: what messages name. Raises Unsupported."""
    from tvm.relax.frontend.onnx import from_onnx

    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot read
            warnings.simplefilter("ignore")
            return calls_of(from_onnx(model, keep_params_in_input=False))
    except Unsupported as reason:
        raise Unsupported(f"{label}: {reason}") from None
    except Exception as reason:  # of many classes, of TVM and of Python
        text = (str(reason).strip().splitlines() or [type(reason).__name__])[-1]
        raise Unsupported(f"{label}: TVM does not read it: {text:.200}") from None
