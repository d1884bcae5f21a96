"""What training adds to a CPU module: its two functions, and what the manifest says of them.
(cuda/training/add_entry_points.py: GPUs.)

In: the RNN, a target, and the module of inference with its facts, from `compiler/compile.py`. Out: the same with
forward_train, backward, their packing and their facts, and the constants of their equations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from msgspec import convert, structs

from tvm_rnn.cpu.lower_network import Lowered, node_flops
from tvm_rnn.decisions import about, heard
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.graph.graph import Graph, depends
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.module_file.schema import CpuNetwork, CpuTraining, Masks, Memory, Pack
from tvm_rnn.network.model import Model
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.passes import keep_choice, pipeline
from tvm_rnn.passes.pipeline import Layers
from tvm_rnn.runtime.runtime import CONSTANT
from tvm_rnn.target import Target

from .lower_backward import Backward
from .lower_forward import ForwardTrain
from .tape_layout import TapeLayout


def check_training(net: RNN | Model, target: Target) -> None:
    """Raises ConfigError for what cannot be trained: several networks in one file."""
    if isinstance(net, Model):
        got, do = f"training of {len(net.networks)} networks", "compile model.networks one by one"
        raise ConfigError(message("a model of several networks does not train as a whole", got=got, do=do))


def add_training(
    net: RNN,
    lowered: Lowered,
    facts: CpuNetwork,
    target: Target,
    batches: tuple[int, ...],
    without: tuple[str, ...],
    training: bool | str = True,
) -> dict[str, np.ndarray]:
    """Adds functions to `lowered` and facts to `facts`. training: what is kept, by name; True: "values". Returns the
    constants that the functions read, by name."""
    keep_choice.check(training, net.dtype, target.kind)
    training = keep_choice.chosen(training, net, target, batches)
    with about("", training=True):
        layers = pipeline.run(net, target, without, batches, training=training)[-1][1]
    facts.decisions = heard()
    forward, backward = _lowerings(net, layers, target, batches)
    known = {variable.name_hint: func for variable, func in lowered.module.functions_items()}
    found, of_forward = forward.functions(), forward.facts()
    dropped = bool(net.regularisers.weight_drop)  # what a call packs is not what inference does
    if not dropped and _packs_alike(lowered.packs, known, of_forward.packs, found):
        found = {name: func for name, func in found.items() if not name.startswith(forward.prefix)}
        facts.packed_elements = max(facts.packed_elements, of_forward.packed_elements)
        of_forward = structs.replace(of_forward, packs=[], packed_elements=0, packed_as_inference=True)
    lowered.module = tvm.IRModule(known | found | backward.functions())
    lowered.used += [*forward.emitter.used, *backward.emitter.used]
    lowered.walks += [*forward.walks, *backward.walks]
    facts.templates = [used.facts() for used in (*lowered.used, *lowered.walks)]
    facts.training = CpuTraining(of_forward, backward.facts(), forward.tape.sizes())
    facts.memory = memory_facts(net, layers, training)
    if net.regularisers:
        facts.masks = convert(net.regularisers.masks(net.layers, net.num_directions), Masks)
    facts.entry_points += ["forward_train", "backward"]
    constants: dict[str, np.ndarray] = {}
    for code in (*forward.code, *backward.code):
        constants |= named_constants(code.graph, code.number)
    for code in backward.backs:
        constants |= named_constants(code.finish.graph, code.finish.number)
    return {name: value.astype(held_dtype(net.dtype)) for name, value in constants.items()}


def planned(
    net: RNN, target: Target, batches: tuple[int, ...], without: tuple[str, ...], training: bool | str
) -> tuple[CpuTraining, Memory]:
    """What the manifest says of the memory of training, without the functions."""
    training = keep_choice.chosen(training, net, target, batches)
    layers = pipeline.run(net, target, without, batches, training=training)[-1][1]
    forward, backward = _lowerings(net, layers, target, batches)
    own = CpuTraining(forward.facts(), backward.facts(), forward.tape.sizes())
    return own, memory_facts(net, layers, training)


def _lowerings(net: RNN, layers: Layers, target: Target, batches: tuple[int, ...]) -> tuple[ForwardTrain, Backward]:
    count = len(layers.graphs)
    backs = Layers(tuple(g.backward for g in layers.graphs if g.backward is not None), layers.of_layer)
    forward = ForwardTrain(net, layers, target, batches, number=count)
    backward = Backward(net, backs, target, batches, number=2 * count)
    for part in (forward, backward):
        part.use(TapeLayout(net, layers, part.lanes))
    return forward, backward


def memory_facts(net: RNN, layers: Layers, training: bool | str) -> Memory:
    """What a plan of memory must know of a module, on any target: what its tape keeps, and FLOPs per row and step.
    again: those of backward's that are before its steps, for the most part products of forward once more."""
    forward = sum(_flops(layers.graphs[i]) for i in layers.of_layer)
    backward = sum(_flops(graph) for i in layers.of_layer if (graph := layers.graphs[i].backward) is not None)
    again = sum(_flops(graph, "before") for i in layers.of_layer if (graph := layers.graphs[i].backward) is not None)
    flops = [each * net.num_directions for each in (forward, backward, again)]
    return Memory("values" if training is True else str(training), *flops)


def _flops(graph: Graph, region: str = "") -> int:
    """Operations for one row of one step, with its part of the sums over rows; what follows these sums is not. region:
    of that one alone."""
    nodes = graph.nodes()
    leaves, total = depends(nodes), 0
    for node in nodes:
        if node.leaf or (region and graph.region_of(node) != region):
            continue
        if TABLE[node.op].kind == "total":
            total += int(np.prod(node.shape, dtype=int)) * (2 if node.op == "total_product" else 1)
        elif leaves[node] and "total" not in leaves[node]:
            total += node_flops(node)
    return total


def _packs_alike(packs: list[Pack], known: dict[str, Any], ours: list[Pack], found: dict[str, Any]) -> bool:
    """Whether forward_train can use the weights as inference packs them: the same code, for the same places."""
    for one, other in zip(packs, ours, strict=True):
        fixed = any(name.startswith(CONSTANT) for name in one.weights)
        if fixed or one.weights != other.weights or one.offset != other.offset:
            return False
        functions = (known[one.function], found[other.function])
        if not tvm_ffi.structural_equal(*(f.with_attr("global_symbol", "pack") for f in functions)):
            return False
    return True
