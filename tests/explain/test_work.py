"""explain_work: FLOPs, bytes, floors, and how full kernels make a multiprocessor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.measure.floors import DATA_SHEETS
from tvm_rnn.explain.explanation import explain
from tvm_rnn.explain.work import measured_text, occupancies, occupancy
from tvm_rnn.records import Record, Records
from tvm_rnn.target import GPUS, resolve
from tvm_rnn.tune.workload import Workload

H200 = GPUS["nvidia-h200"]


def row(net: rnn.RNN, *args: Any, **options: Any) -> dict[str, Any]:
    (found,) = explain(net, *args, **options).facts["networks"][0]["work"]
    return dict(found)


def test_flops_and_bytes_of_an_lstm() -> None:
    found = row(rnn.RNN(rnn.cells.lstm, 32, 64), "x86-64-v4", batch=2, steps=10)
    products = 2 * 4 * 64 * (32 + 64) * 2 * 10
    assert products < found["flops"] < 1.2 * products
    assert found["step_bytes"] == 4 * 4 * 64 * 64
    weights = 4 * (4 * 64 * (32 + 64) + 4 * 64)
    assert found["bytes"] == 4 * (32 + 64) * 2 * 10 + weights + 9 * found["step_bytes"]
    assert found["ceilings"] == {}  # nobody measured another machine


@pytest.mark.broad
def test_weights_that_stay_on_the_chip_are_moved_once() -> None:
    net = rnn.RNN(rnn.cells.ligru, 32, 64, 2, bidirectional=True, dtype="bfloat16")
    found = row(net, "nvidia-h200", batch=2, steps=10)
    weights = sum(int(w.size) for w in net.init(0).weights.values())
    assert found["step_bytes"] == 0 and found["bytes"] == 2 * ((32 + 2 * 64) * 2 * 10 + weights)
    assert found["floor_us"]["memory"] == pytest.approx(found["bytes"] / 4.8 * 1e-6)
    assert found["ceilings_from"] == "data sheet of nvidia-h200"


def test_every_data_sheet_is_of_a_known_gpu_and_every_precision_has_a_rate() -> None:
    for name, sheet in DATA_SHEETS.items():
        assert name in GPUS
        assert sheet["bfloat16_tflops"] >= sheet["tf32_tflops"] >= sheet["float32_tflops"] >= sheet["float64_tflops"]


def test_a_record_of_the_same_network_is_a_measurement() -> None:
    net = rnn.RNN(rnn.cells.gru, 16, 16, dtype="bfloat16")
    made = Workload(net, 200, 4, "bfloat16").facts
    record = Record("nvidia-h200", made, (), 50.0, 60.0, date="2026-01-02T00:00:00Z")
    machine = replace(resolve("nvidia-h200"), records=Records([record]))
    found = row(net, machine, batch=4, steps=100, records=machine.records)
    assert found["measured_us"] == 25.0 and found["measured_by"] == "record of 2026-01-02, T = 200"
    assert found["share"] == pytest.approx(max(found["floor_us"].values()) / 25.0)
    assert "measured_us" not in row(net, machine, batch=8, records=machine.records)


@pytest.mark.broad
def test_exchanges_follow_each_other() -> None:
    """A GRU whose reset gate comes first exchanges twice in a step; what that takes is no more than all of it."""
    found = {}
    for name, count in (("lstm", 1), ("gru_reset_before", 2)):
        own = row(
            rnn.RNN(rnn.cells.get(name), 64, 64, 2, dtype="bfloat16"), H200, batch=4, without=["tile_layers_and_time"]
        )
        assert own["exchanges"] == 2 * count
        assert 0 < own["in_turn_us"] < own["predicted_us"]
        found[name] = own["in_turn_us"]
    assert found["gru_reset_before"] == pytest.approx(2 * found["lstm"])
    assert "exchanges" not in row(rnn.RNN(rnn.cells.indrnn, 64, 64), H200, batch=4)
    assert "exchanges" not in row(rnn.RNN(rnn.cells.lstm, 8, 8), "x86-64-v4", batch=4)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ({"registers": 32, "threads": 256, "dynamic_shared_bytes": 0}, (8, 1.0, "registers")),
        ({"registers": 255, "threads": 256, "dynamic_shared_bytes": 0}, (1, 0.125, "registers")),
        ({"registers": 32, "threads": 128, "dynamic_shared_bytes": 100 << 10}, (2, 0.125, "shared memory")),
        ({"registers": 16, "threads": 1024, "dynamic_shared_bytes": 0}, (2, 1.0, "threads")),
    ],
)
def test_occupancy(taken: dict[str, int], expected: tuple[int, float, str]) -> None:
    found = occupancy({"shared_bytes": 0, **taken}, H200)
    assert (found["blocks_per_sm"], found["occupancy"], found["limited_by"]) == expected


def test_kernels_of_an_unknown_gpu_have_no_occupancy() -> None:
    kernel = {"kernel": "k", "registers": 32, "threads": 64, "shared_bytes": 0}
    variants = [{"arch": "sm_90a", "target": "another", "kernels": [kernel]}]
    assert "occupancy" not in occupancies(variants, None)[0]
    assert occupancies(variants, H200)[0]["occupancy"] > 0


@pytest.mark.parametrize(("load", "spread", "busy"), [(0.2, 0.02, False), (2.5, 0.02, True), (0.2, 0.5, True)])
def test_ceilings_of_a_busy_machine_are_doubted(load: float, spread: float, busy: bool) -> None:
    text = measured_text({"load": load, "spread": spread}, cpus=2)
    assert f"load average {load:.1f} on 2 CPUs, tries differ by {spread:.0%}" in text
    assert ("they are too low" in text) == busy
