"""Records: which knob values won where, and how a compilation finds them.

In: lines of JSON that `schedule/record_files.py` reads from folders. Out: `Records.find`, asked by `schedule.best` for
each unit of work: the choice of a record for exactly this unit, or of the nearest ones that it may learn from. A record
belongs to a workload (a network, T, B), and holds a choice per unit; a unit's key says nothing of the cell, so what an
LSTM was tuned for serves every cell with products of the same shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import log2
from typing import Protocol, TypedDict

from tvm_rnn.decisions import Figures

Config = dict[str, int]
FORMAT = 1
TIMES = ("median_us", "default_us", "spread")
EARLIER = {"total": "sum_rows", "totals_cpu": "sum_rows_cpu"}  # kinds and templates of before 0.2, in users' records
NEAR = 1.0  # a nearest record differs by less than a factor of two, 2 ** NEAR, in every size


class UnitKey(TypedDict):
    """What a record is found by, as JSON has it. shape: what nearest units share; sizes: numbers by name."""

    shape: list[object]
    sizes: dict[str, list[int]]


class NamedBy(TypedDict):
    """What every record says of its workload."""

    cell: str
    hidden: int | list[int]
    precision: str
    batch: int


class WorkloadFacts(NamedBy, total=False):
    """What most records say as well."""

    input: int
    layers: int
    directions: int
    dtype: str
    sizes: dict[str, int | list[int]]
    steps: int


class HasKey(Protocol):
    """A unit of work, as far as records care."""

    @property
    def key(self) -> UnitKey: ...


@dataclass(frozen=True)
class Choice:
    """A unit's template and knob values. unit: `Unit.key` as JSON has it. version: the template's."""

    unit: Figures
    template: str
    version: int
    knobs: Mapping[str, int]

    def __post_init__(self) -> None:
        if self.template in EARLIER:
            kind, *shape = self.unit["shape"]
            object.__setattr__(self, "unit", {**self.unit, "shape": [EARLIER.get(kind, kind), *shape]})
            object.__setattr__(self, "template", EARLIER[self.template])

    @staticmethod
    def from_dict(facts: Figures) -> Choice:
        """Raises KeyError, TypeError or ValueError where it is none."""
        from msgspec import convert  # no sooner: machines that only measure may lack it

        convert(facts["unit"], UnitKey)
        return convert(facts, Choice)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Record:
    """What won for one workload on one target.

    workload: cell, sizes, layers, directions, precision, steps (T), batch (B). median_us, spread: of the whole
    workload, and the same by the defaults (default_us), measured in the same run. trials: candidates measured.
    versions: of tvm and tvm_rnn. command: what made it. source: the folder it was read from.
    """

    target: str
    workload: Figures
    choices: tuple[Choice, ...]
    median_us: float
    default_us: float
    spread: float = 0.0
    trials: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    command: str = ""
    source: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """What there is one line for: the target and the workload."""
        return json.dumps([self.target, dict(self.workload)], sort_keys=True)

    @property
    def gain(self) -> float:
        """The defaults' time over this one."""
        return self.default_us / self.median_us if self.median_us else 1.0

    @property
    def name(self) -> str:
        """Such as "lstm H=256 B=16 bfloat16"."""
        work = self.workload
        layers = f" L={work['layers']}" if work.get("layers", 1) > 1 else ""
        return f"{work['cell']} H={work['hidden']}{layers} B={work['batch']} {work['precision']}"

    def as_dict(self) -> dict[str, object]:
        """Ready for json.dumps, in the order in which people read it."""
        facts = asdict(self)
        times = {name: facts.pop(name) for name in ("target", "workload", *TIMES, "trials")}
        del facts["source"]
        return {"format": FORMAT, **times, **facts, "choices": list(facts["choices"])}

    @staticmethod
    def from_dict(facts: Figures, source: str = "") -> Record:
        """Raises KeyError, TypeError or ValueError where it is no record."""
        from msgspec import convert

        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, not {FORMAT}")
        if missing := {"cell", "hidden", "batch", "precision"} - facts["workload"].keys():
            raise ValueError(f"a workload without {', '.join(sorted(missing))}")
        numbers = {n: v for n, v in convert(facts["workload"], WorkloadFacts).items() if type(v) is int}
        if low := [f"{name} {value}" for name, value in numbers.items() if value < 1]:
            raise ValueError(f"a workload with {', '.join(low)}")
        choices = [*map(Choice.from_dict, facts["choices"])]
        return replace(convert({**facts, "choices": [], "source": source}, Record), choices=tuple(choices))


