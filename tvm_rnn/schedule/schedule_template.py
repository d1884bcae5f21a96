"""Templates: how a unit of work becomes a schedule, with named knobs.

In: a `Unit` from `cpu/lower_network.py` and a Target. Out: knob values (`Config`) and a scheduled tile. A template is
one function for all uses: asked with `Knobs()` it gives its defaults, with `Knobs(record)` it replays a record, and
afterwards `space` holds every choice that it had. Templates live in `schedules/` and in folders named by
TVM_RNN_SCHEDULES; the package discovers them and never imports one by name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tvm_rnn.errors import BuildError, ConfigError, message, unknown
from tvm_rnn.locations import PACKAGE
from tvm_rnn.records import UnitKey
from tvm_rnn.target import Target

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

    from tvm_rnn.records import Choice

Config = dict[str, int]
# Where knob values are from. In place of a template in a record: its defaults were the fastest.
DEFAULT, GIVEN = "default", "given"


@dataclass(frozen=True)
class Unit:
    """A group's shape, as far as a schedule cares: what a template is chosen for and a record is keyed by.

    kind: "gemm", "reduce" or "pointwise" of a group; "sum_rows" of a sum over all rows; "scan" or "recurrent" of a
    whole loop on a GPU, "recurrence" of a linear one in chunks of time; "walk" of all layers. gates G, width N (units),
    depths K of each product, stages: pointwise values in the epilogue, of a walk what goes through a tile at once.
    batches: the batch sizes named at compile time.
    """

    kind: str
    region: str
    dtype: str
    gates: int = 1
    width: int = 1
    depths: tuple[int, ...] = ()
    stages: int = 0
    batches: tuple[int, ...] = ()
    stored: str = ""

    @property
    def key(self) -> UnitKey:
        """What a record is found by: nearest ones share the shape, exact ones the sizes too. Nothing of it names a
        cell: one of the same products is served by the same record."""
        dtype = f"{alike(self.dtype)}, weights in {self.stored}" if self.stored else alike(self.dtype)
        shape: list[object] = [self.kind, self.region, dtype, self.gates, len(self.depths)]
        sizes = {"width": [self.width], "depths": list(self.depths), "batch": list(self.batches)}
        return {"shape": shape, "sizes": sizes}


def alike(precision: str) -> str:
    """Precisions that take the same time share records: the two of 16 bits."""
    return "16 bits" if precision in ("float16", "bfloat16") else precision


@dataclass
class Knobs:
    """Asked for a knob by name, answers with the recorded value, or the default; keeps the choices in `space`."""

    record: Mapping[str, int] = field(default_factory=dict)
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)
    chosen: Config = field(default_factory=dict)

    def __call__(self, name: str, choices: Sequence[int], default: int) -> int:
        options = tuple(sorted(set(choices)))
        value = self.record.get(name, default)
        if value not in options:
            expected = f"one of {list(options)}"
            raise ConfigError(message(f"knob {name} has no such value", got=value, expected=expected, do="tune again"))
        self.space[name] = options
        self.chosen[name] = value
        return value


class Methods(Protocol):
    """A class that `template` decorates; it may also have `schedule`, `every` and `predict`."""

    @staticmethod
    def configure(unit: Any, target: Target, knob: Knobs, /) -> Config: ...  # a Unit, or one of the template's own kind


@dataclass(frozen=True)
class Template:
    """One way to schedule units of a kind on targets of a kind.

    configure(unit, target, knob) -> Config: the knobs' values, legal for this unit and target.
    schedule(sch, unit, config): schedules the sums of a CPU's tile, blocks "product_*" (axes row, panel, gate, lane, k)
    or "partial"; None: loops over k outside, the tile unrolled, lanes vectorised.
    every(unit, target) -> configurations: all that are legal; default: all combinations of the choices that `configure`
    offers. predict(unit, config, target) -> microseconds: what tuning tries first; default: unknown.
    version: raised when a knob comes to mean something else, so that records of before are ignored.
    """

    name: str
    kinds: tuple[str, ...]
    targets: tuple[str, ...]
    configure: Callable[[Unit, Target, Knobs], Config]
    schedule: Callable[[Schedule, Unit, Config], object] | None = None
    every: Callable[[Unit, Target], Iterable[Config]] | None = None
    predict: Callable[[Unit, Config, Target], float] | None = None
    version: int = 1

    def applies(self, unit: Unit, target: Target) -> bool:
        return unit.kind in self.kinds and target.kind in self.targets


_found: dict[str, Template] | None = None
_loading = threading.RLock()


def template(
    name: str, *, kinds: Sequence[str], targets: Sequence[str], version: int = 1
) -> Callable[[type[Methods]], Template]:
    """Class decorator: a class with a static function `configure`, and if it likes `schedule`, `every` and `predict`,
    becomes a Template."""

    def make(c: type[Methods]) -> Template:
        own = {part: getattr(c, part, None) for part in ("schedule", "every", "predict")}
        return Template(name, tuple(kinds), tuple(targets), c.configure, **own, version=version)

    return make


def folders() -> list[Path]:
    """Where templates are looked for: the ones that ship with tvm_rnn, then those of TVM_RNN_SCHEDULES."""
    spec = importlib.util.find_spec("tvm_rnn.schedules")
    own = Path(spec.origin).parent if spec and spec.origin else PACKAGE.parent / "schedules"
    extra = os.environ.get("TVM_RNN_SCHEDULES", "")
    return [own, *(Path(p) for p in extra.split(os.pathsep) if p)]


def templates() -> dict[str, Template]:
    """Every template by name; the user's own replace ours of the same name."""
    global _found
    with _loading:  # several threads may compile
        if _found is None:
            _found = _in_folders()
        return _found


