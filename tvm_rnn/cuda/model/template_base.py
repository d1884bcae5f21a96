"""What the templates of persistent kernels share: every geometry of a schedule's own is predicted, the cheapest taken.

In: a schedule's knobs, and how it makes a `Geometry` of them. Out: what `schedule_template.template` asks for:
`configure`, `every`, `predict` and `schedule`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.schedule.schedule_template import Config, Knobs
from tvm_rnn.target import Target

from .choose_geometry import ANY, RecurrentUnit
from .persistent_step_time import able_to_run, cheapest, predict

MOST_ROWS = 128  # of a group


class PersistentTemplate(ABC):
    """A schedule says which knobs it has (`choices`: those of "ctas" are all that the GPU has room for unless it says
    which), how knobs become a geometry, and which geometries are worth a prediction."""

    choices: Mapping[str, Sequence[int]]

    @staticmethod
    @abstractmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> Geometry:
        """The geometry of these knobs."""

    @staticmethod
    @abstractmethod
    def geometries(unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[Geometry]:
        """Every geometry to choose from that has the values of the record, which may be empty."""

    @classmethod
    def configure(cls, unit: RecurrentUnit, target: Target, knob: Knobs) -> Config:
        """The geometry with the least predicted time; {} where nothing fits."""
        best = cheapest(cls.geometries(unit, target, knob.record), unit.batch, target)
        if best is None:
            return {}
        choices = {"ctas": range(1, target.sms + 1), **cls.choices}
        return {name: knob(name, choices[name], value) for name, value in cls.knobs(best).items()}

    @classmethod
    def every(cls, unit: RecurrentUnit, target: Target) -> Iterator[Config]:
        seen = set()
        for geometry in cls.geometries(unit, target, {}):
            if not able_to_run(geometry, target):
                continue
            # Those that only offer weights more room than is used are the same.
            kept = tuple((s.registers, s.shared) for parts in geometry.shares.values() for s in parts)
            knobs = cls.knobs(geometry)
            key = (kept, *(value for name, value in knobs.items() if not name.endswith("_words")))
            if key not in seen:
                seen.add(key)
                yield knobs

    @classmethod
    def predict(cls, unit: RecurrentUnit, config: Config, target: Target) -> float:
        return predict(cls.geometry(unit, **config), unit.batch, target)

    @classmethod
    def schedule(cls, sch: object, unit: RecurrentUnit, config: Config) -> Geometry:
        return cls.geometry(unit, **config)

    @classmethod
    def knobs(cls, geometry: Geometry) -> Config:
        return {name: int(getattr(geometry, name)) for name in dict.fromkeys(("ctas", *cls.choices))}


def allowed(record: Mapping[str, int], name: str, values: Sequence[int]) -> Sequence[int]:
    """The record's value of a knob alone, or all values where it has none."""
    return (record[name],) if name in record else values


def width_of(unit: RecurrentUnit) -> int:
    """Units of the widest state."""
    return max(s.shape[0] for s in unit.step.graph.states)


def rows_per_group(batch: int, most: int) -> list[int]:
    """Rows per group when the batch is one slice, two, ... as many as can be resident; of ANY batch: all there are."""
    if batch == ANY:
        return list(range(8, MOST_ROWS + 1, 8))
    tiles = -(-batch // 8)
    return sorted({min(MOST_ROWS, -(-tiles // slices) * 8) for slices in range(1, max(1, most) + 1)})