@dataclass(frozen=True)
class Found:
    """A choice for a unit, the record that it is from, and how far from the unit that record's own is (0: exact)."""

    choice: Choice
    record: Record
    distance: float = 0.0

    @property
    def note(self) -> str:
        """For the manifest: where the knobs are from."""
        how = "record" if not self.distance else "nearest record"
        return f"{how}: {self.record.name}, {self.record.date[:10]}"


class Records:
    """Records by unit, for one target. ignored: a line for each that cannot be used, and why.

    lean: whether a compilation is for measuring alone, and leaves out what does not run then.
    """

    lean = False

    def __init__(self, records: Iterable[Record] = (), ignored: Iterable[str] = ()) -> None:
        self.records, self.ignored = tuple(records), tuple(ignored)

    def __len__(self) -> int:
        return len(self.records)

    def for_target(self, name: str, versions: Mapping[str, str]) -> Records:
        """Those made on that target with these versions; a line for each that other versions made."""
        kept, ignored = [], list(self.ignored)
        for record in self.records:
            if record.target != name:
                continue
            other = [f"{k} {v}" for k, v in record.versions.items() if k in versions and versions[k] != v]
            if other:
                ignored.append(f"{record.name}: made with {', '.join(other)}; tune again")
            else:
                kept.append(record)
        return Records(kept, ignored)

    @cached_property
    def _by_shape(self) -> dict[str, list[tuple[Choice, Record]]]:
        """Choices by what nearest units share."""
        found: dict[str, list[tuple[Choice, Record]]] = {}
        for record in self.records:
            for choice in record.choices:
                found.setdefault(_text(choice.unit.get("shape")), []).append((choice, record))
        return found

    def find(self, unit: HasKey) -> Iterator[Found]:
        """Exact ones first (of equal units the one whose record is newest), then by rising distance up to NEAR."""
        key = unit.key
        sizes, found = key["sizes"], []
        for choice, record in self._by_shape.get(_text(key["shape"]), ()):
            distance = _distance(sizes, choice.unit.get("sizes"))
            if distance < NEAR:
                found.append(Found(choice, record, distance))
        found.sort(key=lambda f: f.record.date, reverse=True)
        yield from sorted(found, key=lambda f: f.distance)

    def refused(self, found: Found, reason: str) -> None:
        """Told of a record for exactly this unit that cannot be used: a compilation goes on with the defaults."""


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _distance(ours: Figures, theirs: object) -> float:
    """The largest ratio between two units' sizes, as a power of two; infinite where they do not compare.

    Of batches, the largest that a module is made for counts: one code serves all of them, and what suits one row may
    be slow for many. There is none where none was named.
    """
    if not isinstance(theirs, Mapping) or ours.keys() != theirs.keys():
        return float("inf")
    largest = 0.0
    for name, sizes in ours.items():
        if name == "batch":
            if not sizes and not theirs[name]:
                continue
            largest = max(largest, _ratio(max(sizes), max(theirs[name])) if sizes and theirs[name] else float("inf"))
        elif len(sizes) != len(theirs[name]):
            return float("inf")
        else:
            largest = max([largest, *map(_ratio, sizes, theirs[name])])
    return largest


def _ratio(one: int, other: int) -> float:
    """Between two sizes, as a power of two."""
    return abs(log2(max(1, one)) - log2(max(1, other)))
