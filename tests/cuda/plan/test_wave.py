"""Layers in a wave: where there is one, how it is launched, and what it leaves to the other regimes."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.cuda.plan import wave
from tvm_rnn.cuda.plan.network import Plan
from tvm_rnn.options import PASS_NAMES, Options
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


def planned(cell: str, hidden: int, batches: tuple[int, ...] = (16,), precision: str = "bfloat16", **how: Any) -> Plan:
    dtype = "float32" if precision == "tf32" else precision
    without = how.pop("without", ())
    net = rnn.RNN(rnn.cells.get(cell), how.pop("inputs", hidden), hidden, dtype=dtype, **how)
    own = pipeline.passed(net, Options(GPU, batches, without, precision))
    plan = Plan(own, own.layers, GPU)
    plan.run()
    return plan


def text(plan: Plan) -> str:
    return "\n".join(line.strip() for line in plan.program.sequence.lines)


@pytest.mark.broad
def test_layers_follow_each_other() -> None:
    plan = planned("lstm", 256, (64,), num_layers=3, inputs=64)
    assert plan.together is not None
    host = text(plan)
    # Per tile: memory is poisoned once, then one launch for all layers, with lengths and resets or without.
    assert host.count("RUN(call(kernels::wave_") == 2 and host.count(", 255, ") == 1
    chosen = next(line for line in host.splitlines() if "in_waves_1 = " in line)
    name = plan.together.regimes[0][0].name
    # Room is asked for of the kernel that runs: a module for calls with lengths alone has no other.
    room = f"(has_lengths || has_reset ? resident(kernels::{name}_masked) : resident(kernels::{name})))"
    assert "% 16 == 0" in chosen and f"<= {room}" in chosen and "!has_" not in chosen
    [row] = [row for row in plan.program.facts["templates"] if "in a wave" in row["unit"]]
    assert row["unit"].startswith("3 layers in a wave") and row["predicted_us"] > 0
    assert row["layers"] == [0, 1, 2] and row["most"] == plan.together.limits[0] and row["least_steps"] == 2


@pytest.mark.broad
def test_a_reset_that_no_step_can_take_leaves_layers_one_by_one() -> None:
    plan = planned("gru_reset_before", 256, num_layers=2)
    assert plan.together is not None and len([name for name in plan.program.kernels if name.startswith("wave_")]) == 2
    chosen = next(line for line in text(plan).splitlines() if "in_waves_1 = " in line)
    assert ("!has_reset" in chosen) == (not all(wave.resettable(member.step) for member in plan.together.members))


@pytest.mark.broad
def test_a_grid_counts_for_the_layer_above() -> None:
    plan = planned("lstm", 512, (64,), num_layers=4)
    assert plan.together is not None and plan.together.regimes[0][0].geometry.exchange.name == "grid"
    assert text(plan).count("counters_") >= 8  # own and below, of four layers


@pytest.mark.broad
@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_before"])
def test_strict_float32_has_waves_of_its_own(cell: str) -> None:
    plan = planned(cell, 512, (64,), "float32", num_layers=4)
    assert plan.together is not None
    (regime,) = plan.together.regimes[0]
    assert regime.template == "persistent_fma_cuda" and regime.geometry.stages and plan.together.limits == [64]
    assert 4 * regime.geometry.ctas * -(-64 // regime.geometry.rows) <= GPU.sms


@pytest.mark.broad
def test_a_batch_may_be_quicker_in_several_waves() -> None:
    """Four layers of 512 have room for 64 rows: 65 to 128 take two launches, the second of those that are left."""
    plan = planned("lstm", 512, (16, 64, 128), num_layers=4)
    assert plan.together is not None
    assert (plan.together.limits, plan.together.at_once) == ([16, 128], [16, 64]) and plan.together.in_turns
    sizes = "\n".join(line.strip() for line in plan.program.layout)
    assert "T >= 2 && B <= 128 ? 1 : -1" in sizes
    assert "in_waves_1 == 0 ? 16 : in_waves_1 == 1 ? 64 : B" in text(plan)
    assert "B < wave_rows_1 ? in_waves_1 : 0 < in_waves_1 && B % wave_rows_1 <= 16" in text(plan)
    alone = planned("lstm", 512, (64,), num_layers=4).together
    assert alone is not None and not alone.in_turns


@pytest.mark.broad
def test_a_wave_takes_as_many_rows_as_it_has_room_for() -> None:
    """Of 64 rows a wave has five groups of 16: they take 80, before the wave of 128, whose steps are longer."""
    plan = planned("elman", 358, (64, 128), num_layers=6, inputs=125)
    assert plan.together is not None
    (few,), (many,) = ({own[0].predicted_us} for own in plan.together.regimes)
    assert few < many and plan.together.limits[0] == plan.together.at_once[0] == 80 < plan.together.limits[1]


@pytest.mark.broad
def test_modules_for_any_batch_have_waves_of_many_rows_of_small_layers() -> None:
    plan = planned("lstm", 33, (), num_layers=3)
    assert plan.together is not None and not plan.together.in_turns
    assert plan.together.limits == plan.together.at_once and plan.together.limits[-1] >= 512
    large = planned("lstm", 512, (), num_layers=4).together
    assert large is not None and large.limits[-1] == 128 > large.at_once[-1]  # several launches for no more


@pytest.mark.broad
def test_few_rows_are_left_to_layers_side_by_side() -> None:
    plan = planned("lstm", 512, (1, 16, 64), "float32", num_layers=4)
    assert plan.together is not None and plan.together.floors == [1, 0]
    sizes = text(plan) + "\n".join(line.strip() for line in plan.program.layout)
    assert "T >= 2 && B > 1 && B <= 16 ? 0 : T >= 2 && B <= 64 ? 1 : -1" in sizes
    few, many = [row for row in plan.program.facts["templates"] if "in a wave" in row["unit"]]
    assert few["least_batch"] == 2 and few["unit"].endswith("B > 1") and many["least_batch"] == 1


@pytest.mark.broad
def test_long_calls_of_few_small_layers_are_not_for_a_wave() -> None:
    plan = planned("gru", 32, num_layers=2)
    assert plan.together is not None
    ((rows, most),) = plan.together.longest[0].items()
    assert rows == 16 and 64 < most < 256
    assert f"T >= 2 && T <= {most} && B <= " in "\n".join(line.strip() for line in plan.program.layout)
    (fact,) = [row for row in plan.program.facts["templates"] if "in a wave" in row["unit"]]
    assert fact["most_steps"] == {16: most} and f"T <= {most}" in fact["unit"]
    geometry, us = plan.together.regimes[0][0].geometry, plan.together.regimes[0][0].predicted_us
    assert wave.following_us(geometry, us) < us  # a GRU's inputs for the new state are multiplied ahead


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("inputs", "hidden", "copied"), [(16, 37, "output"), (12, 64, "copy0"), (16, 64, "")])
def test_rows_of_any_width_run_in_a_wave(inputs: int, hidden: int, copied: str) -> None:
    """What the user has is copied where its rows are not made of 16-byte pieces; between layers they always are."""
    plan = planned("lstm", hidden, num_layers=3, inputs=inputs)
    assert plan.together is not None
    own = [name for name in plan.program.kernels if name.startswith("wave_") and "_pack" not in name]
    assert [any(name.endswith(f"_{kind}") for name in own) for kind in ("copy0", "output", "unwritten")] == [
        copied == "copy0",
        copied == "output",
        copied == "output",
    ]
    layout = plan.together.members[0].layout
    assert layout.output.row_stride == -(-hidden // 8) * 8 and layout.input(0).row_stride == 16


@pytest.mark.broad
def test_a_long_input_is_multiplied_before_the_wave() -> None:
    """Whose weights would leave no room for those of states: the first layer reads what is made over all steps."""
    plan = planned("gru", 24, num_layers=3, inputs=2056)
    assert plan.together is not None and plan.together.first is plan.code[0] and not plan.together.read
    steps = [member.step for member in plan.together.members]
    assert steps[0].read_nodes and not steps[0].given and steps[1].given
    wave = text(plan).split("if (in_waves_", 1)[1]
    assert wave.index("kernels::g0_before0") < wave.index("kernels::wave_")
    short = planned("gru", 24, num_layers=3, inputs=64)
    assert short.together is not None and short.together.first is None and short.together.read == {0}


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("cell", "hidden", "how"),
    [
        ("lstm", 256, {"num_layers": 1}),
        ("lstm", 256, {"num_layers": 2, "bidirectional": True}),
        ("lstm", 64, {"num_layers": 2, "precision": "float64"}),
        ("lstm", 1280, {"num_layers": 2, "precision": "float32", "batches": (64,)}),  # not enough multiprocessors
        # 9.4 us in a wave, 8.8 without.
        ("lstm", 256, {"num_layers": 3, "precision": "float32", "batches": (64,), "inputs": 64}),
        ("lstm", 512, {"num_layers": 4, "precision": "float32", "batches": (1,)}),  # side by side
        ("lstm", 2048, {"num_layers": 2}),  # does not fit
        *(("lstm", 256, {"num_layers": 2, "without": (name,)}) for name in PASS_NAMES),
        ("sru", 256, {"num_layers": 2}),
    ],
)
def test_networks_without_a_wave(cell: str, hidden: int, how: dict[str, Any]) -> None:
    plan = planned(cell, hidden, **how)
    assert plan.together is None and "kernels::wave_" not in text(plan)


@pytest.mark.broad
def test_what_must_fit_side_by_side() -> None:
    plan = planned("lstm", 256, (16, 64), num_layers=3)
    assert plan.together is not None
    for regimes, limit in zip(plan.together.regimes, plan.together.limits, strict=True):
        groups = -(-limit // regimes[0].geometry.rows)
        assert 3 * groups <= wave.resident_groups(regimes[0].geometry, GPU)
