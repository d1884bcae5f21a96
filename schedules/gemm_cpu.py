"""Products with parameters on the CPU: packed weights, a register tile, the pointwise work in the epilogue.

In: a tile of `rows` batch rows by `panels` vectors of units (all gates of a unit together), from
`tvm_rnn.cpu.register_tile`. Out: the same tile with the accumulators in registers: k outside, rows x panels x gates
unrolled, lanes vectorised.

Rewrite: for row, panel, gate, lane, k: acc += a[row, k] * w[panel, k, gate, lane]
         -->  for k: (unrolled row, panel, gate) (vector lane): acc += ...

Source: the register-blocked micro-kernel of Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix
Multiplication".
"""

from collections.abc import Sequence

import numpy as np

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
DEFAULT_ROWS = (1, 2, 4, 8)
PANELS = (1, 2, 4, 8)
CHAINS = 8  # independent accumulators; 16 and 24 were no faster at H 128 to 512 on Zen 4, and leave less to share out
AHEAD = (0, 4, 8, 16, 32)  # vectors of all gates
ROW_VALUES = 4  # registers of rows' values that are on their way

LEAST_ROWS = 3  # a tile of fewer takes as long: that is how fast weights come from a second cache


def _cost(batches: Sequence[int], rows: int) -> tuple[int, int, int]:
    """What batches take in tiles of so many rows and one of what they leave: time, in rows; tiles; heights of what they
    leave that are no power of two: those have code of their own (`lower_group.py`)."""
    whole, rest = sum(batch // rows for batch in batches), [batch % rows for batch in batches if batch % rows]
    time = whole * max(rows, LEAST_ROWS) + sum(max(height, LEAST_ROWS) for height in rest)
    return time, whole + len(rest), sum(height.bit_count() > 1 for height in {*rest})


def _most_rows(gates: int, panels: int, target: Target) -> int:
    """Rows of the tallest tile that does not load more vectors than it multiplies. Of one gate, each row's value is
    read for one vector of weights alone, unless registers hold two of them, their sums and a few rows' values."""
    beside = (target.vector_registers - ROW_VALUES) // 2 - 1
    return max(ROW_VALUES, beside) if gates == 1 and panels > 1 else max(ROWS)


def _fits(unit: Unit, rows: int, target: Target) -> bool:
    """Whether registers hold a tile's sums and, for each term, a vector of each gate and a row's value. Before steps,
    where weights come from the first cache, the values of the shorter side and one of the other are enough."""
    held = min(rows, unit.gates) if unit.region == "before" else unit.gates
    return rows * unit.gates + held < target.vector_registers


def _parts(unit: Unit, rows: int, units: int, target: Target) -> int:
    """Into how many parts a step's product cuts its terms, where several tiles of rows read a panel's weights: those of
    a part fill half of the first cache. Where registers are many, tiles are tall and read weights seldom."""
    several = unit.region != "before" and min(unit.batches, default=2 * rows) >= 2 * rows
    if not several or rows == 1 or unit.stored or target.vector_registers > 16:
        return 1
    whole, parts = sum(unit.depths) * unit.gates * units * np.dtype(unit.dtype).itemsize, 1
    while 2 * whole > target.l1_bytes * parts and not any(depth % (2 * parts * CHAINS) for depth in unit.depths):
        parts *= 2
    return parts


@template("gemm_cpu", kinds=("gemm",), targets=("llvm",), version=3)
class GemmCpu:
    """Knobs: rows (batch rows of a full tile); broad (its vectors of units); panels (vectors taken together when there
    is one row, and the least that a thread takes); ahead (how far ahead weights are asked for, 0: not at all); next
    (whether each tile asks for a part of the panel that comes next); shared (among threads); parts (of terms, one after
    the other); turns (panels forwards in even steps and backwards in odd ones, for weights larger than a cache)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """The largest tile whose accumulators leave registers for one weight vector per gate and a broadcast."""
        lanes = target.lanes(unit.dtype)
        all_panels = -(-unit.width // lanes)
        accumulators = target.accumulators
        most = _most_rows(unit.gates, all_panels, target)
        able = [r for r in ROWS if r * unit.gates <= accumulators and r <= most]
        rows = max([r for r in able if r in DEFAULT_ROWS], default=1)
        fitting = [r for r in able if _fits(unit, r, target)]
        if unit.region == "before":  # many rows, of all steps: a panel of weights passes the fewest tiles
            rows = max([r for r in fitting if r <= max(DEFAULT_ROWS)], default=rows)
        elif unit.batches:
            rows = min([rows, *fitting], key=lambda r: _cost(unit.batches, r))
        # One row alone is bound by the latency of its chain of additions: two FMA pipes of four cycles want CHAINS.
        single = max(p for p in PANELS if p == 1 or (p <= all_panels and p * unit.gates <= min(CHAINS, accumulators)))
        # Whatever batch sizes are named: at B = 1 the loops for taller tiles cost nothing (lstm and elman, H 130 to
        # 512, within noise), and without them B = 64 took 1.5 to 2 times as long.
        tall = [r for r in ROWS if r <= rows or _fits(unit, r, target)]
        if unit.batches:  # one row at a time suits one batch size, and is slow at all others
            tall = [r for r in tall if r > 1 and (unit.region != "step" or r <= max(unit.batches))]
        step = unit.region == "step"
        # Caches ask for what follows only while it is read: the other tiles of rows would read a panel from the second
        # cache, and what is behind that would have nothing to do (LSTM 57 -> 684, B = 13: 484 us, and 425 with `next`).
        weights = unit.gates * unit.width * sum(unit.depths) * np.dtype(unit.dtype).itemsize
        heavy = step and weights > target.l2_bytes
        panels = knob("panels", [p for p in PANELS if p // 2 < all_panels], single)
        taken = knob("rows", [rows, *tall], rows)
        # A vector of weights serves `rows` rows, and a row's value `broad` vectors: where gates are few, each
        # multiply-add would wait for a load of its own otherwise (elman, H 512, B 64: 171 GFLOP/s in place of 206).
        widest = panels if taken > 1 else 1
        wide = [p for p in PANELS if p <= widest and (taken + 1) * p * unit.gates < target.vector_registers]
        default = max([p for p in wide if taken * p * unit.gates <= accumulators], default=1)
        broad = knob("broad", [1, *wide], default)
        parts = _parts(unit, taken, broad * lanes, target)
        return {
            "rows": taken,
            "broad": broad,
            "parts": knob("parts", [1, parts] if parts > 1 else [1], parts),
            "panels": panels,
            "ahead": knob("ahead", AHEAD, 0),
            "next": knob("next", (0, 1) if heavy else (0,), int(heavy)),
            "shared": knob("shared", (0, 1) if all_panels > 1 else (1,), 1),
            # What was read last is read first again: B = 1, H 256 to 512, 1.05 to 1.2 times as fast, and never slower.
            "turns": knob("turns", (0, 1) if step and all_panels > 1 else (0,), int(step and all_panels > 1)),
        }
