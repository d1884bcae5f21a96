"""Time in segments, on the emulator: the states before each, then all steps at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import POISON, run
from linear_steps import SMALL, TOLERANCE, Steps, recurrence, scan

from tvm_rnn.cuda.linear.recurrence import DECAYED
from tvm_rnn.cuda.linear.segments import Compose, SegmentEnds


def error(case: Steps, span: int) -> float:
    """Of three kernels' run, against what the precision allows."""
    own, batch, segments = case.own, case.batch, -(-case.steps // span)
    arrays = case.arrays()
    state = arrays["state_in"]
    for name, many in (("ends", segments - 1), ("starts", segments)):
        arrays[name] = np.full((many, *state.shape), POISON, "f4")
    maps = (own.keys, own.keys) if own.erase is not None else ()
    arrays["maps"] = np.full((segments - 1, batch, own.heads, *maps), POISON, "f4")
    scalars = {"steps": (segments - 1) * span, "batch": batch, "span": span, "segments": segments, **case.masks}
    ends = SegmentEnds("ends", replace(own, reads=()), SMALL)
    run(ends.kernels[case.masked], arrays, scalars, ends.blocks(batch, segments - 1))
    compose = Compose("compose", own)
    run(compose.kernel, arrays, scalars, compose.blocks(batch))
    steps, found = scan(own, SMALL), arrays | {"state_in": arrays["starts"]}
    run(steps.kernels[case.masked], found, scalars | {"steps": case.steps}, steps.blocks(batch, segments))
    return case.error(arrays) / TOLERANCE[own.precision]


@pytest.mark.broad
@pytest.mark.parametrize("erase", ["", DECAYED])
def test_segments(erase: str) -> None:
    assert error(Steps(recurrence(1, 24, 20, erase=erase), 70), 32) < 1


@pytest.mark.slow
def test_more_keys_than_a_thread_holds() -> None:
    assert error(Steps(recurrence(1, 144, 16, erase=DECAYED), 40, 1), 32) < 1


@pytest.mark.broad
def test_lengths_and_resets_in_segments() -> None:
    reset = np.random.default_rng(1).random((100, 3)) < 0.05
    case = Steps(recurrence(1, erase=DECAYED, keys_last=True), 100, 3, lengths=np.array([10, 64, 90]), reset=reset)
    assert error(case, 32) < 1
