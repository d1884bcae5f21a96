"""few_steps: calls of few steps are calls of one step, one after the other, where that takes the least time."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.cuda.model.few_steps import BATCHES, MOST, least
from tvm_rnn.cuda.plan import layer
from tvm_rnn.cuda.plan.network import Plan
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "choose", lambda *given: [])


def few(cell: str, inputs: int, hidden: int) -> dict[int, int]:
    target = resolve("nvidia-h200")
    net = rnn.RNN(rnn.cells.get(cell), inputs, hidden, dtype="bfloat16")
    own = passed(net, Options(target, precision="bfloat16"))
    (code,) = Plan(own, own.layers, target).code
    return code.few


@pytest.mark.broad
def test_what_is_hoisted_is_worth_more_for_wide_inputs(step_by_step: None) -> None:
    narrow, wide = few("lstm", 128, 512), few("lstm", 30000, 512)
    assert {*narrow} == {*wide} == {*BATCHES}
    assert narrow[16] == MOST and wide[1] == wide[16] == 1


def test_layers_share_what_the_least_of_them_allows() -> None:
    rows = [{1: 3, 16: 2, 64: 2}, {1: 4, 16: 4, 64: 2}]
    assert least(rows) == "(B <= 1 ? 3 : 2)"
    assert least([{8: 1}]) == "1"


@pytest.mark.slow
def test_steps_on_states_of_users(step_by_step: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both directions, from states and from none, with rows that end: the oracle's results."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = rnn.RNN(rnn.cells.elman, 5, 8, num_layers=2, dtype="float64", bidirectional=True).init(1)
    module: Any = emulator.compile(net, precision="float64")
    (rows,) = {row["most_steps"] for row in module.manifest["templates"] if "most_steps" in row}
    assert rows > 1
    rng = np.random.default_rng(0)
    for steps in (1, 2, 3, rows, rows + 1):
        x = rng.uniform(-1, 1, (steps, 3, 5))
        for state in (None, {name: rng.uniform(-1, 1, (4, 3, 8)) for name in "h"}):
            for given in ({}, {"lengths": np.array([0, steps, steps // 2])}):
                expected = rnn.reference(net)(x, state, **given)
                assert_close(module(x, state, **given), expected, "float64", steps)
