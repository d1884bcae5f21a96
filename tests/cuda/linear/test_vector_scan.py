"""Recurrences of vectors in chunks: which kernels a call launches, and what they are given."""

from __future__ import annotations

import pytest
from vector_scans import delay, linear, maximum

import tvm_rnn as rnn
from tvm_rnn.bench.suites.recurrences import CELLS
from tvm_rnn.cuda.linear.vector_scan import MOST_KEPT
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


def test_what_is_read_once() -> None:
    """Where a second reading takes longer than a wait, the GPU does not hold it, and nothing cuts states off."""
    assert linear()[0].once and maximum()[0].once and not delay()[0].once
    plans = {dtype: rnn.RNN(CELLS["gated_sum"], 128, 64, dtype=dtype) for dtype in ("float32", "bfloat16")}
    found = {d: plan(passed(net, Options(GPU, precision=d)), GPU) for d, net in plans.items()}
    texts = {d: "\n".join(program.sequence.lines) for d, program in found.items()}
    assert texts["float32"].count("_scan_once") == 1 and "_scan_once" not in texts["bfloat16"]
    held = GPU.l2_bytes + GPU.sms * 2 * MOST_KEPT
    assert "sms * 2" in texts["float32"] and f"* (B * 512) > {held}" in texts["float32"]
    assert all(f"_scan_at_once{kind}, " in text for text in texts.values() for kind in ("", "_masked"))


@pytest.mark.broad
def test_states_are_the_users_where_nobody_else_reads_them() -> None:
    """In one direction, in the dtype of arithmetic, and where they are not replaced."""
    for dtype, options, own in (("float32", {}, True), ("bfloat16", {}, False), ("float32", {"reverse": True}, False)):
        net = rnn.RNN(rnn.cells.min_gru, 5, 7, dtype=dtype, **options)
        lines = [line.strip() for line in plan(passed(net, Options(GPU, precision=dtype)), GPU).sequence.lines]
        found = [line for line in lines if line.startswith("const int64_t in_place")]
        assert bool(found) == own and all("tile_steps_1 >= T && users" in line and "!= users" in line for line in found)
        if own:
            assert lines[next(i for i, line in enumerate(lines) if "::load0," in line) - 1] == "if (!in_place_1) {"


def test_users_values_are_taken_in_pairs_where_they_are_aligned() -> None:
    """Others, and rows with lengths or resets, have kernels that take them one by one."""
    net = rnn.RNN(CELLS["gated_sum"], 128, 64, dtype="bfloat16")
    lines = [line.strip() for line in plan(passed(net, Options(GPU, precision="bfloat16")), GPU).sequence.lines]
    kinds = [line for line in lines if line.startswith("if") and "uintptr_t" in line and "has_lengths" in line]
    assert len(kinds) == 2 and all("% 4 == 0" in line for line in kinds)
    assert "!has_lengths" in kinds[0] and "|| !(" in kinds[1]
