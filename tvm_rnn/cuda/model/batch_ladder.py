"""Which batch sizes have a kernel of their own where the caller names none: the rungs of a ladder.

In: a layer's time loop, the rungs that it has already (of the batch sizes to expect), a GPU. Out: those and as many
more as it takes until, by the model, every B up to 512 runs nearly as fast as if the module had been compiled for it.

A call takes the first rung that reaches its B. Where B is more than that rung's kernel has room for at once, whole
rounds of it are followed by what is left of the batch, on the rung of so many rows: one row more is no round more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_rnn.schedule.schedule_template import DEFAULT, templates
from tvm_rnn.target import Target

from .choose_geometry import ANY, ChosenGeometry, RecurrentUnit, geometry_of
from .persistent_step_time import StepTime

BATCHES = (1, 2, *range(8, 513, 8))  # that are looked at: tiles have 8 rows, and few of them may be there
WITHIN = 1.15  # of the time of a module for that B, by the model


@dataclass(frozen=True)
class Rung:
    """A geometry for B up to `most` (None: any). batch: for which it was chosen."""

    batch: int
    most: int | None
    chosen: ChosenGeometry
    time: StepTime

    def serves(self, batch: int) -> bool:
        return self.most is None or batch <= self.most


Reach = Callable[[ChosenGeometry, int], int | None]  # of a geometry chosen for a batch: its `most`, 0 for none
Steps = Callable[[int], float]  # microseconds of one launch per group and step


def ladder_us(rungs: Sequence[Rung], batch: int, steps: Steps) -> float:
    """Of a step of `batch` rows; rungs: by rising reach."""
    us = 0.0
    while batch:
        rung = next((rung for rung in rungs if rung.serves(batch)), None)
        if rung is None:
            return us + steps(batch)
        whole = rung.time.whole(batch)
        us, batch = us + rung.time.us(whole), batch - whole
    return us


def ladder(rungs: Sequence[Rung], unit: RecurrentUnit, target: Target, reach: Reach, steps: Steps) -> list[Rung]:
    """The rungs that are needed, by rising reach: no B takes longer than it may, and none of those that the given rungs
    are for takes longer than with them."""
    able = list(_best(replace(unit, batch=ANY), target)) if rungs else []
    if not able:
        return list(rungs)

    def ways(batch: int) -> list[tuple[ChosenGeometry, StepTime]]:
        """Those, and the given ones where one round takes the batch: copies have warps of their own in these alone."""
        own = [rung for rung in rungs if batch <= rung.time.at_once and not rung.chosen.recorded]
        return [*able, *((rung.chosen, rung.time) for rung in own)]

    least = {b: min(steps(b), *(time.us(b) for _, time in ways(b))) for b in BATCHES}
    found, before = list(rungs), list[Rung]()
    while found != before:  # a rung of larger reach ends that of the last one, and what that served may need another
        before = list(found)
        for batch in reversed(BATCHES):
            chosen, time = min(ways(batch), key=lambda pair: pair[1].us(batch))
            if ladder_us(found, batch, steps) <= WITHIN * least[batch] or steps(batch) <= time.us(batch):
                continue
            chosen, most = chosen._replace(us=time.us(batch)), batch
            if batch > found[-1].batch:
                most = reach(chosen, batch)
                if most == 0:
                    continue
                found[-1] = replace(found[-1], most=found[-1].batch)
            found = sorted(
                [*(rung for rung in found if rung.most != batch), Rung(batch, most, chosen, time)], key=_order
            )
    return _needed(found, {b: max(WITHIN * least[b], ladder_us(found, b, steps)) for b in BATCHES}, rungs, steps)


def _order(rung: Rung) -> float:
    return float("inf") if rung.most is None else rung.most


def _needed(found: Sequence[Rung], allowed: Mapping[int, float], given: Sequence[Rung], steps: Steps) -> list[Rung]:
    """Without the rungs that others make up for: where one was added for B, smaller ones came later that may serve what
    its neighbour's rounds leave."""
    named = {rung.batch: ladder_us(given, rung.batch, steps) for rung in given}
    allowed = {**allowed, **{batch: min(us, allowed.get(batch, us)) for batch, us in named.items()}}
    kept = list(found)
    for rung in found[:-1]:
        less = [other for other in kept if other is not rung]
        if not rung.chosen.recorded and all(ladder_us(less, batch, steps) <= us for batch, us in allowed.items()):
            kept = less
    return kept


def _best(unit: RecurrentUnit, target: Target) -> Iterator[tuple[ChosenGeometry, StepTime]]:
    """Of all geometries of all schedules that fit, the quickest for each number of rows and of groups at once."""
    found: dict[tuple[int, int], tuple[float, ChosenGeometry, StepTime]] = {}
    for template in templates().values():
        if template.applies(unit, target) and template.every is not None:
            for config in template.every(unit, target):
                made = geometry_of(template, unit, config)
                time = StepTime(made, target)
                us, key = time.us(time.at_once), (made.rows, time.resident)
                if key not in found or us < found[key][0]:
                    found[key] = us, ChosenGeometry(0.0, template.name, made, DEFAULT, config), time
    yield from ((chosen, time) for _, chosen, time in found.values())
