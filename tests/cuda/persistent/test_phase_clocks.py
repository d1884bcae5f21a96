"""Clocks of persistent kernels, run on the CPU with a clock that goes on whenever it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import Case, kernel_error
from persistent_layers import geometry_of, layout_of, step, text_of
from training_plans import trained

from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.phase_clocks import BLOCKS, PARTS, POINTER, TOTALS, Clocks, clocked, clocks, width
from tvm_rnn.oracle.tolerance import tolerance

CLUSTER = {"exchange": "cluster", "ctas": 2, "rows": 8, "shared_words": 1 << 20}
GRID = {"exchange": "grid", "ctas": 2, "rows": 8, "warps_k": 2}
STAGED = {"rows": 16, "warps_u": 4, "polled": 1, "staged": 1, "shared_words": 1 << 20, "register_words": 32}
RING = {"exchange": "grid", "rows": 8, "warps_k": 4, "ring": 3, "together": 2, "register_words": 8}
KINDS: dict[str, tuple[str, int, str, int, dict[str, Any]]] = {
    "cluster": ("slstm", 32, "bfloat16", 0, CLUSTER),
    "fma": ("lstm", 40, "float32", 12, {**GRID, "polled": 1, "fma": 2, "ctas": 5, "register_words": 0}),
    "block": ("gru_reset_before", 32, "bfloat16", 0, {**CLUSTER, "ctas": 1, "exchange": "block"}),
    "counter": ("lstm", 32, "bfloat16", 0, GRID),
    "reduction": ("lstm_layer_norm", 32, "bfloat16", 0, CLUSTER),
    "polled": ("lstm", 64, "bfloat16", 0, {**GRID, "polled": 1}),
    "staged": ("lstm", 64, "bfloat16", 0, {**GRID, **STAGED}),
    "pipelined": ("gru", 72, "bfloat16", 0, {**RING, "ctas": 6, "warps_u": 2}),
    "split K": ("gru", 72, "bfloat16", 0, {**RING, "ctas": 10, "rows": 32, "pace": 1, "shared_words": 8}),
}


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_cycle_is_in_one_part(kind: str) -> None:
    """And results are those of a kernel without clocks."""
    name, hidden, precision, inputs, knobs = KINDS[kind]
    case = Case(name, hidden, 9, 4, precision, inputs=inputs)
    geometry = geometry_of(step_of(case.layout), precision, **knobs)
    phases = len(geometry.step.phases)
    numbers = np.zeros(BLOCKS * width(phases), np.uint64)
    with clocked() as found:
        kernel = persistent.kernel("k", geometry, case.layout)
        assert found.pointer("k", phases).text == "host::clocks" and found.count == numbers.size
    assert kernel_error(case, geometry, kernel, also={"clocks": numbers}) < tolerance(precision, 4)
    blocks = numbers.reshape(BLOCKS, -1).astype(np.int64)
    count = geometry.ctas * -(-9 // geometry.rows)
    ran = blocks[:count]
    assert not blocks[count:].any()
    steps, cycles, nanoseconds = ran[:, -3:].T
    assert (steps == 4 * geometry.warps).all() and (nanoseconds > 0).all()
    assert (ran[:, : -len(TOTALS)].sum(axis=1) == cycles).all()
    parts = ran[:, : -len(TOTALS)].reshape(-1, phases, len(PARTS)).sum(axis=0)
    for own, phase in zip(parts, geometry.step.phases, strict=True):
        assert own[2] > 0 and (own[1] > 0) == (phase.kind == "gemm")
        assert own[0] > 0 or phase.kind != "reduce"
    assert parts[:, 0].all() or not all(phase.operands for phase in geometry.step.phases)
    rows = found.measured("k", numbers.tolist())
    us = nanoseconds.sum() / steps.sum() / 1000
    assert sum(sum(row.values()) for row in rows) == pytest.approx(us)
    assert rows[0]["product"] == pytest.approx(parts[0, 1] * us / cycles.sum())


def test_what_did_not_run_has_no_times() -> None:
    found = Clocks()
    found.pointer("a", 2)
    assert found.pointer("b", 1).text.startswith("(host::clocks + ")
    assert found.pointer("a", 2).text == "host::clocks" and found.count == BLOCKS * (width(2) + width(1))
    numbers = [0] * found.count
    assert found.measured("a", numbers) == [] == found.measured("c", numbers)
    numbers[-6:] = [100, 300, 600, 2, 1000, 4000]  # cycles of one phase; steps of all warps, cycles, nanoseconds
    assert found.measured("b", numbers) == [{"exchange": 0.2, "product": 0.6, "cells": pytest.approx(1.2)}]


def test_other_kernels_have_none() -> None:
    geometry, layout = geometry_of(step("lstm", 64), "bfloat16", **CLUSTER), layout_of("lstm", 64)
    kernel = persistent.kernel("k", geometry, layout)
    assert clocks() is None and POINTER not in kernel.pointers and "clock" not in text_of(kernel)


def test_both_passes_of_training_have_them() -> None:
    with clocked() as found:
        _, plans = trained.__wrapped__("gru", 8, "bfloat16")
    assert len(found.kernels) == len(plans.programs) == 2
    assert all("host::clocks" in str(program.sequence) for program in plans.programs)
