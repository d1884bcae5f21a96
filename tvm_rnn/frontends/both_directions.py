"""Two layers that read the same steps, one of them from the last to the first, become one layer in both directions.

In: a model's steps with a network per recurrent layer. Out: the same with one network for both, whose directions run at
the same time, and which may be a layer of a stack.

Exporters that know no bidirectional nodes write a second layer on x in reverse order, and turn its y around. Whether a
layer's x is another's in reverse order is not read off its form: the steps between are run on numbered elements.

Rewrite: y = network 0(x); z = reversed(network 1(reversed(x)))  -->  y, z = both directions of one network(x)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from tvm_rnn.network.program import NETWORK, Step, needed
from tvm_rnn.surroundings.evaluation import Refused, evaluated

from .folding import MOVES, Recurrent, Steps

SAMPLES = ((3, 2), (4, 1), (2, 5))  # T and B; steps that are right for one size alone are not right


class BothDirections:
    """Call `join`: then `steps` and `layers` are those with both directions in one."""

    def __init__(self, values: Steps, steps: Sequence[Step], layers: Sequence[Recurrent]) -> None:
        self.values, self.steps, self.layers = values, list(steps), list(layers)

    def join(self) -> None:
        """Join all that are a pair."""
        networks = [step for step in self.steps if step.op == NETWORK]
        done: set[int] = set()
        for one, two in combinations(networks, 2):
            for ahead, back in ((one, two), (two, one)):
                if not {id(ahead), id(back)} & done and self._are_a_pair(ahead, back):
                    self._replace(ahead, back)
                    done |= {id(ahead), id(back)}

    def _are_a_pair(self, ahead: Step, back: Step) -> bool:
        one, two = self.layers[ahead.network], self.layers[back.network]
        same = one.cell is two.cell and one.dtype == two.dtype and one.batch_first == two.batch_first
        sizes = (one.input_size, one.hidden_size) == (two.input_size, two.hidden_size)
        alone = one.directions == two.directions == 1 and not one.reverse and "H" in one.cell.size_names
        begin = [bool(value) for value in ahead.inputs[2:]] == [bool(value) for value in back.inputs[2:]]
        if not (same and sizes and alone and begin and ahead.inputs[1] == back.inputs[1]):
            return False
        x = ahead.inputs[0], back.inputs[0]
        turned = x[0] == x[1] if two.reverse else not ahead.inputs[1] and self._is_reverse(*x, one.input_size)
        return turned and not self._needs(ahead, back) and not self._needs(back, ahead)

    def _needs(self, step: Step, other: Step) -> bool:
        return any(own is other for own in needed(self.steps, step.inputs))

    def _is_reverse(self, x: str, other: str, width: int) -> bool:
        """Whether two values [T, B, width] are made of one, and the other has the steps of x from the last to the
        first."""
        chains = [dict(self._made_from(value)) for value in (x, other)]
        source = next((value for value in chains[0] if value in chains[1]), None)
        if source is None:
            return False
        return any(self._turns(source, chains, (x, other), width, form) for form in ("tbi", "bti", "ti"))

    def _made_from(self, value: str) -> Iterator[tuple[str, list[Step]]]:
        """The value, and those that it is made from by one step, two, ..., which only move elements; and these."""
        makers = {output: step for step in self.steps for output in step.outputs}
        chain: list[Step] = []
        yield value, []
        while (step := makers.get(value)) is not None and step.op in MOVES and step.outputs[0] == value:
            if not all(not name or self.values.is_constant(name) for name in step.inputs[1:]):
                return
            value, chain = step.inputs[0], [step, *chain]
            yield value, chain

    def _turns(
        self, source: str, chains: Sequence[dict[str, list[Step]]], ends: Sequence[str], width: int, form: str
    ) -> bool:
        """form: the axes of the source."""
        for steps, batch in SAMPLES:
            shape = [{"t": steps, "b": batch, "i": width}[axis] for axis in form]
            numbered = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
            try:
                found = [self._run(numbered, chain[source], end) for chain, end in zip(chains, ends, strict=True)]
            except Refused:
                return False
            rows = steps, batch if "b" in form else 1, width
            if found[0].shape != rows or not np.array_equal(found[0][::-1], found[1]):
                return False
        return True

    def _run(self, value: np.ndarray, chain: Sequence[Step], end: str) -> np.ndarray:
        found: dict[str, np.ndarray | None] = {"": None}
        for step in chain:
            given = [value, *(found.get(name, self.values.constant(name)) for name in step.inputs[1:])]
            (value, *_) = evaluated(step.op, given, step.attributes, len(step.outputs))
        return np.asarray(value)

    def _replace(self, ahead: Step, back: Step) -> None:
        """One network in place of two; their results are parts of its own."""
        one, two = self.layers[ahead.network], self.layers[back.network]
        biases = [*one.biases, *two.biases] if one.biases and two.biases else []
        layer = replace(one, node=f"{one.node}, {two.node}", params=[*one.params, *two.params], biases=biases)
        made: list[Step] = []

        def emit(op: str, inputs: Sequence[str], output: str = "", **attributes: object) -> str:
            name = output or self.values.fresh(one.node)
            made.append(Step(op, tuple(inputs), (name,), attributes, one.node))
            self.values.made.add(name)
            return name

        def part(value: str, output: str, first: int, end: int, axis: int, by: int = 1) -> str:
            return emit("Slice", [value, *(self.values.keep([n]) for n in (first, end, axis, by))], output)

        def both(values: tuple[str, str]) -> str:
            return emit("Concat", values, axis=0) if values[0] else ""

        begin = [both(pair) for pair in zip(ahead.inputs[2:], back.inputs[2:], strict=True)]
        outputs = tuple(self.values.fresh(one.node) for _ in ahead.outputs)
        inputs = (*ahead.inputs[:2], *begin)
        made.append(Step(NETWORK, inputs, outputs, {"network": len(self.layers)}, layer.node))
        self.values.made.update(outputs)
        y, *states = outputs
        H = one.hidden_size
        part(y, ahead.outputs[0], 0, H, 2)
        in_order = part(y, back.outputs[0] if two.reverse else "", H, 2 * H, 2)
        if not two.reverse:
            part(in_order, back.outputs[0], -1, np.iinfo(np.int64).min, 0, -1)
        for value, *own in zip(states, ahead.outputs[1:], back.outputs[1:], strict=True):
            for d, name in enumerate(own):
                part(value, name, d, d + 1, 0)
        self.layers.append(layer)
        kept = [step for step in self.steps if step is not ahead and step is not back]
        self.steps = [*kept, *made]
