"""Layers one on top of the other become one network: what is between them only moves values, and comes to nothing.

In: a model's steps with a network per recurrent layer. Out: the same with a network per stack, in order and without
steps that nobody needs: an `RNN`, or a `Model` of several, with its `Program`.

Exporters write a stack as nodes with transposes, reshapes and squeezes between them, in many forms. Whether such a
chain gives back y [T, B, D*H] as it was is not read off its form: it is run on numbered elements of several sizes.

Rewrite: y = network 0(x); z = chain(y); network 1(z)   -->   network of 2 layers(x), where chain(y) = y
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tvm_rnn.network.layer import weight_name
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import NETWORK, Program, Step, needed, ordered
from tvm_rnn.network.rnn import RNN
from tvm_rnn.surroundings.evaluation import Refused, evaluated

from .both_directions import BothDirections
from .folding import FOLDED, Recurrent, Steps

SAMPLES = ((2, 3), (5, 1), (1, 4), (3, 2))  # T and B; a chain that is right for one size alone is not right


class Stacks:
    """The stacks of a graph: `groups[n]` are the layers, bottom first, of the network that steps call number n."""

    def __init__(self, steps: Steps, layers: Sequence[Recurrent]) -> None:
        self.values = steps
        self.wanted = [d.name for d in steps.outputs]
        pairs = BothDirections(steps, needed(steps.steps, self.wanted), layers)
        pairs.join()
        self.layers, self.steps = pairs.layers, needed(pairs.steps, self.wanted)
        own = [step.network for step in self.steps if step.op == NETWORK]
        self.groups: dict[int, list[int]] = {n: [n] for n in own}

    def merge(self) -> None:
        """Join what can be joined, and number the networks from 0."""
        for upper in list(self.groups):
            lower = self._below(upper)
            if lower is not None:
                self._join(lower, upper)
        self.steps = without_identities(ordered(self.steps), self.wanted)
        numbers = {old: new for new, old in enumerate(self.groups)}
        self.groups = {numbers[old]: own for old, own in self.groups.items()}
        self.steps = [
            replace(s, attributes={**s.attributes, "network": numbers[s.network]}) if s.op == NETWORK else s
            for s in self.steps
        ]

    def _step(self, number: int) -> Step:
        return next(s for s in self.steps if s.op == NETWORK and s.network == number)

    def _below(self, upper: int) -> int | None:
        """The network whose y, unchanged, is the x of this one, if both can be one."""
        step = self._step(upper)
        chain, leaves = _slice(self.steps, step.inputs[0], self.values)
        makers = {s.outputs[0]: s for s in self.steps if s.op == NETWORK}
        if len(leaves) != 1 or next(iter(leaves)) not in makers:
            return None
        (y,) = leaves
        below = makers[y]
        number = below.network
        one, two = self.layers[self.groups[number][-1]], self.layers[self.groups[upper][0]]
        if not _alike(one, two) or below.inputs[1] != step.inputs[1]:
            return None
        if two.input_size != one.directions * one.hidden_size or not self._is_nothing(chain, y, step.inputs[0], two):
            return None
        return number if self._free(below, step) else None

    def _is_nothing(self, chain: Sequence[Step], y: str, x: str, layer: Recurrent) -> bool:
        """Whether the chain gives y back as it was."""
        if any(step.op not in FOLDED for step in chain):
            return False
        for steps, batch in SAMPLES:
            shape = (steps, batch, layer.input_size)
            whole = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
            found = {y: whole, "": None}
            try:
                for step in chain:
                    given = [found[n] if n in found else self.values.constant(n) for n in step.inputs]
                    made = evaluated(step.op, given, step.attributes, len(step.outputs))
                    found.update(zip(step.outputs, made, strict=False))
            except Refused:
                return False
            result = np.asarray(found[x])
            if result.shape != whole.shape or not np.array_equal(result, whole):
                return False
        return True

    def _free(self, below: Step, step: Step) -> bool:
        """Whether nobody else needs the lower y, and the upper's states do not come from the lower network."""
        for value in step.inputs[1:]:
            chain, _ = _slice(self.steps, value, self.values, through=True)
            if any(s is below for s in chain):
                return False
        joined = self._joined(below, step)
        rest = needed([joined if s is step else s for s in self.steps if s is not below], self.wanted)
        return all(below.outputs[0] not in s.inputs for s in rest) and below.outputs[0] not in self.wanted

    def _joined(self, below: Step, step: Step) -> Step:
        number, upper = below.network, step.network
        states = len(self.layers[self.groups[number][0]].cell.states)

        def interleaved(lower: Sequence[str], higher: Sequence[str]) -> Iterable[str]:
            """Each state's values of all layers, bottom first."""
            low, high = len(self.groups[number]), len(self.groups[upper])
            for i in range(states):
                yield from lower[i * low : (i + 1) * low]
                yield from higher[i * high : (i + 1) * high]

        inputs = (*below.inputs[:2], *interleaved(below.inputs[2:], step.inputs[2:]))
        outputs = (step.outputs[0], *interleaved(below.outputs[1:], step.outputs[1:]))
        return Step(NETWORK, inputs, outputs, {"network": number}, below.node)

    def _join(self, lower: int, upper: int) -> None:
        below, step = self._step(lower), self._step(upper)
        joined = self._joined(below, step)
        self.steps = [joined if s is step else s for s in self.steps if s is not below]
        self.groups[lower] += self.groups.pop(upper)
        self.steps = needed(self.steps, self.wanted)


