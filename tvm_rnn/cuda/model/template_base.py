"""What the templates of persistent kernels share: every geometry of a schedule's own is predicted, the cheapest taken.

In: a schedule's knobs, and how it makes a `Team` of them. Out: what `schedule_template.template` asks for:
`configure`, `every`, `predict` and `schedule`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm_rnn.cuda.persistent.geometry import Team
from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit
from tvm_rnn.target import Target

from .persistent_step_time import cheapest, distinct, predict

MOST_ROWS = 128  # of a team


class PersistentTemplate(ABC):
    """A schedule says which knobs it has (`choices`: those of "ctas" are all that the GPU has room for unless it says
    which), how one geometry becomes a team, and which geometries are worth a prediction."""

    choices: Mapping[str, Sequence[int]]

    @staticmethod
    @abstractmethod
    def team(unit: Any, **knobs: int) -> Team:
        """The team of one geometry."""

    @staticmethod
    @abstractmethod
    def teams(unit: Any, target: Target, record: Mapping[str, int]) -> Iterator[Team]:
        """Every geometry to choose from that has the values of the record, which may be empty."""

    @classmethod
    def configure(cls, unit: Unit, target: Target, knob: Knobs) -> Config:
        """The geometry with the least predicted time; {} where nothing fits."""
        best = cheapest(cls.teams(unit, target, knob.record), unit, target)
        if best is None:
            return {}
        choices = {"ctas": range(1, target.sms + 1), **cls.choices}
        return {name: knob(name, choices[name], value) for name, value in cls.knobs(best).items()}

    @classmethod
    def every(cls, unit: Unit, target: Target) -> Iterator[Config]:
        """All geometries that fit."""
        return map(cls.knobs, distinct(cls.teams(unit, target, {}), target, cls.knobs))

    @classmethod
    def predict(cls, unit: Any, config: Config, target: Target) -> float:
        """Microseconds per step."""
        return predict(cls.team(unit, **config), unit.batch, target)

    @classmethod
    def schedule(cls, sch: Any, unit: Unit, config: Config) -> Team:
        """The team of a configuration."""
        return cls.team(unit, **config)

    @classmethod
    def knobs(cls, team: Team) -> Config:
        """A team's values of the knobs."""
        return {name: int(getattr(team, name)) for name in dict.fromkeys(("ctas", *cls.choices))}


def allowed(record: Mapping[str, int], name: str, values: Sequence[int]) -> Sequence[int]:
    """The record's value of a knob alone, or all values where it has none."""
    return (record[name],) if name in record else values


def width_of(unit: Any) -> int:
    """Units of the widest state."""
    return int(max(s.shape[0] for s in unit.step.graph.states))


def rows_per_team(batch: int, most: int) -> list[int]:
    """Rows per team when the batch is one slice, two, ... as many as can be resident."""
    tiles = -(-batch // 8)
    return sorted({min(MOST_ROWS, -(-tiles // slices) * 8) for slices in range(1, max(1, most) + 1)})
