"""chunk_scan_cuda: as many values to a block as leave all multiprocessors one, records, what does not fit."""

from __future__ import annotations

import pytest
from linear_steps import recurrence

from tvm_rnn import ConfigError, target
from tvm_rnn.cuda.linear.choose_tile import ChunkUnit
from tvm_rnn.cuda.linear.recurrence import DECAYED
from tvm_rnn.schedule.schedule_template import best

GPU = target.resolve("nvidia-h200")


def unit(heads: int, size: int, batch: int) -> ChunkUnit:
    own = recurrence(heads, size, size, erase=DECAYED)
    return ChunkUnit("chunks", "before", "bfloat16", batches=(batch,), recurrence=own)


def test_many_rows_share_scores() -> None:
    sizes = ((32, 128, 1), (16, 128, 16), (1, 64, 1), (1, 64, 8), (1, 16, 1))
    assert [best(unit(*own), GPU)[1]["warps"] for own in sizes] == [2, 8, 2, 4, 1]


def test_records() -> None:
    given = {"chunk": 32, "warps": 4, "stages": 3}
    template, knobs, _ = best(unit(4, 64, 8), GPU, given)
    assert (template.name, knobs) == ("chunk_scan_cuda", given)
    with pytest.raises(ConfigError, match="warps"):
        best(unit(4, 64, 8), GPU, {"warps": 5})


def test_too_many_keys() -> None:
    with pytest.raises(ConfigError, match="1024 keys"):
        best(unit(1, 1024, 1), GPU)


def test_decays_by_key() -> None:
    """Their decays lie in shared memory too: of 128 keys it holds half as many steps."""
    for keys, chunk in ((64, 64), (128, 32)):
        own = recurrence(16, keys, keys, decay=keys)
        assert best(ChunkUnit("chunks", "before", "bfloat16", batches=(8,), recurrence=own), GPU)[1]["chunk"] == chunk


def test_what_has_no_chunks() -> None:
    own = recurrence(1, 64, 64, others=("vector", "vector"))
    with pytest.raises(ConfigError, match="along one key"):
        best(ChunkUnit("chunks", "before", "bfloat16", recurrence=own), GPU)
