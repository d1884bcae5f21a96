"""Linear recurrences in chunks, on the emulator, beside a float64 loop over steps."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from emulated import run
from linear_steps import Steps, recurrence

from tvm_rnn.cuda.linear.chunk_scan import ChunkScan
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
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


CASES = {
    "attention": {"decay": 0},
    "gated": {},
    "log": {"log_decay": True, "value_scale": True},
    "delta": {"decay": 0, "erase": DECAYED, "scaled": False},
    "gated delta": {"erase": DECAYED, "value_scale": True},
    "erases what was before": {"erase": BEFORE},
    "own vector": {"erase": BEFORE, "own": True},
    "old and new": {"reads": (BEFORE, AFTER), "erase": DECAYED},
    "decayed": {"reads": (DECAYED,)},
    "half": {"erase": DECAYED, "precision": "float16"},
    "shared keys": {"erase": DECAYED, "group": 2, "keys_last": True},
}


@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    own = recurrence(**CASES[name])
    assert error(Steps(own, 40)) < TOLERANCE[own.precision]


@pytest.mark.parametrize("steps", [1, 7, 64, 65])
def test_any_number_of_steps(steps: int) -> None:
    assert error(Steps(recurrence(1, erase=DECAYED), steps)) < 2e-2


@pytest.mark.parametrize(("keys", "values", "spare"), [(20, 24, 4), (16, 36, 2), (33, 17, 1), (24, 40, 8)])
def test_any_size(keys: int, values: int, spare: int) -> None:
    own = recurrence(2, keys, values, erase=DECAYED, spare=spare)
    assert error(Steps(own, 35, 1), ChunkTile(chunk=32, warps=2)) < 2e-2


@pytest.mark.parametrize("erase", ["", DECAYED, BEFORE])
def test_decays_of_nothing(erase: str) -> None:
    own = recurrence(1, erase=erase)
    assert error(Steps(own, 70, decays=(0.0, 0.0, 1.0, 1e-30, 0.9))) < 2e-2
    own = recurrence(1, erase=erase, log_decay=True)
    assert error(Steps(own, 70, decays=(0.0, 1.0))) < 2e-2


def test_equal_keys_and_zeros() -> None:
    own = recurrence(1, erase=DECAYED, value_scale=True)
    assert error(Steps(own, 64, 1, repeat=True, decays=(1.0,))) < 2e-2
    assert error(Steps(own, 64, 1, zero=True)) < 2e-2


@pytest.mark.parametrize("decay", [0, 1])
def test_lengths_and_resets(decay: int) -> None:
    rng = np.random.default_rng(1)
    own = recurrence(1, erase=BEFORE, decay=decay, reads=(AFTER, BEFORE))
    lengths, reset = np.array([0, 33, 70]), rng.random((70, 3)) < 0.1
    assert error(Steps(own, 70, 3, lengths=lengths, reset=reset)) < 2e-2
    assert error(Steps(own, 70, 3, lengths=lengths)) < 2e-2
    assert error(Steps(own, 70, 3, reset=reset)) < 2e-2


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(6))
def test_large_tiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys, values = (int(x) for x in rng.integers(16, 129, 2))
    own = recurrence(1, keys, values, erase=DECAYED, value_scale=True, log_decay=bool(seed % 2))
    steps = int(rng.choice([65, 130, 200]))
    assert error(Steps(own, steps, 1, seed, repeat=seed == 3), ChunkTile(warps=2, stages=3 + seed % 2)) < 2e-2
