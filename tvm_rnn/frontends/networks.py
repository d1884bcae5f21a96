"""Stacks of layers as networks with weights, and the program around them.

In: a model's steps and stacks. Out: an `RNN`, or a `Model` of several, with its `Program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import NETWORK, Program, Step
from tvm_rnn.network.rnn import RNN

from .folding import Steps
from .layers import Recurrent
from .stacks import Stacks, needed


def build_networks(steps: Steps, layers: Sequence[Recurrent], stacks: Stacks, source: Origin) -> RNN | Model:
    """An RNN with the program around it, or a Model where there are several. source: framework and file of the origin.

    Raises ConfigError or WeightError, as RNN does.
    """
    networks, changed = [], {}
    for number, group in stacks.groups.items():
        own = [layers[i] for i in group]
        net, given = _network(steps, own, source)
        networks.append(net)
        if given:
            changed[number] = given
    makers = needed(steps.steps, [value for given in changed.values() for value in given.values()])
    done = tuple(_with_weights(step, changed) for step in (*makers, *stacks.steps))
    used = {name for step in done for name in step.inputs} | {d.name for d in steps.outputs}
    constants = {name: value for name in sorted(used) if name and (value := steps.constant(name)) is not None}
    program = Program(tuple(steps.inputs), tuple(steps.outputs), done, constants)
    if len(networks) == 1:
        networks[0].program = program
        return networks[0]
    names = "; ".join(net.origin.layer for net in networks if net.origin is not None)
    return Model(networks, program, replace(source, layer=names))


def _with_weights(step: Step, changed: dict[int, dict[str, str]]) -> Step:
    """A network whose weights are not constants reads them as values."""
    given = changed.get(step.network) if step.op == NETWORK else None
    if not given:
        return step
    attributes = {**step.attributes, "weights": list(given)}
    return Step(step.op, (*step.inputs, *given.values()), step.outputs, attributes, step.node)


def _network(steps: Steps, own: Sequence[Recurrent], source: Origin) -> tuple[RNN, dict[str, str]]:
    """The RNN of a stack of layers; and its weights as values, where they are not all constants."""
    first = own[0]
    net = RNN(
        first.cell,
        first.input_size,
        [layer.hidden_size for layer in own] if "H" in first.cell.size_names else None,
        len(own),
        first.directions == 2,
        first.dtype,
        reverse=first.reverse,
    )
    names = {
        weight_name(parameter, index, d): value
        for index, layer in enumerate(own)
        for d, params in enumerate(layer.params)
        for parameter, value in params.items()
    }
    biases = {
        weight_name("b", index, d): pair for index, layer in enumerate(own) for d, pair in enumerate(layer.biases)
    }
    text = ", ".join(layer.node for layer in own)
    net.origin = replace(source, layer=text, batch_first=first.batch_first, biases=biases)
    arrays = {name: steps.constant(value) for name, value in names.items()}
    if any(array is None for array in arrays.values()):
        return net, names
    net.load({name: np.asarray(array) for name, array in arrays.items()})
    return net, {}
