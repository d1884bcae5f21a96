"""Linear recurrences in chunks, on the emulator, beside a float64 loop over steps."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from emulated import run
from linear_steps import Steps, recurrence

from tvm_rnn.cuda.linear.chunk_scan import ChunkScan, ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED, Recurrence

SMALL = ChunkTile(chunk=32, warps=1)
TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3}


@functools.cache
def scan(own: Recurrence, tile: ChunkTile) -> ChunkScan:
    return ChunkScan("k", own, tile)


def error(case: Steps, tile: ChunkTile = SMALL, span: int = 0) -> float:
    """Of a kernel's run."""
    found = scan(case.own, tile)
    masked = case.lengths is not None or case.reset is not None
    arrays = case.arrays()
    scalars = {"steps": case.steps, "batch": case.batch, "span": span or case.steps + (-case.steps) % tile.chunk}
    scalars |= {"start": 0, "total": case.steps}
    scalars |= {"has_lengths": int(case.lengths is not None), "has_reset": int(case.reset is not None)}
    run(found.kernels[masked], arrays, scalars, found.blocks(case.batch))
    return case.error(arrays)


def test_tiny():
    case = Steps(recurrence(1, erase=DECAYED, value_scale=True), 40, 1)
    assert error(case) < 2e-2
