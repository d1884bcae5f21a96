"""live_rows: the list of rows that have not ended, and whole networks whose products work on it."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from emulated import run

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.gemm import group_kernels
from tvm_rnn.cuda.plan import layer, network
from tvm_rnn.cuda.rowwise import live_rows
from tvm_rnn.cuda.rowwise.live_rows import LiveRows, LiveSteps
from tvm_rnn.oracle.tolerance import assert_close


@pytest.mark.parametrize(("batch", "steps"), [(5, 7), (70, 9), (32, 4)])
def test_the_list_has_the_rows_of_each_step_one_behind_the_other(batch: int, steps: int) -> None:
    lengths = np.random.default_rng(batch).integers(-1, steps + 3, batch)
    live, starts = np.full(steps * batch, -7, np.int32), np.full(steps + 1, -7, np.int32)
    arrays = {"lengths": lengths, "live": live, "starts": starts}
    run(live_rows._kernel(), arrays, {"batch": batch, "total": steps}, (steps + 4) // 4)
    expected = [[t * batch + b for b in range(batch) if lengths[b] > t] for t in range(steps)]
    rows = [row for own in expected for row in own]
    assert live[: len(rows)].tolist() == rows and (live[len(rows) :] == -7).all()
    assert starts.tolist() == [sum(map(len, expected[:t])) for t in range(steps + 1)]


def test_calls_of_few_rows_have_no_list_and_no_memory_for_one() -> None:
    program = Program("float32")
    live = LiveRows.of(program, 1000)
    live.make(program.sequence)
    assert [line for line in program.layout if "T * B >= 1000" in line and ": 0" in line]
    first, second, third, *_ = program.sequence.lines
    assert "has_lengths && T > 1 && T * B >= 1000" in first
    assert live.when in second and "live_rows" in third
    assert live.of_steps("s", 1, "few") == LiveSteps((live.live, live.starts), "(few) ? s : 0", "(few) ? 1 : 0")


@pytest.fixture
def rows_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the call is, and by kernels that know lists."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(network, "LISTED_FLOPS", 1)
    monkeypatch.setattr(network, "wave", lambda *given: None)
    best = group_kernels.best

    def without_others(*given: Any) -> Any:
        template, knobs, _ = best(*given)
        return template, {**knobs, "share": 0, "share_most": 0, "few": 0, "wide": 8}, "forced"

    monkeypatch.setattr(group_kernels, "best", without_others)


def as_the_oracle(net: rnn.RNN, batch: int, steps: int, precision: str, resets: bool) -> None:
    """Rows in no order, some without a step; states of their own."""
    module: Any = emulator.compile(net, precision=precision)
    rng, dtype = np.random.default_rng(0), "float32"
    x = rng.uniform(-1, 1, (steps, batch, net.input_size)).astype(dtype)
    lengths = rng.integers(0, steps + 1, batch)
    shape = (net.num_layers * net.num_directions, batch, net.hidden_size)
    state = {own.name: rng.uniform(-1, 1, shape).astype(dtype) for own in net.cell.states}
    given: dict[str, Any] = {"lengths": lengths}
    if resets:
        given["reset"] = rng.random((steps, batch)) < 0.3
    y, last = module(x, state, **given)
    assert_close((y, last), rnn.reference(net)(x, state, **given), precision, steps)
    assert all((y[n:, b] == 0).all() for b, n in enumerate(lengths))
    again = module(x, state, **given)
    assert np.array_equal(y, again[0]) and all(np.array_equal(last[s], again[1][s]) for s in last)


@pytest.mark.slow
@pytest.mark.parametrize(("directions", "resets"), [("forward", False), ("reverse", True), ("both", True)])
def test_steps_of_live_rows(
    rows_left_out: None, monkeypatch: pytest.MonkeyPatch, directions: str, resets: bool
) -> None:
    monkeypatch.setattr(layer, "choose", lambda *given: [])
    monkeypatch.setattr(layer, "few_steps", lambda *given: 1)
    ways = {"forward": {}, "reverse": {"reverse": True}, "both": {"bidirectional": True}}[directions]
    net = rnn.RNN(rnn.cells.gru, 16, 24, num_layers=2, **ways).init(1)
    as_the_oracle(net, 11, 4, "tf32", resets)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "layers"), [("gru", 2), ("lstm", 1)])
def test_persistent_kernels_throw_away_what_was_left_out(rows_left_out: None, cell: str, layers: int) -> None:
    """Memory that nobody wrote is NaN here."""
    net = rnn.RNN(rnn.cells.get(cell), 16, 24, num_layers=layers).init(1)
    as_the_oracle(net, 11, 4, "tf32", resets=cell == "lstm")
