"""The geometry of a persistent kernel: what a record says of a layer's time loop, else what the model predicts.

In: a layer's phases, a precision, a batch size, a GPU with its records. Out: a `ChosenGeometry`: the template's, or the
word that no persistent kernel is to run. Templates in `schedules/` say which geometries there are,
`persistent_step_time.py` which of them is fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm_rnn.cuda.layer.phases import Step
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.decisions import about, recording, tell
from tvm_rnn.errors import ConfigError
from tvm_rnn.records import UnitKey
from tvm_rnn.schedule.schedule_template import DEFAULT, Knobs, Template, Unit, alike, replayed, stale, templates
from tvm_rnn.target import Target

from .persistent_step_time import able_to_run, predict

# What a record names in place of a template: one launch per group and step; layers one after the other, in no wave.
STEP_BY_STEP, LAYER_BY_LAYER = "step_by_step", "layer_by_layer"
ANY = 0  # a batch size: none in particular, every number of rows of a group is asked for
# A nearest record's geometry is taken unless the model says that it is slower than the best by more than it errs.
MODEL_ERROR = 1.15


@dataclass(frozen=True, kw_only=True)
class RecurrentUnit(Unit):
    """A layer's whole time loop, as templates see it: `step` and `batch` beside the shape. layers: of a wave, each with
    its part of the GPU. stored: the dtype of weights, where it is not the precision's. sms: multiprocessors of the GPU,
    or of that part."""

    step: Step
    sms: int
    precision: str
    batch: int
    layers: int = 1
    stored: str = ""
    beside: int = 1  # layers of a stack, or directions, that would run at the same time if each left room

    @property
    def key(self) -> UnitKey:
        phases, sizes = [], list[int]()
        for phase in self.step.phases:
            given = sum(operand.given for operand in phase.operands)
            phases.append([phase.kind, phase.gates, len(phase.operands), given, len(phase.published)])
            sizes += [phase.width, *(operand.depth for operand in phase.operands)]
        shape = [self.kind, " ".join(filter(None, [alike(self.precision), self.stored])), self.layers, phases]
        shape += [f"{self.step.heads} heads"] if self.step.heads > 1 else []
        return {"shape": shape, "sizes": {"phases": sizes, "batch": [self.batch]}}


class ChosenGeometry(NamedTuple):
    """geometry: None where a record says that no persistent kernel is to run. us: predicted, per step. record: in
    words. knobs: as a record names them."""

    us: float
    template: str
    geometry: Geometry | None
    record: str
    knobs: Mapping[str, int] = {}

    @property
    def recorded(self) -> bool:
        """Whether it was measured to be better than the default for this very unit."""
        return self.record.startswith("record") and not self.record.endswith("defaults")


def unit_of(
    step: Step, target: Target, precision: str, batch: int, layers: int = 1, stored: str = "", *, beside: int = 1
) -> RecurrentUnit:
    """What templates are asked about, and what records are found by."""
    width = max(state.shape[0] for state in step.graph.states)
    return RecurrentUnit(
        kind="recurrent",
        region="step",
        dtype=precision,
        width=width,
        step=step,
        sms=target.sms,
        precision=precision,
        batch=batch,
        layers=layers,
        stored=stored,
        beside=beside,
    )


def choose_geometry(
    step: Step, target: Target, precision: str, batch: int, layers: int = 1, stored: str = "", *, beside: int = 1
) -> ChosenGeometry | None:
    """The geometry of a record for this unit; else the one with the least predicted time over all templates, or a
    nearest record's where the model has nothing against it. None: nothing fits, and no record says so.

    layers: of a wave; then `target` is the part of the GPU that one layer has. stored: the dtype of weights, where it
    is not the precision's.
    """
    unit = unit_of(step, target, precision, batch, layers, stored, beside=beside)
    able = {t.name: t for t in templates().values() if t.applies(unit, target)}
    best, near, every, note = None, list[ChosenGeometry](), list[ChosenGeometry](), DEFAULT
    for found in target.records.find(unit):
        if found.choice.template == DEFAULT:
            if not found.distance:
                near, note = [], f"{found.note}: defaults"
                break
            continue
        if found.choice.template in (STEP_BY_STEP, LAYER_BY_LAYER):
            if not found.distance:
                tell(False, "persistent kernels", f"measured to be slower than {found.choice.template} ({found.note})")
                return ChosenGeometry(0.0, found.choice.template, None, found.note)
            continue
        if stale(found.choice, able):
            continue
        with recording(listen=False):  # why a record does not fit is no reason of this unit's
            made = _made(able[found.choice.template], unit, target, Knobs(found.choice.knobs), found.note)
        if made is not None and made.geometry is not None and able_to_run(made.geometry, target):
            near.append(made)
            if not found.distance:
                return near[-1]
    for template in able.values():
        with about("", template=template.name):
            made = _made(template, unit, target, Knobs(), note)
        if made is not None:
            every.append(made)
            best = made if best is None or made.us < best.us else best
    allowed = [n for n in near if best is None or n.us <= MODEL_ERROR * best.us]
    taken = allowed[0] if allowed else best
    for other in [*near, *every]:
        if taken is not None and other is not taken:
            better = "measured" if taken.record != DEFAULT else "predicted"
            why = f"{other.us:.2f} us per step predicted; {taken.template} ({better} better) takes {taken.us:.2f}"
            tell(False, other.template, why, predicted_us=round(other.us, 3))
    return taken


def geometry_of(template: Template, unit: RecurrentUnit, config: Mapping[str, int]) -> Geometry:
    """What a template's configuration is."""
    schedule: Any = template.schedule
    made: Geometry = schedule(None, unit, config)
    return made


def _made(template: Template, unit: RecurrentUnit, target: Target, knobs: Knobs, note: str) -> ChosenGeometry | None:
    """What a template makes of knobs; None where it has nothing of the kind."""
    try:
        config = replayed(template, unit, target, knobs)
    except ConfigError:
        return None
    if not config:
        return None
    made = geometry_of(template, unit, config)
    return ChosenGeometry(predict(made, unit.batch, target), template.name, made, note, config)
