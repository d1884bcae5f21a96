"""Clocks in a network's kernels, emulated, beside the decisions that a report shows."""

from __future__ import annotations

from functools import partial

import emulator
import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.cuda.persistent.phase_clocks import BLOCKS, clocked, width
from tvm_rnn.decisions import DecisionFacts
from tvm_rnn.explain.html import page
from tvm_rnn.explain.phase_clocks import _measured, with_clocks
from tvm_rnn.runtime.runtime import Module


@pytest.mark.broad
def test_phases_have_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = rnn.RNN(rnn.cells.gru_reset_before, 8, 16, dtype="bfloat16").init(0)
    compiled = partial(emulator.compile, net, batch=[3])
    before = compiled().manifest["decisions"]
    after = with_clocks(before, compiled, 3)
    own, row = [[d for d in rows if "phase_times" in d.get("facts", {})] for rows in (before, after)]
    assert len(own) == len(row) == 1 and len(after) == len(before)
    predicted, measured = own[0]["facts"]["phase_times"], row[0]["facts"]["clocked_times"]
    same = [(phase["kind"], phase["units"]) for phase in predicted]
    assert [(phase["kind"], phase["units"]) for phase in measured] == same
    assert all(phase["product"] > 0 and phase["cells"] > 0 and phase["exchange"] >= 0 for phase in measured)
    assert row[0]["facts"]["clocked_by"] == "B = 3, T = 3" and "clocked_times" not in own[0]["facts"]


@pytest.mark.broad
def test_blocks_of_all_members_have_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they wait for one another's additions, and a step seems to take several times as long."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = rnn.RNN(rnn.cells.gru_reset_before, 8, 16, members=3, dtype="bfloat16").init(0)
    with clocked() as found:
        module = emulator.compile(net, batch=[3])
    ((_, numbers),) = _measured(module, found, [3], 4)
    rows = dict[str, np.ndarray]()
    for kernel, (phases, first) in found.kernels.items():
        each = width(phases)
        blocks = np.array(numbers[first : first + BLOCKS * each]).reshape(BLOCKS, each)
        rows[kernel] = blocks[blocks.any(axis=1)]
    (ran,) = (own for own in rows.values() if len(own))
    assert len(ran) >= 3 and len(ran) % 3 == 0 and len(set(ran[:, -3])) == 1
    told = [d["facts"]["kernel"] for d in module.manifest["decisions"] if "phase_times" in d.get("facts", {})]
    assert told and {*told} <= {*found.kernels}


@pytest.mark.slow
def test_phases_of_both_passes_have_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = rnn.RNN(rnn.cells.gru, 8, 16, dtype="bfloat16").init(0)
    compiled = partial(emulator.compile, net, batch=[3], training=True)
    after = with_clocks(compiled().manifest["decisions"], compiled, 3)
    rows = [d for d in after if "clocked_times" in d.get("facts", {})]
    assert sorted("training" in d["subject"] for d in rows) == [False, True, True]
    assert len({d["facts"]["kernel"] for d in rows}) == 3
    for row in rows:
        predicted, measured = row["facts"]["phase_times"], row["facts"]["clocked_times"]
        names = [[(phase["kind"], phase["units"]) for phase in phases] for phases in (predicted, measured)]
        assert names[0] == names[1] and all(phase["cells"] > 0 for phase in measured)


def test_what_has_no_phases_is_not_compiled_again() -> None:
    def compiled() -> Module:
        raise AssertionError

    decisions: list[DecisionFacts] = [{"stage": "regime", "done": True, "what": "step by step", "facts": {}}]
    assert with_clocks(decisions, compiled, 3) == decisions


def test_a_page_draws_both_over_one_axis() -> None:
    pytest.importorskip("vl_convert")
    phase = {"kind": "gemm", "units": 32, "exchange": 0.5, "product": 1.0, "cells": 0.25}
    facts = {"phase_times": [phase], "clocked_times": [{**phase, "product": 3.0}], "clocked_by": "B = 2, T = 3"}
    whole = "".join(page._step_charts(facts, "a layer"))
    assert "one step, predicted" in whole and "one step, measured at B = 2, T = 3" in whole
    assert whole.count("<svg") == 2
