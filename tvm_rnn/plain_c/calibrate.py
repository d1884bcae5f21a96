"""From samples to fixed point: the range of every value, its exponent, and what the integers then come to.

In: the layers of a network, samples. Out: `FixedPoint` of each layer; y as the C computes it, to compare with float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tvm_rnn.graph.graph import Node, is_move
from tvm_rnn.oracle.reference import evaluate

from .fixed_point import FixedPoint, exponent_of, quantised
from .fixed_rows import fitted
from .layer_values import LayerValues


@dataclass(frozen=True)
class Samples:
    """inputs: [T, B, *shape] each, in the cell's order; constants: [B, *shape] by name; initial: of states by name."""

    inputs: Sequence[np.ndarray]
    constants: Mapping[str, np.ndarray]
    initial: Mapping[str, float]


class Numbers(Protocol):
    """What a walk over a layer computes with."""

    def begin(self, node: Node, values: np.ndarray) -> np.ndarray:
        """What is given, or known, of a node."""

    def step(self, nodes: Sequence[Node], at: dict[Node, np.ndarray]) -> None:
        """Fill in the values of a step."""

    def carry(self, value: np.ndarray, result: Node, state: Node) -> np.ndarray:
        """A result as the state that it becomes."""


@dataclass
class Ranges:
    """float64, and the largest magnitude of every value so far."""

    most: dict[Node, float] = field(default_factory=dict)

    def begin(self, node: Node, values: np.ndarray) -> np.ndarray:
        return values

    def step(self, nodes: Sequence[Node], at: dict[Node, np.ndarray]) -> None:
        evaluate(nodes, at)
        for node, value in at.items():
            finite = np.abs(value[np.isfinite(value)])
            self.most[node] = max(self.most.get(node, 0.0), float(finite.max(initial=0.0)))

    def carry(self, value: np.ndarray, result: Node, state: Node) -> np.ndarray:
        return value


@dataclass(frozen=True)
class Integers:
    """What the C computes."""

    numbers: FixedPoint

    def begin(self, node: Node, values: np.ndarray) -> np.ndarray:
        return quantised(values, self.numbers.exponent(node))

    def step(self, nodes: Sequence[Node], at: dict[Node, np.ndarray]) -> None:
        for node in nodes:
            if node not in at:
                at[node] = self.numbers.evaluate(node, [at[a] for a in node.args])

    def carry(self, value: np.ndarray, result: Node, state: Node) -> np.ndarray:
        return fitted(value, self.numbers.exponent(result) - self.numbers.exponent(state))


def calibrated(layers: Sequence[LayerValues], samples: Samples, bits: int) -> list[FixedPoint]:
    """Fixed point of each layer, with ranges that cover the samples. bits: of the weights of products."""
    tables: dict[str, np.ndarray] = {}
    x, found = samples.inputs[0], list[FixedPoint]()
    for values in layers:
        ranges = Ranges()
        x = _walked(values, samples, x, ranges)
        exponents = _exponents(values, ranges.most)
        if found:  # as the layer below hands it on
            exponents[values.graph.inputs[0]] = found[-1].exponent(layers[len(found) - 1].graph.output)
        found.append(FixedPoint(bits, exponents, values.fixed, tables))
    return found


def simulated(layers: Sequence[LayerValues], numbers: Sequence[FixedPoint], samples: Samples) -> np.ndarray:
    """y [T, B, *shape] as the C computes it: integers."""
    x = quantised(samples.inputs[0], numbers[0].exponent(layers[0].graph.inputs[0]))
    for values, own in zip(layers, numbers, strict=True):
        x = _walked(values, samples, x, Integers(own))
    return x


def _walked(values: LayerValues, samples: Samples, x: np.ndarray, numbers: Numbers) -> np.ndarray:
    """What a layer emits, [T, B, *shape], of what comes from below."""
    graph, nodes, batch = values.graph, values.graph.nodes(), x.shape[1]
    fixed = {node: numbers.begin(node, value) for node, value in values.fixed.items()}
    state = {}
    for node in graph.states:
        first = samples.constants.get(node.name, samples.initial.get(node.name, 0.0))
        state[node] = numbers.begin(node, np.broadcast_to(np.asarray(first, np.float64), (batch, *node.shape)))
    more = [numbers.begin(node, value) for node, value in zip(graph.inputs[1:], samples.inputs[1:], strict=True)]
    inputs, found = dict(zip(graph.inputs, [x, *more], strict=True)), []
    for t in range(len(x)):
        at = {**fixed, **state, **{node: array[t] for node, array in inputs.items()}}
        numbers.step(nodes, at)
        found.append(np.broadcast_to(at[graph.output], (batch, *graph.output.shape)))
        for s, r in zip(graph.states, graph.results, strict=True):
            state[s] = np.broadcast_to(numbers.carry(at[r], r, s), (batch, *s.shape))
    return np.stack(found)


def _exponents(values: LayerValues, most: Mapping[Node, float]) -> dict[Node, int]:
    """Of every value that is no view; a state has that of what replaces it."""
    found = {}
    for node, largest in most.items():
        if not is_move(node) or node.op == "concat" or node in values.fixed:
            found[node] = exponent_of(largest)
    for state, result in zip(values.graph.states, values.graph.results, strict=True):
        found[state] = exponent_of(max(most[state], most[result]))
        if result in values.in_place:
            found[result] = found[state]
    return found
