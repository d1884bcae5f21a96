"""scan_cuda: as far ahead as registers allow, blocks for every multiprocessor, and replay of records."""

from __future__ import annotations

import pytest

from tvm_rnn import ConfigError, target
from tvm_rnn.schedule.schedule_template import Unit, best

GPU = target.resolve("nvidia-h200")


def unit(width: int, reads: int, batch: int) -> Unit:
    return Unit("scan", "step", "bfloat16", width=width, stages=reads, batches=(batch,))


def test_small_batches_have_small_blocks() -> None:
    threads = [best(unit(512, 3, batch), GPU)[1]["threads"] for batch in (1, 64, 512)]
    assert threads == [32, 64, 128]


def test_many_values_are_asked_for_later() -> None:
    ahead = [best(unit(512, reads, 64), GPU)[1]["ahead"] for reads in (1, 3, 12, 200)]
    assert ahead == [16, 16, 8, 1]


def test_records() -> None:
    template, knobs, _ = best(unit(512, 3, 64), GPU, {"threads": 256, "ahead": 4})
    assert (template.name, knobs) == ("scan_cuda", {"threads": 256, "ahead": 4})
    with pytest.raises(ConfigError, match="ahead"):
        best(unit(512, 3, 64), GPU, {"ahead": 5})
