"""Templates: how a unit of work becomes a schedule, with named knobs.

In: a `Unit` from `lower.py` and a Target. Out: knob values (`Config`) and a scheduled tile. A template is one function
for all uses: asked with `Knobs()` it gives its defaults, with `Knobs(record)` it replays a record, and afterwards
`space` holds every choice that it had. Templates live in `schedules/` and in folders named by TVM_RNN_SCHEDULES; the
package discovers them and never imports one by name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BuildError, ConfigError, message, unknown
from .target import Target

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

Config = dict[str, int]


@dataclass(frozen=True)
class Unit:
    """A group's shape, as far as a schedule cares: what a template is chosen for and a record is keyed by.

    kind: "gemm", "reduce" or "pointwise". gates G, width N (units), depths K of each product, stages: pointwise values
    in the epilogue. batches: the batch sizes named at compile time.
    """

    kind: str
    region: str
    dtype: str
    gates: int = 1
    width: int = 1
    depths: tuple[int, ...] = ()
    stages: int = 0
    batches: tuple[int, ...] = ()


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


@dataclass(frozen=True)
class Template:
    """One way to schedule units of a kind on targets of a kind.

    configure(unit, target, knob) -> Config: the knobs' values, legal for this unit and target.
    schedule(sch, unit, config): schedules the tile's blocks: "product_*" (with axes row, panel, gate, lane, k),
    "partial", and "value_*", "out_*" (last axis lane).
    """

    name: str
    kinds: tuple[str, ...]
    targets: tuple[str, ...]
    configure: Callable[[Unit, Target, Knobs], Config]
    schedule: Callable[[Schedule, Unit, Config], None]

    def applies(self, unit: Unit, target: Target) -> bool:
        return unit.kind in self.kinds and target.kind in self.targets


_found: dict[str, Template] | None = None


def template(name: str, *, kinds: Sequence[str], targets: Sequence[str]) -> Callable[[type], Template]:
    """Class decorator: a class with static functions `configure` and `schedule` becomes a Template."""
    return lambda c: Template(name, tuple(kinds), tuple(targets), c.configure, c.schedule)  # type: ignore[attr-defined]


def folders() -> list[Path]:
    """Where templates are looked for: the ones that ship with tvm_rnn, then those of TVM_RNN_SCHEDULES."""
    spec = importlib.util.find_spec("tvm_rnn.schedules")
    own = Path(spec.origin).parent if spec and spec.origin else Path(__file__).resolve().parent.parent / "schedules"
    extra = os.environ.get("TVM_RNN_SCHEDULES", "")
    return [own, *(Path(p) for p in extra.split(os.pathsep) if p)]


def templates() -> dict[str, Template]:
    """Every template by name; the user's own replace ours of the same name."""
    global _found
    if _found is None:
        _found = {}
        for folder in folders():
            if not folder.is_dir():
                raise ConfigError(message("no such folder of schedules", got=folder, do="check TVM_RNN_SCHEDULES"))
            for file in sorted(folder.glob("*.py")):
                for value in vars(_load(file)).values():
                    if isinstance(value, Template):
                        _found[value.name] = value
    return _found


def _load(file: Path) -> Any:
    name = f"tvm_rnn_schedules_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def best(unit: Unit, target: Target, record: Mapping[str, int] | None = None) -> tuple[Template, Config]:
    """The template for a unit and its knob values: the record's, else the template's defaults.

    Raises BuildError if no template takes the unit.
    """
    able = [t for t in templates().values() if t.applies(unit, target)]
    if not able:
        known = unknown("template", f"{unit.kind} on {target.kind}", templates())
        raise BuildError(message("no template schedules this unit", got=known["got"], expected=known["expected"]))
    chosen = able[-1]  # the last found: a user's folder comes after ours
    return chosen, chosen.configure(unit, target, Knobs(record or {}))
