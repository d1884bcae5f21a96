"""Time in segments, on the emulator: the states before each, then all steps at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import POISON, run
from linear_steps import Steps, recurrence

from tvm_rnn.cuda.linear.chunk_scan import ChunkScan
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import DECAYED
from tvm_rnn.cuda.linear.segments import Compose, SegmentEnds

TILE = ChunkTile(chunk=32, warps=1)


def error(case: Steps, span: int) -> float:
    """Of three kernels' run."""
    own, batch = case.own, case.batch
    count = -(-case.steps // span)
    masked = case.lengths is not None or case.reset is not None
    arrays = case.arrays()
    state = arrays["state_in"]
    every = {
        "ends": np.full((count - 1, *state.shape), POISON, "f4"),
        "starts": np.full((count, *state.shape), POISON, "f4"),
    }
    maps = (own.keys, own.keys) if own.erase is not None else ()
    arrays |= every | {"maps": np.full((count - 1, batch, own.heads, *maps), POISON, "f4")}
    scalars = {"steps": (count - 1) * span, "batch": batch, "span": span, "segments": count, "start": 0}
    scalars |= {
        "total": case.steps,
        "has_lengths": int(case.lengths is not None),
        "has_reset": int(case.reset is not None),
    }
    ends = SegmentEnds("ends", replace(own, reads=()), TILE)
    run(ends.kernels[masked], arrays, scalars, ends.blocks(batch, count - 1))
    compose = Compose("compose", own)
    run(compose.kernel, arrays, scalars, compose.blocks(batch))
    scan = ChunkScan("k", own, TILE)
    run(
        scan.kernels[masked],
        arrays | {"state_in": arrays["starts"]},
        scalars | {"steps": case.steps},
        scan.blocks(batch, count),
    )
    return case.error(arrays)


@pytest.mark.parametrize("erase", ["", DECAYED])
def test_segments(erase: str) -> None:
    assert error(Steps(recurrence(1, 24, 20, erase=erase), 70), 32) < 2e-2


def test_lengths_and_resets_in_segments() -> None:
    reset = np.random.default_rng(1).random((100, 3)) < 0.05
    case = Steps(recurrence(1, erase=DECAYED, keys_last=True), 100, 3, lengths=np.array([10, 64, 90]), reset=reset)
    assert error(case, 32) < 2e-2
