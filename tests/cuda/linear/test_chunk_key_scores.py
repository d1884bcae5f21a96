"""Decays of each key, in chunks: every kind of recurrence and size, decays of exactly 0 and 1, lengths, resets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_steps import Steps, chunk_error, recurrence

from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED

CASES: dict[str, dict[str, Any]] = {
    "attention": {},
    "log, before and after": {"log_decay": True, "reads": (BEFORE, AFTER)},
    "half": {"precision": "float16", "value_scale": True, "reads": (DECAYED,)},
    "erases what was before": {"erase": BEFORE, "own": True, "scaled": False},
    "erases what decayed": {"erase": DECAYED, "own": True, "reads": (BEFORE, AFTER)},
    "two columns": {"others": ("vector",), "reads": (AFTER, BEFORE)},
    "two columns, one read again": {"others": ("vector",), "reads": (BEFORE,), "same": (("read_0", "vector_0"),)},
    "shared keys": {"heads": 2, "group": 2, "keys_last": True},
}


@pytest.mark.broad
@pytest.mark.slow_after(4)
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    own = recurrence(**{"heads": 1, "decay": 16, **CASES[name]})
    assert chunk_error(Steps(own, 40)) < 1


@pytest.mark.broad
@pytest.mark.parametrize("steps", [1, 15, 16, 17, 32, 33])
def test_any_number_of_steps(steps: int) -> None:
    assert chunk_error(Steps(recurrence(1, decay=16), steps)) < 1


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("keys", "values", "spare"), [(20, 24, 4), (33, 17, 1), (80, 16, 8)])
def test_any_size(keys: int, values: int, spare: int) -> None:
    """Keys of a lane's pair of which one is there, and of several slices; rows that begin anywhere."""
    own = recurrence(1, keys, values, decay=keys, spare=spare)
    assert chunk_error(Steps(own, 35, 1), ChunkTile(chunk=32, warps=2)) < 1


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("log_decay", [False, True])
def test_decays_of_nothing_and_of_all(log_decay: bool) -> None:
    """Long stretches of either, next to each other, and neighbours that differ in everything."""
    own = recurrence(1, decay=16, log_decay=log_decay, reads=(BEFORE, AFTER))
    for decays in ((0.0, 0.0, 1.0, 1e-30, 0.9), (0.0,), (1.0,), (1e-38, 1.0)):
        assert chunk_error(Steps(own, 70, decays=decays)) < 1


def test_keys_that_decay_by_nothing_beside_others_that_keep_all() -> None:
    own = recurrence(1, decay=16)
    case = Steps(own, 40, 1, decays=(1.0,))
    case.real["decay"][...] = np.arange(16) % 2
    assert chunk_error(case) < 1


@pytest.mark.broad
@pytest.mark.parametrize("erase", ["", BEFORE])
def test_lengths_and_resets(erase: str) -> None:
    rng = np.random.default_rng(1)
    own = recurrence(1, erase=erase, own=bool(erase), decay=16, reads=(AFTER, BEFORE))
    lengths, reset = np.array([0, 33, 70]), rng.random((70, 3)) < 0.1
    assert chunk_error(Steps(own, 70, 3, lengths=lengths, reset=reset)) < 1
    assert chunk_error(Steps(own, 70, 3, lengths=lengths)) < 1
    assert chunk_error(Steps(own, 70, 3, reset=reset)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_recurrences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys, values, steps = (int(x) for x in (rng.integers(2, 130), rng.integers(1, 130), rng.integers(1, 200)))
    erase = str(rng.choice(["", BEFORE, DECAYED]))
    own = recurrence(1, keys, values, decay=keys, erase=erase, own=bool(erase), log_decay=bool(seed % 2))
    case = Steps(own, steps, 2, seed, decays=(0.0, 1.0, 0.99, 0.3), reset=rng.random((steps, 2)) < 0.05)
    assert chunk_error(case, ChunkTile(chunk=32 if keys > 64 else 64, warps=int(rng.choice([1, 2, 4])))) < 1
