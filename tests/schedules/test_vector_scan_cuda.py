"""vector_scan_cuda: as many steps ahead as registers allow, and replay of records."""

from __future__ import annotations

import pytest

from tvm_rnn import ConfigError, target
from tvm_rnn.schedule.schedule_template import Unit, best

GPU = target.resolve("nvidia-h200")
SIZES = ((1, 512), (2, 512), (1, 65), (1, 32))  # states, elements


def unit(reads: int, dtype: str = "bfloat16") -> Unit:
    return Unit("recurrence", "before", dtype, width=512, stages=reads)


def test_many_values_are_loaded_for_fewer_steps() -> None:
    ahead = [best(unit(reads), GPU)[1]["ahead"] for reads in (0, 6, 12, 200)]
    assert ahead == [8, 8, 4, 2]
    assert best(unit(6, "float64"), GPU)[1]["ahead"] == 4


def test_as_many_warps_as_shared_memory_holds_effects_for() -> None:
    warps = [best(Unit("recurrence", "before", "float32", gates=n, stages=2), GPU)[1]["warps"] for n in (1, 4, 6, 16)]
    assert warps == [8, 8, 4, 1]


def test_threads_have_two_elements_where_rows_are_wide_and_states_few() -> None:
    units = [Unit("recurrence", "before", "bfloat16", gates=n, width=width, stages=1) for n, width in SIZES]
    found = [best(one, GPU)[1] for one in units]
    assert [(knobs["side"], knobs["resident"]) for knobs in found] == [(2, 2), (1, 3), (1, 3), (1, 3)]
    assert best(unit(1, "float64"), GPU)[1]["side"] == 1


def test_records() -> None:
    template, knobs, _ = best(unit(2), GPU, {"warps": 4, "ahead": 4, "resident": 6})
    assert (template.name, knobs) == ("vector_scan_cuda", {"warps": 4, "ahead": 4, "resident": 6, "side": 2})
    with pytest.raises(ConfigError, match="resident"):
        best(unit(2), GPU, {"resident": 5})
