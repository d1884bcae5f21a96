"""Linear recurrences in chunks: every kind of them, any number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_steps import Steps, chunk_error, recurrence

from tvm_rnn.cuda.linear.chunk_scan import ChunkScan
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED

CASES: dict[str, dict[str, Any]] = {
    "gated delta": {"erase": DECAYED, "value_scale": True},
    "attention": {"decay": 0},
    "gated": {},
    "log": {"log_decay": True, "value_scale": True},
    "delta": {"decay": 0, "erase": DECAYED, "scaled": False},
    "erases what was before": {"erase": BEFORE},
    "own vector": {"erase": BEFORE, "own": True},
    "old and new": {"reads": (BEFORE, AFTER), "erase": DECAYED},
    "decayed": {"reads": (DECAYED,)},
    "half": {"erase": DECAYED, "precision": "float16"},
    "two columns": {"others": ("vector",), "reads": (BEFORE, AFTER)},
    "two columns, one read again": {
        "others": ("vector",),
        "reads": (AFTER, BEFORE),
        "same": (("read_0", "key"), ("read_1", "vector_0")),
    },
    "two columns, no decay": {"others": ("vector",), "decay": 0},
    "two columns, scaled": {"others": ("scaled",), "reads": (BEFORE, AFTER)},
    "two columns, scaled, one read again": {
        "others": ("scaled",),
        "reads": (BEFORE,),
        "same": (("read_0", "vector_0"), ("column_0", "vector_0")),
        "scale": 0.7,
    },
    "two columns, scaled, two reads": {
        "others": ("scaled",),
        "reads": (AFTER, BEFORE),
        "same": (("read_0", "key"), ("read_1", "vector_0")),
        "decay": 0,
    },
    "what is erased is read": {"erase": BEFORE, "reads": (AFTER, BEFORE), "same": (("read_1", "key"),)},
    "what is erased by a vector is read alone": {
        "erase": BEFORE,
        "own": True,
        "reads": (BEFORE,),
        "same": (("read_0", "erase"),),
        "value_scale": True,
        "keys_last": True,
    },
    "what is erased is read, no scale": {
        "erase": BEFORE,
        "decay": 0,
        "scaled": False,
        "reads": (BEFORE, AFTER),
        "same": (("read_0", "key"),),
    },
    "scaled": {"erase": DECAYED, "value_scale": True, "scale": 0.7, "reads": (AFTER, BEFORE)},
    "scaled, what is erased is read": {
        "erase": BEFORE,
        "own": True,
        "reads": (AFTER, BEFORE),
        "same": (("read_1", "erase"),),
        "scale": 0.7,
    },
    "scaled, nothing decays": {"decay": 0, "scale": 1.3},
    "shared keys": {"erase": DECAYED, "group": 2, "keys_last": True},
}


@pytest.mark.broad_after(1)
@pytest.mark.slow_after(12)
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    assert chunk_error(Steps(recurrence(**CASES[name]), 40)) < 1


@pytest.mark.broad
@pytest.mark.parametrize("steps", [1, 7, 64, 65])
def test_any_number_of_steps(steps: int) -> None:
    assert chunk_error(Steps(recurrence(1, erase=DECAYED), steps)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_large_tiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys, values = (int(x) for x in rng.integers(16, 129, 2))
    own = recurrence(1, keys, values, erase=DECAYED, value_scale=True, log_decay=bool(seed % 2))
    steps = int(rng.choice([65, 130, 200]))
    assert chunk_error(Steps(own, steps, 1, seed, repeat=seed == 3), ChunkTile(warps=2, stages=3 + seed % 2)) < 1


@pytest.mark.broad
@pytest.mark.parametrize(
    ("warps", "name"),
    [
        (8, "what is erased is read"),
        (3, "what is erased by a vector is read alone"),
        (3, "what is erased is read, no scale"),
        (3, "scaled, what is erased is read"),
        (3, "two columns, scaled, one read again"),
        (3, "two columns, scaled, two reads"),
    ],
)
def test_what_is_erased_is_solved_for(warps: int, name: str) -> None:
    """By warps of states, which are so many that no others read for them."""
    own, tile = recurrence(1, 16, 16 * warps, **CASES[name]), ChunkTile(chunk=32, warps=warps)
    assert ChunkScan("k", own, tile).unscaled is not None
    assert chunk_error(Steps(own, 40, 1), tile) < 1


@pytest.mark.slow
@pytest.mark.parametrize("warps", [3, 4, 8])
def test_warps_that_share_registers(warps: int) -> None:
    assert chunk_error(Steps(recurrence(1, 16, 16 * warps, erase=DECAYED), 70, 1), ChunkTile(warps=warps)) < 1
