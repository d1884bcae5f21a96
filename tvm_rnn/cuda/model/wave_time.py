"""Up to how many steps all layers of a call in one launch take less time than one after the other.

In: predicted microseconds of a step both ways, and how many layers have room on the GPU at the same time. Out: T.

A wave takes a step of one layer for each step and for each layer above the first. Layers on streams of their own take
turns by tiles of time, which get longer with T: what begins a tile is then shared by more steps.

Constants are fitted to calls of stacks of 2 to 6 layers on an H200, of 32 to 485 units, up to 70 rows and 1024 steps,
in 16 bits and TF32. Waves of small layers in float32 take less time than this predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tvm_rnn.cuda.persistent.geometry import Geometry

from .choose_backward_lanes import WAVE_STEPS, WAVE_TILES
from .persistent_step_time import phase_times

WAVE_US, WAVE_LAYER_US = 8.0, 0.8  # before the first step: memory that is marked, weights; more for each layer
WAVE_STEP = 0.85  # of a predicted step: products of inputs hide behind the wait for the layer itself
TILE_US = 1.5  # a tile's products of inputs, beside the start of its kernel
ALONE, ALONE_US = 1.2, 1.5  # where no layer runs beside: of a step, and more for each launch
LEAST_STEPS = 2  # of a wave
LONGEST = 1 << 16
STEPS = sorted({ceil(LEAST_STEPS * 1.25**power) for power in range(46)} | {LONGEST})


@dataclass(frozen=True)
class OneByOne:
    """Layers one after the other, for one batch size. us: of a step of all; start: before a tile's first step, of all;
    beside: how many of them have room at the same time."""

    us: float
    start: float
    layers: int
    beside: int

    def call_us(self, steps: int) -> float:
        """Microseconds of a call of so many steps."""
        if self.beside < 2 or steps < 2 * WAVE_STEPS:
            slower = ALONE if self.beside < 2 else 1.0
            return slower * steps * self.us + self.start + self.layers * (TILE_US + ALONE_US)
        tile = max(WAVE_STEPS, ceil(steps / (WAVE_TILES * self.layers)))
        each = (tile * self.us + self.start) / self.layers + TILE_US
        tiles = ceil(steps / tile)
        return each * max(tiles + self.layers - 1, tiles * self.layers / min(self.beside, self.layers))


def following_us(geometry: Geometry, us: float) -> float:
    """Of a step's predicted time what a layer needs that follows another one: phases that read nothing else are done
    before it has its own values."""
    pairs = zip(geometry.step.phases, phase_times(geometry), strict=True)
    ahead = (time.us for phase, time in pairs if phase.operands and all(own.given for own in phase.operands))
    return us - sum(ahead)


def most_steps(us: float, other: OneByOne, launches: int = 1) -> int:
    """The largest T for which a wave whose step takes so long is predicted to take less; 0: none, LONGEST: any.
    launches: one after the other, each of some rows."""

    def wave_us(steps: int) -> float:
        return launches * (WAVE_US + WAVE_LAYER_US * other.layers + WAVE_STEP * us * (steps + other.layers - 1))

    return max((steps for steps in STEPS if wave_us(steps) < other.call_us(steps)), default=0)
