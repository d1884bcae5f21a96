"""Layers side by side in backward: what the model says of a stack, and which geometry follows from it."""

from __future__ import annotations

import functools
from math import ceil

import pytest
from networks import network
from training_plans import trained

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.model import choose_backward_lanes
from tvm_rnn.cuda.model.choose_backward_lanes import (
    ALONE_US,
    BESIDE,
    SUMS_PER_US,
    TILE_US,
    WAVE_STEPS,
    at_once,
    fewest_steps,
    geometry_beside,
    least_steps,
    room_for_two,
    stack_us,
)
from tvm_rnn.cuda.model.choose_geometry import ChosenGeometry, choose_geometry
from tvm_rnn.cuda.model.choose_regime import Persistent, step_of
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

H200 = resolve("nvidia-h200")


@functools.cache
def backward(layers: int, hidden: int, batch: int, dtype: str = "bfloat16") -> list[Persistent]:
    """The regimes of the layers of a stack."""
    net = network("lstm", hidden, hidden, dtype=dtype, num_layers=layers)
    (code,) = plan(passed(net, Options(H200, (batch,), precision=dtype, training="states")), H200).backward.code
    return [regime for regime in code.regimes if isinstance(regime, Persistent)]


def test_a_tile_is_a_few_times_its_own_work() -> None:
    assert least_steps(0.0) == least_steps(1.0) == WAVE_STEPS
    assert least_steps(100.0) == 8
    assert [least_steps(us) * us >= 3 * TILE_US for us in (3.1, 4.0, 7.3, 11.9)] == [True] * 4


def test_a_stack_takes_turns() -> None:
    assert stack_us(3, 1, 2.0, 100) == 3 * (200 + TILE_US)
    # Two tiles of 32 steps, two layers: three turns in place of four visits.
    assert stack_us(2, 2, 2.0, 64) == 3 * TILE_US + 3 * 32 * 2.0 * BESIDE
    # Three layers, of which two have room: the middle turns take twice as long.
    assert stack_us(3, 2, 2.0, 96) == 5 * TILE_US + (1 + 1 + 2 + 1 + 1) * 32 * 2.0 * BESIDE
    # Room for more than there are changes nothing; long sequences have no more than a few tiles per layer.
    assert stack_us(3, 3, 2.0, 96) == stack_us(3, 9, 2.0, 96)
    assert stack_us(2, 2, 2.0, 80000) == 9 * (TILE_US + 10000 * 2.0 * BESIDE)


@pytest.mark.broad
def test_narrow_kernels_where_a_stack_is_faster_with_them() -> None:
    """Four layers of 512 units have room for two and more at once; alone a layer has the whole GPU."""
    (one,), (four,) = backward(1, 512, 64), backward(4, 512, 64)
    assert at_once(one.geometry, 64, H200) == 1 < 2 <= at_once(four.geometry, 64, H200)
    assert one.predicted_us < four.predicted_us
    alone, beside = stack_us(4, 1, one.predicted_us), stack_us(4, at_once(four.geometry, 64, H200), four.predicted_us)
    assert beside < choose_backward_lanes.CLEARLY * alone


@pytest.mark.broad
def test_two_layers_that_gain_little_keep_their_geometry() -> None:
    two, one = ([(r.geometry.ctas, r.geometry.rows, r.most) for r in backward(n, 650, 32)] for n in (2, 1))
    assert two == one


@pytest.mark.broad
def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = backward(1, 512, 64)
    step = step_of(one.layout)
    alone = choose_geometry(step, H200, "bfloat16", 64)
    assert alone is not None
    assert geometry_beside(step, H200, "bfloat16", 64, 1) == alone
    taken = geometry_beside(step, H200, "bfloat16", 64, 4)
    assert taken is not None and taken.geometry != alone.geometry
    measured = alone._replace(record="record of a test")
    assert measured.recorded

    def found(*given: object, **more: object) -> ChosenGeometry:
        return measured

    monkeypatch.setattr(choose_backward_lanes, "choose_geometry", found)
    assert geometry_beside(step, H200, "bfloat16", 64, 4) is measured


@pytest.mark.broad
def test_room_for_two_is_of_whole_teams() -> None:
    """Of 15 clusters of 8 blocks there is room for, though not for 16 of them, which are 128 blocks."""
    regimes = trained("lstm", 256, "bfloat16")[1].backward.code[0].regimes
    assert all(isinstance(regime, Persistent) for regime in regimes)
    text = room_for_two(regimes)
    for batch in (1, 7, 56, 57, 64, 100000):
        fitting = [r for r in regimes if isinstance(r, Persistent) and (r.most is None or batch <= r.most)]
        expected = bool(fitting) and 2 * ceil(batch / fitting[0].geometry.rows) <= fitting[0].resident
        python = text.replace("/", "//").replace("?", "and").replace(":", "or")  # no value is 0 but "no"
        assert bool(eval(python, {"B": batch})) == expected, batch
    assert room_for_two([]) == "0"


def test_tiles_of_a_layer_alone_are_as_short_as_costs_little() -> None:
    """LSTM 1024, 64 rows: 9 us a step, 8 million elements of gradients: 94 us of each tile, a twelfth of its time."""

    def steps(batch: int, us: float, row_us: float, sums: int) -> int:
        program = Program()
        program.buffer("steps", f"256 * ({fewest_steps(us, row_us, sums)})")
        return working_memory(program, 132)(1, batch) // 256

    assert steps(64, 4.0, 5 / 64, 8 << 20) == int((ALONE_US + (8 << 20) / SUMS_PER_US) * 12 / 9)
    assert steps(1, 4.0, 5 / 64, 8 << 20) > steps(64, 4.0, 5 / 64, 8 << 20) > steps(64, 4.0, 5 / 64, 1 << 20)
    assert steps(1, 0.1, 0.0, 0) == 12 * ALONE_US  # as of steps of a microsecond
