"""What training adds to a CPU module: its two functions, and what the manifest says of them.
(cuda/training/add_entry_points.py: GPUs.)

In: the RNN, a target, and the module of inference with its facts, from `compiler/compile.py`. Out: the same with
forward_train, backward, their packing and their facts, and the constants of their equations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi
from msgspec import convert, structs

from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.shared_groups import SharedGroups
from tvm_rnn.decisions import about, heard
from tvm_rnn.dtypes import held_dtype
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.graph.graph import Layers
from tvm_rnn.module_file.facts import memory_facts
from tvm_rnn.module_file.schema import CpuNetwork, CpuTraining, Masks, Memory, Pack
from tvm_rnn.network.model import Model
from tvm_rnn.network.rnn import RNN, named_constants
from tvm_rnn.options import Options
from tvm_rnn.passes import keep_choice
from tvm_rnn.passes.passed import Passed

from .lower_backward import Backward
from .lower_forward import ForwardTrain
from .tape_layout import TapeLayout


def check_training(net: RNN | Model) -> None:
    """Raises ConfigError for what cannot be trained: several networks in one file."""
    if isinstance(net, Model):
        got, do = f"training of {len(net.networks)} networks", "compile model.networks one by one"
        raise ConfigError(message("a model of several networks does not train as a whole", got=got, do=do))


def add_training(own: Passed, lowered: Lowering, facts: CpuNetwork) -> dict[str, np.ndarray]:
    """Adds functions to `lowered` and facts to `facts`; what is kept is as the options say. Returns the constants that
    the functions read, by name."""
    net, options = own.net, own.options
    training = _kept(own, options.training)
    with about("", training=True):
        layers = own.training(training)[-1][1]
    facts.decisions = heard()
    forward, backward = _lowerings(net, layers, options, lowered.sharing)
    known = lowered.found
    found, of_forward = forward.functions(), forward.facts()
    dropped = bool(net.regularisers.weight_drop)  # what a call packs is not what inference does
    values = _constants(lowered) | _constants(forward)
    if not dropped and _packs_alike(lowered.packs, known, of_forward.packs, found, values):
        found = {name: func for name, func in found.items() if not name.startswith(forward.prefix)}
        facts.packed_elements = max(facts.packed_elements, of_forward.packed_elements)
        of_forward = structs.replace(of_forward, packs=[], packed_elements=0, packed_as_inference=True)
    lowered.found = known | found | backward.functions()
    parts = (lowered, forward, backward)
    used = [u for part in parts for u in part.emitter.used] + [w for part in parts for w in part.walks]
    facts.templates = [u.facts() for u in used]
    facts.training = CpuTraining(of_forward, backward.facts(), forward.tape.sizes())
    facts.memory = memory_facts(net, layers, training)
    if net.streams or net.regularisers:
        found_masks = net.regularisers.masks(net.layers, net.num_directions) | {"streams": net.streams}
        facts.masks = convert(found_masks, Masks)
    facts.entry_points += ["forward_train", "backward"]
    constants = (_constants(forward) if of_forward.packs else {}) | _constants(backward)
    for code in backward.backs:
        constants |= named_constants(code.finish.graph, code.finish.number)
    return {name: value.astype(held_dtype(net.dtype)) for name, value in constants.items()}


def planned(own: Passed, keep: bool | str) -> tuple[CpuTraining, Memory]:
    """What the manifest says of the memory of training, without the functions. keep: what is kept, by name."""
    training = _kept(own, keep)
    layers = own.training(training)[-1][1]
    forward, backward = _lowerings(own.net, layers, own.options)
    found = CpuTraining(forward.facts(), backward.facts(), forward.tape.sizes())
    return found, memory_facts(own.net, layers, training)


def _kept(own: Passed, keep: bool | str) -> bool | str:
    """What is kept, by name. Raises ConfigError where the network has no such choice on this target."""
    net, options = own.net, own.options
    keep_choice.check(keep, net.dtype, options.target.kind)
    return keep_choice.chosen(keep, net, options.target, options.batches)


def _lowerings(
    net: RNN, layers: Layers, options: Options, sharing: SharedGroups | None = None
) -> tuple[ForwardTrain, Backward]:
    count = len(layers.graphs)
    backs = Layers(tuple(g.backward for g in layers.graphs if g.backward is not None), layers.of_layer)
    forward = ForwardTrain(net, layers, options, number=count, sharing=sharing)
    backward = Backward(net, backs, options, number=2 * count, sharing=sharing)
    for part in (forward, backward):
        part.use(TapeLayout(net, layers, part.lanes))
    return forward, backward


def _constants(lowering: Lowering) -> dict[str, np.ndarray]:
    """The constants that its packing reads, by name."""
    return {name: value for code in lowering.code for name, value in named_constants(code.graph, code.number).items()}


def _packs_alike(
    packs: list[Pack], known: dict[str, Any], ours: list[Pack], found: dict[str, Any], constants: dict[str, np.ndarray]
) -> bool:
    """Whether forward_train can use the weights as inference packs them: the same code, for the same places and values.
    constants: the values of those that packs name."""

    def given(name: str) -> object:
        value = constants.get(name)
        return name if value is None else (value.shape, value.dtype, value.tobytes())

    for one, other in zip(packs, ours, strict=True):
        if [*map(given, one.weights)] != [*map(given, other.weights)] or one.offset != other.offset:
            return False
        functions = (known[one.function], found[other.function])
        if not tvm_ffi.structural_equal(*(f.with_attr("global_symbol", "pack") for f in functions)):
            return False
    return True
