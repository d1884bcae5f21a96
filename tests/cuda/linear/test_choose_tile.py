"""Tiles come from the template, and records of one recurrence serve no other."""

from __future__ import annotations

from linear_steps import recurrence

from tvm_rnn import target
from tvm_rnn.cuda.linear.choose_tile import ChunkUnit, choose, refused, rungs
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE, DECAYED

GPU = target.resolve("nvidia-h200")


def test_a_tile() -> None:
    found = choose(recurrence(32, 128, 128, erase=DECAYED), (1,), GPU)
    assert (found.template, found.tile) == ("chunk_scan_cuda", ChunkTile(64, 2, 4))


def test_keys() -> None:
    every = [recurrence(decay=decay) for decay in (0, 1, 16)]
    every += [recurrence(erase=DECAYED), recurrence(erase=DECAYED, own=True)]
    keys = [str(ChunkUnit("chunks", "before", "bfloat16", recurrence=own).key) for own in every]
    assert len(set(keys)) == len(keys)


def test_what_goes_step_by_step_says_why() -> None:
    assert refused(recurrence(erase=DECAYED), GPU) == ""
    assert refused(recurrence(decay=16, erase=BEFORE, own=True), GPU) == ""
    assert "each key decays by itself" in refused(recurrence(decay=16, erase=BEFORE), GPU)
    assert "along one key" in refused(recurrence(others=("value",)), GPU)
    assert "along one key" in refused(recurrence(others=("vector", "vector")), GPU)
    assert not refused(recurrence(others=("vector",)), GPU)
    assert "not float32" in refused(recurrence(precision="float32"), GPU)
    assert "not for sm_80" in refused(recurrence(), target.resolve("nvidia-a100"))
    assert "shared memory" in refused(recurrence(1, 1024, 16), GPU)


def test_there_are_tiles_for_all_that_is_let_through() -> None:
    for keys in range(16, 1024, 48):
        for decay in (1, keys):
            own = recurrence(1, keys, 64, decay=decay, erase=DECAYED, own=True, reads=(BEFORE, AFTER))
            assert refused(own, GPU) or choose(own, (1,), GPU).tile.chunk


def test_each_regime_of_batch_sizes_has_its_tile() -> None:
    """Few rows: tiles of few values, one for each multiprocessor; many: of many values."""
    own = recurrence(32, 128, 128, erase=DECAYED)
    (few, many) = rungs(own, (1, 64), GPU)
    assert few.chosen == choose(own, (1,), GPU) and many.chosen == choose(own, (64,), GPU)
    assert many.most is None and few.most is not None and 1 <= few.most < 64
    assert choose(own, (few.most + 1,), GPU).tile == many.chosen.tile
    assert [rung.most for rung in rungs(own, (), GPU)] == [None] == [rung.most for rung in rungs(own, (64, 128), GPU)]
