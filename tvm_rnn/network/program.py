"""What is around recurrent networks: what comes before, between and after them, as data.

In: steps that a frontend read from a file. Out: `Program`, which `runtime_model.py` runs from a module's manifest and
`oracle/reference.py` in float64. A network that came alone has its program in `RNN.program`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

Array = np.ndarray
Axis = int | str | None  # a size, the name of a size that is equal wherever the name is, or any
NETWORK = "Network"
COMPILED = "Compiled"


@dataclass(frozen=True)
class Declared:
    """An input or output of a model. shape: None where the model says nothing of it."""

    name: str
    dtype: str
    shape: tuple[Axis, ...] | None


@dataclass(frozen=True)
class Step:
    """One operation on values, which are known by name; "" is an input that is not given.

    op: an operator of ONNX, or one of `surroundings/evaluation.py`'s own; or NETWORK: x, lengths, each state of each
    layer, and weights that are values become y and each state of each layer; or COMPILED: a function of the module's
    file, of what lay together. node: what the model's file calls it, for messages.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    node: str = ""

    @property
    def network(self) -> int:
        """The number of the network that a NETWORK step runs."""
        number = self.attributes["network"]
        assert isinstance(number, int)
        return number


@dataclass(frozen=True)
class Program:
    """Steps in order, each after those that make its inputs, and constants by name."""

    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    steps: tuple[Step, ...]
    constants: Mapping[str, Array]

    @property
    def brings_weights(self) -> bool:
        """Whether a network's weights are values of the program."""
        return any(step.attributes.get("weights") for step in self.steps)

    def facts(self) -> dict[str, object]:
        """The program as a manifest has it; its constants are in the file beside the weights."""
        return {
            "inputs": [{"name": d.name, "dtype": d.dtype, "shape": _listed(d.shape)} for d in self.inputs],
            "outputs": [{"name": d.name, "dtype": d.dtype, "shape": _listed(d.shape)} for d in self.outputs],
            "constants": [{"name": n, "array": a} for n, a in zip(self.constants, self.arrays(), strict=True)],
            "steps": [
                {
                    "op": step.op,
                    "inputs": list(step.inputs),
                    "outputs": list(step.outputs),
                    "attributes": {key: _plain(value) for key, value in step.attributes.items()},
                    "node": step.node,
                }
                for step in self.steps
            ],
        }

    def arrays(self) -> dict[str, Array]:
        """The constants by the names that a module's file has them under."""
        return {f"constant.model.{i}": value for i, value in enumerate(self.constants.values())}

    @property
    def dtypes(self) -> set[str]:
        """Those of inputs, outputs and constants, and those that values are cast to."""
        found = {d.dtype for d in (*self.inputs, *self.outputs)} | {v.dtype.name for v in self.constants.values()}
        return found | {str(s.attributes["dtype"]) for s in self.steps if "dtype" in s.attributes}

    def in_dtype(self, dtype: str) -> Program:
        """The same program on wider floats: "float64", as for the oracle, or "float32" in place of float16."""
        floats = ("float16", "float32", "float64")
        wide = dict.fromkeys(floats[: floats.index(dtype)], dtype)

        def step(s: Step) -> Step:
            dtype = wide.get(str(s.attributes.get("dtype")))
            return replace(s, attributes={**s.attributes, "dtype": dtype}) if dtype else s

        def declared(d: Declared) -> Declared:
            return replace(d, dtype=wide.get(d.dtype, d.dtype))

        constants = {n: v.astype(wide.get(v.dtype.name, v.dtype)) for n, v in self.constants.items()}
        inputs, outputs = tuple(map(declared, self.inputs)), tuple(map(declared, self.outputs))
        return Program(inputs, outputs, tuple(map(step, self.steps)), constants)


def with_float32_inside(program: Program) -> Program:
    """The same program in float32 where it has float16; its inputs and outputs are cast, and keep their dtypes."""
    wide = program.in_dtype("float32")
    half = [{own.name for own in side if own.dtype == "float16"} for side in (program.inputs, program.outputs)]
    given = {name: f"{name}#wide" for name in half[0]}
    made = {name: f"{name}#made" for name in half[1] - half[0]}
    names = given | made

    def renamed(step: Step) -> Step:
        inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (step.inputs, step.outputs))
        return replace(step, inputs=inputs, outputs=outputs)

    ends = [Step("Cast", (name,), (own,), {"dtype": "float32"}) for name, own in given.items()]
    back = [Step("Cast", (own,), (name,), {"dtype": "float16"}) for name, own in made.items()]
    steps = (*ends, *map(renamed, wide.steps), *back)
    constants = {names.get(name, name): value for name, value in wide.constants.items()}
    return Program(program.inputs, program.outputs, steps, constants)


def needed(steps: Sequence[Step], wanted: Iterable[str]) -> list[Step]:
    """The steps that these values need, in the same order."""
    makers = {output: step for step in steps for output in step.outputs}
    found: set[int] = set()
    stack = list(wanted)
    while stack:
        step = makers.get(stack.pop())
        if step is not None and id(step) not in found:
            found.add(id(step))
            stack += step.inputs
    return [s for s in steps if id(s) in found]


def ordered(steps: Sequence[Step]) -> list[Step]:
    """Each step after those that make its inputs, else in the same order."""
    makers = {output: step for step in steps for output in step.outputs}
    done: set[int] = set()
    result: list[Step] = []
    for first in steps:
        stack = [(first, False)]
        while stack:
            step, ready = stack.pop()
            if ready:
                result.append(step)
            elif id(step) not in done:
                done.add(id(step))
                stack.append((step, True))
                stack += [(makers[name], False) for name in reversed(step.inputs) if name in makers]
    return result


def _listed(shape: tuple[Axis, ...] | None) -> list[Axis] | None:
    return None if shape is None else list(shape)


def _plain(value: object) -> object:
    """An attribute as JSON has it: infinities and NaN become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
