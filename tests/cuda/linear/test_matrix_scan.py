"""Matrix recurrences of a plan: which kernels are launched for how many steps."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.recurrences import CELLS
from tvm_rnn.cuda.linear.matrix_scan import ALONE, FEW
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


def test_few_steps_go_one_after_the_other() -> None:
    net = rnn.RNN(rnn.cells.retnet, 5, 16, dtype="bfloat16")
    program = plan(passed(net, Options(GPU, precision="bfloat16")), GPU)
    lines = [line.strip() for line in program.sequence.lines]
    steps = [i for i, line in enumerate(lines) if "_scan_in_place" in line]
    chunks = [i for i, line in enumerate(lines) if "_scan_chunks" in line]
    before = [i for i, line in enumerate(lines) if "_scan_compose" in line]
    assert len(steps) == len(before) == len(chunks) / 2 == 2  # without and with lengths and resets; in segments or not
    (when,) = [line for line in lines if line.startswith("const int64_t in_place")]
    assert "= tile_steps_1 >= T" in when and when.endswith("% 8 == 0;")  # four elements at once
    assert lines[steps[0] - 2] == f"if (T <= {FEW} && in_place_1) {{"
    assert all("in_place_1 ? 1 : 0" in lines[i] for i in [*chunks, *before])  # chunks take the user's states too
    (row,) = [row for row in program.facts["templates"] if row["template"] == "chunk_scan_cuda"]
    assert row["unit"] == "before scan_matrix 1x16x16, all of T in chunks of 64 steps, any B"


def test_few_blocks_make_what_they_read() -> None:
    net = rnn.RNN(CELLS["gated_delta"], 2 * (3 * 16 + 2), 16, N=2, M=1, dtype="bfloat16")
    program = plan(passed(net, Options(GPU, precision="bfloat16")), GPU)
    lines = [line.strip() for line in program.sequence.lines]
    alone = [i for i, line in enumerate(lines) if "_scan_alone" in line]
    (rows,) = [i for i, line in enumerate(lines) if "g0_before0_rows" in line]
    few = f"T <= {FEW} && B * 2 <= sms * {ALONE}"  # a block for each head
    assert len(alone) == 2 and all(few in lines[i - 1] and "hoisted" not in lines[i] for i in alone)
    assert lines[rows - 1] == f"if (!(in_place_1 && {few})) {{"
    normed = rnn.RNN(rnn.cells.gated_delta_net, 5, 16, dtype="bfloat16")  # keys are divided by their lengths
    program = plan(passed(normed, Options(GPU, precision="bfloat16")), GPU)
    assert not any("_scan_alone" in line for line in program.sequence.lines)


@pytest.mark.broad
def test_states_are_copied_where_no_recurrence_takes_the_users() -> None:
    for dtype, kind in (("bfloat16", "bfloat16"), ("float32", "float32"), ("float16", "float16")):
        net = rnn.RNN(rnn.cells.gated_delta_net, 5, 17, dtype=dtype)
        program = plan(passed(net, Options(GPU, precision=dtype)), GPU)
        lines = [line.strip() for line in program.sequence.lines]
        for name in ("load0", "save0"):
            (at,) = [i for i, line in enumerate(lines) if f"::{name}," in line]
            assert lines[at - 1] == "if (!in_place_1) {"
        (when,) = [line for line in lines if line.startswith("const int64_t in_place")]
        assert f"% {4 if kind == 'float32' else 2} == 0" in when  # of 17 values, one element at a time
    program = plan(passed(rnn.RNN(rnn.cells.lstm, 5, 16), Options(GPU, precision="float32")), GPU)
    assert not any("in_place" in line for line in program.sequence.lines)


def test_what_has_no_chunks_goes_step_by_step_in_one_launch() -> None:
    for name, gpu in (("rwkv7", "nvidia-h200"), ("retnet", "nvidia-a100")):
        target = resolve(gpu)
        net = rnn.RNN(rnn.cells.get(name), 5, 16)
        program = plan(passed(net, Options(target, precision="float32")), target)
        lines = [line for line in program.sequence.lines if "_scan_" in line]
        assert len([line for line in lines if "_scan_steps" in line]) == 4 and not any("_chunks" in x for x in lines)
        assert (
            len([name for name in program.kernels if "_scan_steps" in name]) == 2
        )  # in place, or states of earlier tiles
        assert any(row["unit"].endswith("all of T step by step, any B") for row in program.facts["templates"])
