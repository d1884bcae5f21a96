"""What is around networks and came as graphs of calls: functions for the module's file, and their names in the program.

In: a network or a model with its program, a target. Out: the same whose program names functions, and these functions.
In a module for GPUs they run on the CPU beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from tvm import tirx

from tvm_rnn.cpu.pair_product import pair_products
from tvm_rnn.cpu.surroundings.host_function import HostFunction
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.network.model import Model
from tvm_rnn.network.program import COMPILED, Program, Step
from tvm_rnn.network.rnn import RNN
from tvm_rnn.surroundings.calls import Graph
from tvm_rnn.surroundings.regions import Problem, with_regions
from tvm_rnn.target import Target

Functions = dict[str, tirx.PrimFunc]


def with_functions(net: RNN | Model, target: Target) -> tuple[RNN | Model, Functions]:
    """The network with a program that a manifest can hold. Raises ConfigError."""
    program = net.program if isinstance(net, RNN | Model) else None  # what else it may be is said elsewhere
    networks = net.networks if isinstance(net, Model) else [net]
    if program is None or not all(isinstance(own, RNN) for own in networks):
        return net, {}
    found, functions = copy.copy(net), Functions()
    found.program = _compiled(program, networks, functions, target.host)
    return found, functions


def _compiled(program: Program, networks: Sequence[RNN], functions: Functions, target: Target) -> Program:
    """The program on functions, which are added."""
    regions, problems = with_regions(program, networks)
    if problems:
        got = "\n            ".join(dict.fromkeys(own.text for own in problems))
        what = "compile: operators around networks that cannot be compiled"
        raise ConfigError(message(what, got=got, do=_advice(program, problems)))
    steps, constants = list[Step](), dict(program.constants)
    for step in regions:
        if step.op == COMPILED:
            made = _function(step, f"around_{len(functions) // 2}", target)
            functions |= made.functions
            own = {f"{made.name}.{i}": value.array for i, value in enumerate(made.constants.buffers)}
            constants |= own
            attributes = {**_attributes(made), "operators": step.attributes["operators"]}
            step = replace(step, inputs=(*step.inputs, *own), attributes=attributes)
        steps.append(step)
    used = {name for step in steps for name in step.inputs} | {own.name for own in program.outputs}
    return replace(program, steps=tuple(steps), constants={n: v for n, v in constants.items() if n in used})


def _advice(program: Program, problems: Sequence[Problem]) -> str:
    """Which part of a file can be cut out of it: what comes before the operators that cannot be compiled."""
    inputs = [own.name for own in program.inputs]
    ends = list(dict.fromkeys(name for own in problems for name in own.reads if name not in inputs and "#" not in name))
    do = "leave these parts out of what is exported"
    if not ends:
        return do
    return f"cut off what comes before them: onnx.utils.extract_model(path, 'part.onnx', {inputs}, {ends}); or {do}"


def _function(step: Step, name: str, target: Target) -> HostFunction:
    graph = step.attributes["graph"]
    assert isinstance(graph, Graph)
    return HostFunction(name, graph, target.lanes("float32"), pair_products(target))


def _attributes(made: HostFunction) -> dict[str, object]:
    """What a runtime must know: the function, axes and dtype of each result, dtypes of the memory it needs, and which
    inputs have sizes for elements."""
    outputs = made.graph.outputs
    return {
        "function": made.name,
        "constants": len(made.constants.buffers),
        "axes": [len(value.shape) for value in outputs],
        "dtypes": [value.dtype for value in outputs],
        "memory": list(made.works),
        "numbers": list(made.graph.numbers),
    }