def _alike(one: Recurrent, two: Recurrent) -> bool:
    """Whether two layers can be layers of one network."""
    same = one.cell is two.cell and one.dtype == two.dtype
    return same and one.directions == two.directions and one.reverse == two.reverse


def _slice(steps: Sequence[Step], value: str, values: Steps, through: bool = False) -> tuple[list[Step], set[str]]:
    """The steps that a value is made by, in order, and the values that these begin with, constants left out. through:
    also the steps behind networks."""
    makers = {output: step for step in steps for output in step.outputs if through or step.op != NETWORK}
    found: set[int] = set()
    leaves, stack = set(), [value]
    while stack:
        name = stack.pop()
        step = makers.get(name)
        if step is None:
            if name and not values.is_constant(name):
                leaves.add(name)
        elif id(step) not in found:
            found.add(id(step))
            stack += step.inputs
    return [s for s in steps if id(s) in found], leaves


def without_identities(steps: Sequence[Step], wanted: Sequence[str]) -> list[Step]:
    """The steps without those that only give a value another name, but for a value that the model has under two."""
    names: dict[str, str] = {}
    for step in steps:
        if step.op != "Identity":
            continue
        (source,), (name,) = step.inputs, step.outputs
        source = names.get(source, source)
        made = any(source in s.outputs for s in steps)
        if name not in wanted:
            names[name] = source
        elif made and source not in wanted and source not in names.values():
            names = {key: name if value == source else value for key, value in names.items()} | {source: name}
    kept = [
        s for s in steps if s.op != "Identity" or (s.outputs[0] not in names and names.get(s.inputs[0]) != s.outputs[0])
    ]

    def renamed(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(value, value) for value in values)

    return [replace(s, inputs=renamed(s.inputs), outputs=renamed(s.outputs)) for s in kept]


def build_networks(steps: Steps, stacks: Stacks, source: Origin) -> RNN | Model:
    """An RNN with the program around it, or a Model where there are several. source: framework and file of the origin.

    Raises ConfigError or WeightError, as RNN does.
    """
    networks, changed = [], {}
    for number, group in stacks.groups.items():
        own = [stacks.layers[i] for i in group]
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
    return Model(networks, program, replace(source, layer=names or "the whole model"))


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
