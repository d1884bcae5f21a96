"""Operands and numbers of steps: any size and alignment, decays of nothing, lengths, resets."""

from __future__ import annotations

import numpy as np
import pytest
from linear_steps import Steps, chunk_error, recurrence

from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("keys", "values", "spare"), [(20, 24, 4), (16, 36, 2), (33, 17, 1), (64, 40, 8)])
def test_any_size(keys: int, values: int, spare: int) -> None:
    own = recurrence(2, keys, values, erase=DECAYED, spare=spare)
    assert chunk_error(Steps(own, 35, 1), ChunkTile(chunk=32, warps=2)) < 1


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("erase", ["", DECAYED, BEFORE])
def test_decays_of_nothing(erase: str) -> None:
    own = recurrence(1, erase=erase)
    assert chunk_error(Steps(own, 70, decays=(0.0, 0.0, 1.0, 1e-30, 0.9))) < 1
    own = recurrence(1, erase=erase, log_decay=True)
    assert chunk_error(Steps(own, 70, decays=(0.0, 1.0))) < 1


@pytest.mark.broad
@pytest.mark.parametrize("decay", [0, 1])
def test_lengths_and_resets(decay: int) -> None:
    rng = np.random.default_rng(1)
    own = recurrence(1, erase=BEFORE, decay=decay, reads=(AFTER, BEFORE))
    lengths, reset = np.array([0, 33, 70]), rng.random((70, 3)) < 0.1
    assert chunk_error(Steps(own, 70, 3, lengths=lengths, reset=reset)) < 1
    assert chunk_error(Steps(own, 70, 3, lengths=lengths)) < 1
    assert chunk_error(Steps(own, 70, 3, reset=reset)) < 1
