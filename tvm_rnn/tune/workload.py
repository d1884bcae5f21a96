"""What tuning is about: a network at one T and B, the units of work that it is made of, and candidates for them.

In: an RNN, T, B, a precision, a target. Out: `Workload.units`, each with the templates that take it and their spaces;
`Candidate`s: a choice for some of the units, the defaults for the others; `Trial` makes `compile` use one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.network.rnn import RNN, check_without_constants
from tvm_rnn.records import Choice, Found, HasKey, Record, Records
from tvm_rnn.schedule.schedule_template import Knobs, Template, Unit, templates
from tvm_rnn.target import Target


@dataclass(frozen=True)
class Workload:
    """net at T = steps and B = batch. precision: of products, as `compile` has it."""

    net: RNN
    steps: int
    batch: int
    precision: str

    def __post_init__(self) -> None:
        check_without_constants("tune", self.net)

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of it: the network's sizes, T and B."""
        net = self.net
        sizes = {axis: [layer[axis] for layer in net.sizes] for axis in net.sizes[0] if axis not in "IH"}
        hidden = [layer.get("H", layer.get("I", 0)) for layer in net.sizes]
        return {
            "cell": net.cell.name,
            "input": net.input_size,
            "hidden": hidden[0] if len(set(hidden)) == 1 else hidden,
            "layers": net.num_layers,
            "directions": net.num_directions,
            "dtype": net.dtype,
            "precision": self.precision,
            "sizes": {axis: own[0] if len(set(own)) == 1 else own for axis, own in sizes.items()},
            "steps": self.steps,
            "batch": self.batch,
        }

    @property
    def name(self) -> str:
        return Record("", self.facts, (), 0.0, 0.0).name


@dataclass(frozen=True)
class Candidate:
    """A choice for some units; none: the defaults."""

    choices: tuple[Choice, ...] = ()

    @property
    def key(self) -> str:
        return json.dumps([choice.as_dict() for choice in self.choices], sort_keys=True)

    def with_choice(self, choice: Choice) -> Candidate:
        return Candidate((*(c for c in self.choices if c.unit != choice.unit), choice))


@dataclass
class Trial(Records):
    """Records that hold a candidate and nothing else, and note which units were asked for.

    lean: compile only what this candidate runs at its own B without lengths and resets, which takes half the time.
    """

    candidate: Candidate = Candidate()
    lean: bool = False
    asked: dict[str, Unit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def for_target(self, name: str, versions: object) -> Records:
        return self

    def find(self, unit: HasKey) -> Iterator[Found]:
        assert isinstance(unit, Unit)  # whoever asks has one
        key = unit.key
        self.asked.setdefault(json.dumps(key, sort_keys=True), unit)
        for choice in self.candidate.choices:
            if choice.unit == key:
                yield Found(choice, Record("", {"cell": "", "hidden": 0, "batch": 0, "precision": ""}, (choice,), 0, 0))

    def refused(self, found: Found, reason: str) -> None:
        """Raises ConfigError: the defaults must not be measured in the place of a candidate."""
        raise ConfigError(message("this candidate cannot be built", got=str(dict(found.choice.knobs)), do=reason))


def able(unit: Unit, target: Target) -> list[Template]:
    """The templates that take a unit."""
    return [t for t in templates().values() if t.applies(unit, target)]


def choice_of(own: Template, unit: Unit, knobs: dict[str, int]) -> Choice:
    """What a record says of a unit."""
    return Choice(unit.key, own.name, own.version, knobs)


def units(asked: Sequence[Unit], target: Target) -> list[Unit]:
    """Those with something to choose: several templates, or a knob with several values."""
    found = []
    for unit in asked:
        templates, knobs = able(unit, target), Knobs()
        if len(templates) == 1:
            templates[0].configure(unit, target, knobs)
        if len(templates) > 1 or any(len(values) > 1 for values in knobs.space.values()):
            found.append(unit)
    return found
