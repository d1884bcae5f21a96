"""Tiles come from the template, and records of one recurrence serve no other."""

from __future__ import annotations

from linear_steps import recurrence

from tvm_rnn import target
from tvm_rnn.cuda.linear.choose_tile import ChunkUnit, choose
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import DECAYED

GPU = target.resolve("nvidia-h200")


def test_a_tile() -> None:
    found = choose(recurrence(32, 128, 128, erase=DECAYED), (1,), GPU)
    assert (found.template, found.tile) == ("chunk_scan_cuda", ChunkTile(64, 2, 4))


def test_keys() -> None:
    every = [recurrence(), recurrence(erase=DECAYED), recurrence(erase=DECAYED, own=True), recurrence(decay=0)]
    keys = [str(ChunkUnit("chunks", "before", "bfloat16", recurrence=own).key) for own in every]
    assert len(set(keys)) == len(keys)
