"""predict: more work never takes less time, weights stay on the chip, and the quickest geometry that fits is taken."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from persistent_layers import GPU, best_geometry, geometry_of, step

from tvm_rnn.cuda.model.persistent_step_time import (
    RESIDENT_CLUSTERS,
    StepTime,
    able_to_run,
    cheapest,
    exchange_us,
    predict,
    resident_groups,
)
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.target import resolve

BATCHES = (1, 8, 16, 64, 128, 256, 1024)


def geometry(name: str = "lstm", hidden: int = 256, precision: str = "bfloat16", **knobs: Any) -> Geometry:
    knobs = {"exchange": "cluster", "ctas": 8, "rows": 8, "warps_u": 4, **knobs}
    return geometry_of(step(name, hidden, precision), precision, **knobs)


def rising(values: list[float]) -> bool:
    return all(a <= b for a, b in pairwise(values))


def test_one_launch_of_clusters_is_for_all_rows() -> None:
    """Grids go through whole rounds, and leave the rest to others."""
    grid, clusters = (StepTime(geometry(exchange=exchange), GPU) for exchange in ("grid", "cluster"))
    assert grid.whole(2 * grid.at_once + 1) == 2 * grid.at_once and grid.whole(1) == 1
    assert clusters.whole(2 * clusters.at_once + 1) == 2 * clusters.at_once + 1


@pytest.mark.parametrize("exchange", ["cluster", "grid"])
def test_more_rows_never_take_less_time(exchange: str) -> None:
    times = [predict(geometry(exchange=exchange), batch, GPU) for batch in BATCHES]
    assert rising(times) and times[-1] > times[0] > 0


def test_exchanges_are_part_of_a_step() -> None:
    for exchange in ("cluster", "grid"):
        once, twice = geometry(exchange=exchange), geometry("gru_reset_before", exchange=exchange)
        assert 0 < exchange_us(once) < predict(once, 8, GPU)
        assert exchange_us(twice) == pytest.approx(2 * exchange_us(once))


def test_teams_that_do_not_fit_at_once_take_turns() -> None:
    made = geometry()
    at_once = resident_groups(made, GPU) * made.rows
    assert predict(made, at_once, GPU) == predict(made, 1, GPU)
    assert predict(made, at_once + 1, GPU) == pytest.approx(2 * predict(made, 1, GPU))
    assert predict(made, 3 * at_once, GPU) == pytest.approx(3 * predict(made, 1, GPU))


@pytest.mark.parametrize("exchange", ["cluster", "grid"])
@pytest.mark.parametrize(
    ("less", "more"),
    [
        (("elman", 256, "bfloat16"), ("lstm", 256, "bfloat16")),  # products and cells
        (("lstm", 256, "bfloat16"), ("lstm", 512, "bfloat16")),  # sizes
        (("gru", 256, "bfloat16"), ("gru_reset_before", 256, "bfloat16")),  # phases
        (("lstm", 256, "bfloat16"), ("lstm", 256, "tf32")),  # bytes
        (("lstm", 128, "tf32"), ("lstm", 128, "float32")),  # no tensor cores
    ],
)
def test_more_work_takes_more_time(less: tuple[str, int, str], more: tuple[str, int, str], exchange: str) -> None:
    short, long = (predict(geometry(*which, exchange=exchange), 8, GPU) for which in (less, more))
    assert short < long


def test_weights_in_registers_are_nearer_than_those_in_shared_memory() -> None:
    near = geometry(register_words=1000)
    far = replace(near, register_words=0, shared_words=1000)
    assert predict(near, 8, GPU) < predict(far, 8, GPU)


def test_a_smaller_gpu_runs_fewer_teams() -> None:
    small = resolve("nvidia-h100-pcie")
    for made in (geometry(), geometry(exchange="grid", ctas=16)):
        assert 0 < resident_groups(made, small) < resident_groups(made, GPU)
        assert predict(made, 1024, small) >= predict(made, 1024, GPU)
    assert resident_groups(geometry(exchange="grid", ctas=133), GPU) == 0
    assert all(ctas * count <= 132 for ctas, count in RESIDENT_CLUSTERS.items())


def test_weights_that_are_read_again_in_every_step_do_not_run() -> None:
    resident = geometry(register_words=1000)
    streamed = replace(resident, register_words=0, shared_words=0)
    assert any(s.streamed for parts in streamed.shares.values() for s in parts)
    assert not able_to_run(streamed, GPU)
    assert able_to_run(geometry(ctas=16, warps_u=2, register_words=128), GPU)
    assert not able_to_run(geometry(ctas=16, hidden=2048, shared_words=1 << 20), GPU)


def test_the_cheapest_of_those_that_fit() -> None:
    geometries = [
        geometry(ctas=ctas, register_words=words, shared_words=1 << 20) for ctas in (4, 8, 16) for words in (0, 64, 128)
    ]
    best = cheapest(geometries, 16, GPU)
    assert best is not None
    assert predict(best, 16, GPU) == min(predict(t, 16, GPU) for t in geometries if able_to_run(t, GPU))
    assert cheapest([], 16, GPU) is None
    assert cheapest([geometry("lstm", 1024, ctas=1, shared_words=1 << 20)], 16, GPU) is None


@pytest.mark.broad
def test_the_best_time_rises_with_the_batch() -> None:
    check_best("gru", 512, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32", "float32"])
@pytest.mark.parametrize("hidden", [64, 256, 512, 768, 1024])
@pytest.mark.parametrize("name", ["elman", "lstm", "gru", "gru_reset_before", "lstm_layer_norm", "slstm"])
def test_best_times_of_all_sizes(name: str, hidden: int, precision: str) -> None:
    check_best(name, hidden, precision)


def check_best(name: str, hidden: int, precision: str) -> None:
    found = [best_geometry(name, hidden, precision, batch) for batch in (1, 16, 64, 128)]
    times = [f[0] for f in found if f is not None]
    assert rising(times)
    assert len(times) in (0, len(found))  # a batch is cut into slices, so that it is all or none
    for best in found:
        if best is not None:
            assert able_to_run(best[1], GPU)


def test_a_pipeline_pays_for_copies_and_for_filling_stages_again() -> None:
    wide = {"exchange": "grid", "ctas": 64, "warps_u": 2, "warps_k": 4, "register_words": 128}
    times = [predict(geometry(hidden=1024, rows=rows, ring=8, **wide), rows, GPU) for rows in (8, 16, 32, 64)]
    assert rising(times)
    assert predict(geometry(hidden=1024, rows=64, ring=4, **wide), 64, GPU) > times[-1]