def _in_folders() -> dict[str, Template]:
    found = dict[str, Template]()
    for folder in folders():
        if not folder.is_dir():
            raise ConfigError(message("no such folder of schedules", got=folder, do="check TVM_RNN_SCHEDULES"))
        for file in sorted(folder.glob("*.py")):
            found |= {value.name: value for value in vars(_load(file)).values() if isinstance(value, Template)}
    return found


def _load(file: Path) -> ModuleType:
    name = f"tvm_rnn_schedules_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Chosen(NamedTuple):
    """A unit's template and knob values. record: where they are from, in words for the manifest."""

    template: Template
    knobs: Config
    record: str = DEFAULT


def best(unit: Unit, target: Target, given: Mapping[str, int] | None = None) -> Chosen:
    """The template for a unit and its knob values: those given, else those of the target's records, else the template's
    defaults.

    A record that does not fit the unit (another version of the template, a value that is no choice here) is passed
    over, and `record` says so where it was one for exactly this unit. Raises BuildError if no template takes the unit.
    """
    able = {t.name: t for t in templates().values() if t.applies(unit, target)}
    if not able:
        known = unknown("template", f"{unit.kind} on {target.kind}", templates())
        raise BuildError(message("no template schedules this unit", got=known["got"], expected=known["expected"]))
    chosen = list(able.values())[-1]  # the last found: a user's folder comes after ours
    if given is not None:
        return Chosen(chosen, chosen.configure(unit, target, Knobs(given)), GIVEN)
    passed_over = ""
    for found in target.records.find(unit):
        if found.choice.template == DEFAULT and not found.distance:
            return Chosen(chosen, chosen.configure(unit, target, Knobs()), f"{found.note}: defaults")
        reason = stale(found.choice, able)
        if not reason:
            own, knobs = able[found.choice.template], Knobs(found.choice.knobs)
            try:
                return Chosen(own, replayed(own, unit, target, knobs), found.note)
            except ConfigError as error:
                reason = str(error).splitlines()[0]
        if not found.distance:
            target.records.refused(found, reason)
            passed_over = passed_over or f"{DEFAULT} (a {found.note} is ignored: {reason})"
    return Chosen(chosen, chosen.configure(unit, target, Knobs()), passed_over or DEFAULT)


def space(own: Template, unit: Unit, target: Target) -> Iterator[Config]:
    """Every legal configuration of a template for a unit, the default first, each once."""
    asked = Knobs()
    default = own.configure(unit, target, asked)
    if not default:
        return
    default = asked.chosen
    seen = {tuple(sorted(default.items()))}
    yield default
    for config in own.every(unit, target) if own.every is not None else _combinations(own, unit, target, asked):
        config = {name: value for name, value in config.items() if name in asked.space}  # not what follows from others
        key = tuple(sorted(config.items()))
        if key not in seen:
            seen.add(key)
            yield config


def _combinations(own: Template, unit: Unit, target: Target, asked: Knobs) -> Iterator[Config]:
    for values in product(*asked.space.values()):
        try:
            config = replayed(own, unit, target, Knobs(dict(zip(asked.space, values, strict=True))))
        except ConfigError:
            continue
        if config:
            yield config


def stale(choice: Choice, able: Mapping[str, Template]) -> str:
    """Why a record's choice cannot be replayed by these templates; empty if it can."""
    if choice.template not in able:
        return f"no template {choice.template} takes this unit"
    version = able[choice.template].version
    return "" if version == choice.version else f"made for version {choice.version} of the template, which is {version}"


def replayed(own: Template, unit: Unit, target: Target, knobs: Knobs) -> Config:
    """The configuration that a record's knobs give. Raises ConfigError where one of them is neither asked for nor, with
    that value, a part of it."""
    config = own.configure(unit, target, knobs)
    if strange := {name for name, value in knobs.record.items() if knobs.chosen.get(name, config.get(name)) != value}:
        raise ConfigError(message(f"{own.name} has no knob {', '.join(sorted(strange))} here", do="tune again"))
    return config
