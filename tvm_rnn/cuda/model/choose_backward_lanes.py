"""Layers of a backward pass side by side: in which geometry, and in tiles of how many steps.

In: a layer's phases, how many layers there are, a GPU. Out: the geometry of each layer's persistent kernel: the fastest
one for a layer alone, or one on a part of the multiprocessors where the whole stack is clearly faster with several
layers at once; and the least steps of a tile, which fill and drain the wavefront.

    alone:    for layer: for tile: steps                   L T us
    at once:  for turn:  tile k of a layer beside tile k - 1 of the layer that follows it, `at_once` of them together

Source: the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from tvm_rnn.cuda.layer.phases import Step
from tvm_rnn.cuda.layer.regime import Regime, by_batch
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.decisions import recording, tell
from tvm_rnn.target import Target

from .choose_geometry import ChosenGeometry, choose_geometry
from .persistent_step_time import predict, resident_groups

# A wavefront of L layers over n tiles takes n + L - 1 turns in place of L n, each with its launches: a few us.
WAVE_STEPS, WAVE_TILES = 32, 4  # least steps of a tile, and tiles per layer to aim at
# Backward: what a tile takes beside its steps and products: sixteen launches of 2 us, of an LSTM in a graph. That is an
# estimate, not measured. Steps of a tile take three times that, at least.
TILE_US = 32.0
TILE_STEPS_US = 3 * TILE_US
# Of layers one after the other: what tiles take beside their steps, of these at most; what a tile takes, and for how
# many elements of sums, read and written, it takes a microsecond more. H200, us of a tile more, predicted and measured:
# LSTM 1024, 64 rows of 85 steps, 94 and 91; 2560, 66 steps, 194 and 203.
OWN_SHARE, ALONE_US, SUMS_PER_US = 1 / 12, 75.0, 0.44e6
STEPS = 128  # of a sequence to weigh by: T is not known
CLEARLY = 0.85  # of the time alone: shorter sequences gain less
# Layers at the same time slow each other, and their products too. LSTM, backward, us per step of a layer, measured
# beside others and predicted alone: 4 x 512, B = 64, bf16 5.0, 3.7, TF32 7.9, 7.2; 3 x 256, B = 64, TF32 5.0, 3.4.
BESIDE = 1.25
PARTS = 4  # into so many a GPU is divided at most; in two, if not so


def least_steps(us: float) -> int:
    """Of a tile of backward, where a step takes so long: a tile's own work is a quarter of it, or less."""
    return max(8, min(WAVE_STEPS, ceil(TILE_STEPS_US / max(us, 1.0))))


def fewest_steps(us: float, row_us: float, sums: int) -> str:
    """A C++ expression in B: of a tile of a layer that runs alone, where a step takes so long, and for each row so much
    more in products over all steps: tiles are as short as costs little, for their rows are what backward has most
    memory for. sums: elements of gradients of weights, which each tile adds to."""
    own, step, row = (round(1e6 * part) for part in ((ALONE_US + sums / SUMS_PER_US) / OWN_SHARE, max(us, 1.0), row_us))
    return f"max<int64_t>(1, {own} / ({step} + B * {row}))"


def stack_us(layers: int, at_once: int, us: float, steps: int = STEPS) -> float:
    """All steps of all layers, `at_once` of them at the same time."""
    if at_once < 2:
        return layers * (steps * us + TILE_US)
    tiles = min(WAVE_TILES * layers, ceil(steps / least_steps(us)))
    turns = tiles + layers - 1
    active = (min(turn + 1, layers, tiles, turns - turn) for turn in range(turns))
    return turns * TILE_US + sum(ceil(n / at_once) for n in active) * ceil(steps / tiles) * us * BESIDE


def at_once(geometry: Geometry, batch: int, target: Target) -> int:
    """How many layers of that geometry the GPU has room for."""
    return max(1, resident_groups(geometry, target) // ceil(batch / geometry.rows))


def room_for_two(regimes: Sequence[Regime]) -> str:
    """A C++ condition in B: the steps run in one kernel, and two such have room on the GPU at once."""
    return str(by_batch(regimes, lambda regime: regime.room, 0))


def geometry_beside(
    step: Step, target: Target, precision: str, batch: int, layers: int = 1, stored: str = ""
) -> ChosenGeometry | None:
    """As `geometry`, for one of `layers` equal layers that may run at the same time. What a record says of the layer is
    kept: it was measured."""
    alone = choose_geometry(step, target, precision, batch, stored=stored, beside=layers)
    if layers < 2 or alone is None or alone.geometry is None or alone.recorded:
        return alone
    best, first = alone, stack_us(layers, at_once(alone.geometry, batch, target), alone.us)
    least = first
    for part in sorted({2, min(layers, PARTS)}):
        with recording(listen=False):  # the reasons are those of the whole GPU
            part_of = replace(target, sms=target.sms // part)
            other = choose_geometry(step, part_of, precision, batch, stored=stored, beside=layers)
        if other is None or other.geometry is None:
            continue
        us = predict(other.geometry, batch, target)
        whole = stack_us(layers, at_once(other.geometry, batch, target), us)
        if whole < min(least, CLEARLY * first):
            best, least = other._replace(us=us), whole
    why = f"{layers} layers in {least:.0f} us for {STEPS} steps predicted"
    why += f", {best.us:.2f} us per step of each; one after the other {first:.0f}, {alone.us:.2f}"
    taken = best is not alone
    tell(taken, "narrower kernels for layers side by side", why if taken else f"{first:.0f} us are not clearly more")
    return best
