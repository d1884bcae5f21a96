"""Operators around networks, what lies together in one function: graphs that TVM's Relax compiles.

In: a program, and the networks that it runs. Out: its steps, where what lies together is one step (COMPILED) with a
`Graph` of calls; or problems in words.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tvm_rnn.network.program import COMPILED, NETWORK, Program, Step, needed, ordered
from tvm_rnn.network.rnn import RNN

from .calls import Graph, Look, Unsupported, calls_of
from .nodes import CODES, Values, import_onnx, opset_of, renamed
from .sizes import ARITHMETIC, MOVES
from .types import Types

if TYPE_CHECKING:
    from onnx import ModelProto

SIZES = {*MOVES, *ARITHMETIC, "Cast", "ReduceProd"}  # what is done with sizes
WHOLE = ("int32", "int64")


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


@dataclass(frozen=True)
class Problem:
    """What Relax does not read, in words. reads: the values that it would be given."""

    text: str
    reads: tuple[str, ...]


def with_regions(program: Program, networks: Sequence[RNN]) -> tuple[list[Step], list[Problem]]:
    """The steps, each of which is a network or a COMPILED one with a Graph; and what can be neither."""
    values = Values(program)
    return _Regions(values, Types(values, networks)).compiled()


@dataclass
class _Regions:
    """A model's steps in the making. problems: what Relax does not read."""

    values: Values
    types: Types
    problems: list[Problem] = field(default_factory=list)

    @property
    def steps(self) -> Sequence[Step]:
        return self.values.program.steps

    @property
    def wanted(self) -> list[str]:
        return [own.name for own in self.values.program.outputs]

    def compiled(self) -> tuple[list[Step], list[Problem]]:
        networks = [step for step in self.steps if step.op == NETWORK]
        result = [*networks, *(step for region in self.found() for step in self.readable(region))]
        return needed(ordered(result), self.wanted), self.problems

    def readable(self, region: Region) -> list[Step]:
        """The region as a step; in halves where Relax does not read all of it at once, and theirs."""
        try:
            return [self.step(region)]
        except Unsupported as reason:
            half = len(region.steps) // 2
            if not half:
                reads = tuple(name for name in region.read if not self.is_constant(name))
                self.problems.append(Problem(str(reason), reads))
                return []
            return [own for part in (region.steps[:half], region.steps[half:]) for own in self.readable(Region(part))]

    def found(self) -> list[Region]:
        """What can be one function each: no way leads from a region to itself through a network."""
        makers = {output: step for step in self.steps for output in step.outputs}
        level: dict[int, int] = {}
        found: dict[int, list[Step]] = {}
        for step in ordered(self.steps):
            before = [makers[name] for name in step.inputs if name in makers]
            changes = ((own, (own.op == NETWORK) != (step.op == NETWORK)) for own in before)
            level[id(step)] = max((level[id(own)] + change for own, change in changes), default=0)
            if step.op != NETWORK:
                found.setdefault(level[id(step)], []).append(step)
        return [Region(part) for part in found.values()]

    def is_constant(self, name: str) -> bool:
        return self.values.constant(name) is not None

    def step(self, region: Region) -> Step:
        """Raises Unsupported."""
        own = {id(step) for step in region.steps}
        used = {name for step in self.steps if id(step) not in own for name in step.inputs} | {*self.wanted}
        outputs = tuple(name for name in region.made if name in used)
        whole = Region([*self.sizes_again(region), *region.steps])
        inputs = tuple(name for name in whole.read if not self.is_constant(name))
        graph = self.graph(whole, inputs, outputs)
        operators = [step.op for step in region.steps]
        return Step(COMPILED, inputs, outputs, {"graph": graph, "operators": operators}, region.label)

    def sizes_again(self, region: Region) -> list[Step]:
        """Steps of other regions that compute what this one reads from sizes of arrays that it can be given. Of sizes
        more is known than of elements of an array: what -1 stands for, and which are the same."""
        given = {*region.read, *(own.name for own in self.values.program.inputs)}
        sized, makers = set[str](), dict[str, Step]()
        for step in ordered(self.steps):
            rest = [name for name in step.inputs if name and name not in sized]
            starts = step.op in ("Shape", "Size") and {*rest} <= given
            goes_on = step.op in SIZES and len(rest) < len(step.inputs) and all(map(self.is_constant, rest))
            if starts or (goes_on and step.attributes.get("dtype", "int64") in WHOLE):
                sized.update(filter(None, step.outputs))
                makers.update((name, step) for name in step.outputs if name)
        stack, chosen = [name for name in region.read if name in makers], set[int]()
        while stack:
            step = makers[stack.pop()]
            if id(step) not in chosen:
                chosen.add(id(step))
                stack += [name for name in step.inputs if name in makers]
        return [step for step in ordered(self.steps) if id(step) in chosen]

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


def read_graph(model: ModelProto, label: str) -> Graph:
    """A model without networks as a Graph. label: what messages name. Raises Unsupported."""
    from .importer import imported

    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot read
            warnings.simplefilter("ignore")
            found = imported(model)
            graph = calls_of(found.module)
    except Unsupported as reason:
        raise Unsupported(f"{label}: {reason}") from None
    except Exception as reason:  # of many classes, of TVM and of Python
        text = (str(reason).strip().splitlines() or [type(reason).__name__])[-1]
        raise Unsupported(f"{label}: TVM does not read it: {text:.200}") from None
    count = len(graph.outputs) - len(found.bounds)
    graph.outputs, looked_at = graph.outputs[:count], graph.outputs[count:]
    pairs = zip(looked_at, found.bounds, strict=True)
    graph.looks = [Look(value, own.low, own.high, f"{label}: needed is {own.text}") for value, own in pairs]
    graph.demands += found.demands
    graph.numbers = found.numbers
    return graph
