"""What XLA calls: compiled steps and their gradients, between arrays that XLA owns.

In: a `Form`, and arrays. Out: the results, written into XLA's memory; the tape is written there at once. Arrays come in
this order: inputs, states where the form has them, weights, then of lengths, reset, and seed with first step those that
the form has.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from tvm_rnn.runtime.runtime import Array, Shape
from tvm_rnn.runtime.runtime_training import TrainingModule, tape_elements

_known: list[Code] = []  # for as long as the process lives: programs of XLA know numbers alone


class Form(NamedTuple):
    """What a call is made of. code: the number of its Code; the others: whether there are any."""

    code: int
    state: bool
    lengths: bool
    reset: bool
    seed: bool

    @property
    def own(self) -> Code:
        """The code."""
        return _known[self.code]

    @property
    def rows(self) -> int:
        """How many arrays come after the weights."""
        return self.lengths + self.reset + 2 * self.seed

    @property
    def leading(self) -> int:
        """How many arrays come before the weights: inputs and states."""
        return len(self.own.module._inputs) + (len(self.own.shapes(1)) if self.state else 0)


class Code:
    """A compiled module for XLA, which knows it by `number`."""

    def __init__(self, module: TrainingModule) -> None:
        self.module, self.lock = module, threading.Lock()
        self.number = len(_known)
        _known.append(self)

    @cached_property
    def _copy(self) -> TrainingModule:
        """With one workspace for all threads, which take turns. Python has a new state for XLA's threads in each call;
        what is kept for the thread goes with it, where Python 3.11 crashes at tensors."""
        own = copy.copy(self.module)
        vars(own)["_local"] = SimpleNamespace()
        return own

    def with_weights(self, values: Sequence[np.ndarray]) -> TrainingModule:
        """A module of its own with these weights; the caller has the lock."""
        own, named = self._copy, dict(zip(self.module._weight_shapes, values, strict=True))
        held = own.weights
        if not all(name in held and np.array_equal(value, held[name]) for name, value in named.items()):
            own.load_weights(named)
        return own

    def shapes(self, batch: int) -> list[Shape]:
        """Of the states, flat."""
        return [shape for flat in self.module._plan(batch) for _, shape in flat.parts]

    def tape(self, T: int, B: int) -> int:
        """Elements of the tape."""
        return tape_elements(self.module.manifest, T, B, T)

    def named(self, flat: Sequence[Array]) -> dict[str, Array]:
        """States by their names: a list where layers differ in shape."""
        rest, found = iter(flat), {}
        for part in self.module._plan(1):
            values = [next(rest) for _ in part.parts]
            found[part.name] = values if len(values) > 1 else values[0]
        return found


def each(*results: object) -> Iterable[np.ndarray]:
    """The arrays of arrays, lists of them, and dicts of both."""
    for value in results:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, Mapping | list):
            yield from each(*(value.values() if isinstance(value, Mapping) else value))


def _write(places: Sequence[np.ndarray], *results: object) -> None:
    for place, value in zip(places, each(*results), strict=True):
        place[...] = value


class Rows(NamedTuple):
    """What a call of a module has besides x and states."""

    lengths: np.ndarray | None
    reset: np.ndarray | None
    seed: int | None
    first_step: int


def _rows(form: Form, given: Iterator[np.ndarray]) -> Rows:
    there = (form.lengths, form.reset, form.seed, form.seed)
    lengths, reset, seed, first = [next(given) if here else None for here in there]
    return Rows(lengths, reset, None if seed is None else int(seed), 0 if first is None else int(first))


def steps(*given: Array) -> None:
    """All steps: y, then the last states. given: a form, then arrays."""
    _forward(given, recorded=False)


def recorded(*given: Array) -> None:
    """All steps: y, then the last states, then the tape."""
    _forward(given, recorded=True)


def _forward(given: Sequence[Array], recorded: bool) -> None:
    form, rest = _read(given, len(Form._fields))
    own = form.own
    x = [next(rest) for _ in own.module._inputs]
    state = own.named([next(rest) for _ in own.shapes(1)]) if form.state else None
    weights, rows = [next(rest) for _ in own.module._weight_shapes], _rows(form, rest)
    results = [*rest]
    with own.lock:
        module = own.with_weights(weights)
        if not recorded and not form.seed:
            _write(results, *module(x if len(x) > 1 else x[0], state, lengths=rows.lengths, reset=rows.reset))
            return
        if recorded:
            *results, tape = results
            module.tape_memory = lambda elements, dtype: tape
        try:
            _write(results, *module.forward_train(x if len(x) > 1 else x[0], state, **rows._asdict())[:2])
        finally:
            vars(module).pop("tape_memory", None)


def gradients(*given: Array) -> None:
    """Of inputs, first states and weights. given: a form, T, B, and in one number's bits of which of y and the last
    states there are gradients; then the tape, these gradients, weights, lengths and so on."""
    first = len(Form._fields)
    (form, rest), (T, B, bits) = _read(given, first + 3), map(int, given[first : first + 3])
    own, tape = form.own, next(rest)
    above = [next(rest) if bits >> i & 1 else None for i in range(1 + len(own.shapes(B)))]
    weights, rows, carried = [next(rest) for _ in own.module._weight_shapes], _rows(form, rest), None
    if any(d is not None for d in above[1:]):
        pairs = zip(above[1:], own.shapes(B), strict=True)
        carried = own.named([np.zeros(shape, tape.dtype) if d is None else d for d, shape in pairs])
    with own.lock:
        module = own.with_weights(weights)
        _write([*rest], *module._gradients(module.tape_of(tape, (T, B), *rows), above[0], carried))


def _read(given: Sequence[Array], numbers: int) -> tuple[Form, Iterator[np.ndarray]]:
    """The form, and the arrays behind so many numbers."""
    code, *flags = map(int, given[: len(Form._fields)])
    return Form(code, *map(bool, flags)), map(np.from_dlpack, given[numbers:])
