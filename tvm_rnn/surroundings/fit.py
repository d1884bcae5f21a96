"""Whether a step's sizes are known to fit before the model runs: compiled code has no look at them any more.

In: a step, sizes and constants of its inputs by name. Out: whether it may be compiled, or has to stay with the
runtime's table, which refuses what does not fit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_rnn.network.program import Step

Axis = int | str


@dataclass
class Fit:
    """shape: a value's sizes, some by name; None: not known. constant: its elements; None: not known."""

    shape: Callable[[str], Sequence[Axis] | None]
    constant: Callable[[str], np.ndarray | None]

    def __call__(self, step: Step) -> bool:
        rule = {"Reshape": self.reshape, "Split": self.split, "Pad": self.pad, "Gather": self.gather}.get(step.op)
        return rule is None or rule(step, self.shape(step.inputs[0]) or ())

    def given(self, step: Step, name: str, place: int) -> list[int] | None:
        """Numbers that are an attribute, or an input; None: they are not known."""
        value = step.attributes.get(name)
        if value is None and len(step.inputs) > place and step.inputs[place]:
            value = self.constant(step.inputs[place])
        return None if value is None else [int(n) for n in np.asarray(value).reshape(-1)]

    def reshape(self, step: Step, shape: Sequence[Axis]) -> bool:
        """Whether there are as many elements as before; with a size that is left open, a whole number of its parts."""
        asked = self.given(step, "shape", 1)
        if asked is None:
            return False
        zero = bool(step.attributes.get("allowzero"))
        if any(n == 0 and not zero and i >= len(shape) for i, n in enumerate(asked)):
            return False
        wanted = [shape[i] if n == 0 and not zero else n for i, n in enumerate(asked)]
        before, after = ([n for n in own if isinstance(n, int) and n != -1] for own in (shape, wanted))
        names = [Counter(n for n in own if isinstance(n, str)) for own in (shape, wanted)]
        if -1 not in wanted:
            return names[0] == names[1] and math.prod(before) == math.prod(after)
        return names[1] <= names[0] and math.prod(after) != 0 and math.prod(before) % math.prod(after) == 0

    def split(self, step: Step, shape: Sequence[Axis]) -> bool:
        """Whether parts of these sizes are all of the axis."""
        parts = self.given(step, "split", 1)
        if parts is None:
            return len(step.inputs) < 2 or not step.inputs[1]
        return self.size(step, shape, 0) == sum(parts)

    def pad(self, step: Step, shape: Sequence[Axis]) -> bool:
        """Whether what is reflected is there."""
        if step.attributes.get("mode", "constant") == "constant":
            return True
        pads, rank = self.given(step, "pads", 1), len(shape)
        if pads is None or len(pads) != 2 * rank:
            return False
        return all(
            max(a, b) <= 0 or (isinstance(n, int) and max(a, b) < n)
            for n, a, b in zip(shape, pads[:rank], pads[rank:], strict=True)
        )

    def gather(self, step: Step, shape: Sequence[Axis]) -> bool:
        """Whether all places are there."""
        places, size = self.constant(step.inputs[1]), self.size(step, shape, 0)
        return places is not None and isinstance(size, int) and bool(np.all((places >= -size) & (places < size)))

    @staticmethod
    def size(step: Step, shape: Sequence[Axis], default: int) -> Axis | None:
        axis = int(str(step.attributes.get("axis", default)))
        return shape[axis] if -len(shape) <= axis < len(shape) else None
