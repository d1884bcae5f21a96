"""What is around networks and came as graphs of calls: functions for the module's file, and their names in the program.

In: a network or a model with its program, a target. Out: the same whose program names functions, and these functions.
In a module for GPUs they are kernels; those that none can be made of run on the CPU beside it. Numbers are float32
around networks of 16 bits; kernels read and write the networks' own arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import tirx

from tvm_rnn.cpu.pair_product import pair_products
from tvm_rnn.cpu.surroundings.host_function import HostFunction
from tvm_rnn.cuda.surroundings.device_function import DeviceFunction, NotOnDevice
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.network.model import Model
from tvm_rnn.network.program import COMPILED, NETWORK, Program, Step
from tvm_rnn.network.rnn import RNN
from tvm_rnn.surroundings.calls import Graph
from tvm_rnn.surroundings.regions import Problem, with_regions
from tvm_rnn.target import Target

Functions = dict[str, tirx.PrimFunc]


@dataclass
class Around:
    """functions: for a CPU, by name. on_gpu: for a GPU. count: of graphs."""

    functions: Functions = field(default_factory=dict)
    on_gpu: list[DeviceFunction] = field(default_factory=list)
    count: int = 0


def with_functions(net: RNN | Model, target: Target) -> tuple[RNN | Model, Around]:
    """The network with a program that a manifest can hold. Raises ConfigError."""
    program = net.program if isinstance(net, RNN | Model) else None  # what else it may be is said elsewhere
    networks = net.networks if isinstance(net, Model) else [net]
    if program is None or not all(isinstance(own, RNN) for own in networks):
        return net, Around()
    found, around = copy.copy(net), Around()
    found.program = _compiled(program, networks, around, target)
    return found, around


def _compiled(program: Program, networks: Sequence[RNN], around: Around, target: Target) -> Program:
    """The program on functions, which are added."""
    regions, problems = with_regions(program, networks)
    if problems:
        got = "\n            ".join(dict.fromkeys(own.text for own in problems))
        what = "compile: operators around networks that cannot be compiled"
        raise ConfigError(message(what, got=got, do=_advice(program, problems)))
    steps, constants = list[Step](), dict(program.constants)
    halves = _halves(regions, networks, [own.name for own in program.outputs])
    for step in regions:
        if step.op == COMPILED:
            made, attributes = _made(step, around, target, halves)
            own = {f"{made.name}.{i}": value.array for i, value in enumerate(made.given)}
            constants |= own
            attributes["operators"] = step.attributes["operators"]
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


def _halves(steps: Sequence[Step], networks: Sequence[RNN], wanted: Sequence[str]) -> dict[str, str]:
    """The dtypes of 16 bits in which values lie on a GPU: of those that networks make, and of those that networks of
    one dtype alone are given and that no caller gets."""
    made, read = dict[str, str](), dict[str, set[str]]()
    for step in (own for own in steps if own.op == NETWORK):
        weights = step.attributes.get("weights", ())
        assert isinstance(weights, list | tuple)
        dtype, count = networks[step.network].dtype, len(step.inputs) - len(weights)
        made |= dict.fromkeys(step.outputs, dtype)
        for name in (step.inputs[0], *step.inputs[2:count]):
            read.setdefault(name, set()).add(dtype)
    given = {name: min(dtypes) for name, dtypes in read.items() if len(dtypes) == 1 and name not in wanted}
    return {name: dtype for name, dtype in (given | made).items() if dtype != held_dtype(dtype)}


def _made(
    step: Step, around: Around, target: Target, halves: Mapping[str, str]
) -> tuple[HostFunction | DeviceFunction, dict[str, object]]:
    """A function, which is added, and what a runtime must know of it: its name, axes and dtype of each result, and of
    one for a CPU dtypes of the memory that it needs, and which inputs have sizes for elements; in a module for GPUs the
    dtype of each input. halves: dtypes of values on a GPU, where they are of 16 bits and the graph's are not."""
    graph, name = step.attributes["graph"], f"around_{around.count}"
    assert isinstance(graph, Graph)
    around.count += 1
    axes, dtypes = [len(value.shape) for value in graph.outputs], [value.dtype for value in graph.outputs]
    facts: dict[str, object] = {"function": name, "axes": axes, "dtypes": dtypes}
    if target.kind == "cuda":
        takes = [halves.get(n, value.dtype) for n, value in zip(step.inputs, graph.inputs, strict=True)]
        gives = [halves.get(n, value.dtype) for n, value in zip(step.outputs, graph.outputs, strict=True)]
        try:
            kernels = DeviceFunction(name, graph, takes, gives)
            around.on_gpu.append(kernels)
            facts |= {"constants": len(kernels.given), "looked_at": list(map(list, kernels.looked_at))}
            return kernels, {**facts, "on": "gpu", "takes": takes, "dtypes": gives}
        except NotOnDevice as reason:
            facts |= {"on": "cpu", "why": str(reason), "takes": [value.dtype for value in graph.inputs]}
    host = target.host
    made = HostFunction(name, graph, host.lanes("float32"), pair_products(host))
    around.functions |= made.functions
    facts |= {"memory": list(made.works), "numbers": list(graph.numbers)}
    return made, {**facts, "constants": len(made.given)}
