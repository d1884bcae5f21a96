"""Which tile a chunk scan has: by a template, as all schedules are.

In: a `Recurrence`, batch sizes, a GPU. Out: a `ChunkTile` and where it is from, for each regime of batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tvm_rnn.records import UnitKey
from tvm_rnn.schedule.schedule_template import Config, Unit, alike, best
from tvm_rnn.target import Target

from .chunk_layout import ChunkLayout
from .chunk_tile import ChunkTile
from .recurrence import Recurrence

SMALLEST = ChunkTile(chunk=32, warps=1)


@dataclass(frozen=True, kw_only=True)
class ChunkUnit(Unit):
    """A recurrence, as templates see it."""

    recurrence: Recurrence

    @property
    def key(self) -> UnitKey:
        own = self.recurrence
        erases = "none" if own.erasing is None else {"key": "key", "erase": "own"}.get(own.erasing_vector, "apart")
        decays = "by key" if own.decays_by_key else own.decay is not None
        shape: list[object] = [self.kind, alike(self.dtype), decays, erases, len(own.reads)]
        sizes = {"heads": [own.heads], "keys": [own.keys], "values": [own.values], "batch": list(self.batches)}
        return {"shape": shape, "sizes": sizes}

    def layout(self, tile: ChunkTile) -> ChunkLayout:
        """What a tile takes."""
        return ChunkLayout("tile", self.recurrence, tile)


class ChosenTile(NamedTuple):
    """template, knobs, record: as `schedule_template.Chosen` has them."""

    tile: ChunkTile
    template: str
    knobs: Config
    record: str


class ChosenRung(NamedTuple):
    """A tile for batch sizes up to `most`; None: for any."""

    most: int | None
    chosen: ChosenTile


def refused(recurrence: Recurrence, target: Target) -> str:
    """Why no chunk kernel takes a recurrence; "" where one does."""
    if target.arch != "sm_90a":
        return f"chunks are for sm_90a, not for {target.arch}"
    if not recurrence.why_no_chunks and not ChunkLayout("tile", recurrence, SMALLEST).possible:
        own = recurrence
        return f"shared memory does not hold a chunk of {own.keys} keys, {len(own.vectors)} vectors a step"
    return recurrence.why_no_chunks


def choose(recurrence: Recurrence, batches: Sequence[int], target: Target) -> ChosenTile:
    """The tile for these batch sizes. Raises BuildError where no template takes the recurrence."""
    unit = ChunkUnit("chunks", "before", recurrence.precision, batches=tuple(batches), recurrence=recurrence)
    template, knobs, record = best(unit, target)
    return ChosenTile(ChunkTile(**knobs), template.name, knobs, record)


def rungs(recurrence: Recurrence, batches: Sequence[int], target: Target) -> tuple[ChosenRung, ...]:
    """The tiles of the batch sizes that are named, by rising batch; one reaches to where the next one is chosen. With
    many rows wide tiles fill the GPU and make the same scores fewer times; with few it would stand idle."""
    found = list[ChosenRung]()
    for batch in sorted({*batches} or {1}):
        chosen = choose(recurrence, (batch,), target)
        if found and found[-1].chosen.tile != chosen.tile:
            reach = batch
            while reach // 2 > (found[-1].most or 0) and choose(recurrence, (reach // 2,), target).tile == chosen.tile:
                reach //= 2
            found[-1] = found[-1]._replace(most=max(found[-1].most or 0, reach - 1))
            found.append(ChosenRung(batch, chosen))
        elif found:
            found[-1] = found[-1]._replace(most=batch)
        else:
            found.append(ChosenRung(batch, chosen))
    return (*found[:-1], found[-1]._replace(most=None))
