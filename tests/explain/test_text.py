"""The page of text: everything that the facts have, in words."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn import explain
from tvm_rnn.explain.tables import percent, time_text
from tvm_rnn.explain.text import plans_text, text
from tvm_rnn.options import PASS_NAMES


def test_a_network_for_a_gpu() -> None:
    page = str(explain(rnn.RNN(rnn.cells.lstm, 64, 64, dtype="bfloat16"), "nvidia-h200", batch=16))
    for title in (*PASS_NAMES, "who runs the steps", "schedules", "work of T = 100 steps", "memory"):
        assert f"\n{title}" in page
    assert "+ persistent_cluster_cuda (B = 16): " in page and "- scan_cuda: " in page
    assert "weights: 32.8 KB in registers, 0 B in shared memory" in page
    assert "data sheet of nvidia-h200" in page
    assert "B = 16: steps take turns, and their blocks wait for each other 1 time in each: " in " ".join(page.split())


def test_where_heads_lie() -> None:
    net = rnn.RNN(rnn.cells.slstm, 16, dtype="bfloat16", H=16, N=3)
    page = " ".join(str(explain(net, "nvidia-h200", batch=8)).split())
    assert "3 heads apart: a step reads nothing of other heads" in page and "for 8 rows of each of 3 heads" in page


def test_a_network_for_a_cpu() -> None:
    page = " ".join(str(explain(rnn.RNN(rnn.cells.lstm, 64, 64), "x86-64-v4")).split())
    assert (
        "+ one call for all of T: " in page and "65.5 KB of weights, all of which a core's level-2 cache holds" in page
    )
    facts = explain(rnn.RNN(rnn.cells.lstm, 64, 1024), "x86-64-v4").facts
    assert "16.8 MB of weights, all but " in " ".join(text(facts).split())
    own = facts["networks"][0]
    row = {**own["work"][0], "ceilings": {"memory_tb_s": 1.0}}
    assert "--measure times it" in text({"networks": [{**own, "work": [row]}]})
    assert "--measure" not in text({"networks": [{**own, "work": [{**row, "measured_us": 5.0}]}]})


def test_what_is_small_is_not_nothing() -> None:
    assert [percent(part) for part in (0.0, 0.001, 0.5)] == ["0%", "< 1%", "50%"]
    assert [*map(time_text, (0.1234, 999.0, 21413.0, 2.5e6))] == ["0.123 us", "999 us", "21.4 ms", "2.5 s"]


def test_four_answers_come_first() -> None:
    page = str(explain(rnn.RNN(rnn.cells.gru, 8, 8), "x86-64-v4", records="none"))
    questions = ("What it is", "How fast", "How far from the roof", "What to change first", "parallelise_time")
    assert sorted(questions, key=page.index) == [*questions]


def test_kernels_of_a_compiled_module() -> None:
    facts = explain(rnn.RNN(rnn.cells.gru, 8, 8), "x86-64-v4").facts
    kernel = {"kernel": "persistent_0", "registers": 222, "spill_bytes": 0, "shared_bytes": 0, "threads": 128}
    full = {**kernel, "dynamic_shared_bytes": 15632, "blocks_per_sm": 2, "occupancy": 0.125, "limited_by": "registers"}
    own = {**facts["networks"][0], "kernels": [full, {**kernel, "kernel": "g0_pack2"}]}
    page = text({"networks": [own]})
    assert "persistent_0  222" in page and "12%" in page and "g0_pack2" not in page


def test_layers_with_graphs_of_their_own_are_named() -> None:
    page = text(explain(rnn.RNN(rnn.cells.gru, 8, 16, 3), "x86-64-v4").facts)
    assert "W @ x (layers 1, 2): " in page and "[layer 0]" in page and "[layers 1, 2]" in page


def test_training_has_a_tape() -> None:
    page = str(explain(rnn.RNN(rnn.cells.elman, 8, 8), "x86-64-v4", training=True))
    assert "tape between forward_train and backward: " in page and "(training)" in page
    assert "plans of training's memory for T = 100, B = 1" in page and "> no limit: chosen" in page


def test_a_table_of_plans_marks_the_one_that_is_chosen() -> None:
    row = {"keep": "values", "segment_steps": 9, "segments": 1, "steps_again": 0, "relative_time": 1.0}
    rows = [{**row, "bytes": 2000, "peak_bytes": 2500}, {**row, "bytes": 900, "peak_bytes": 1400, "steps_again": 3}]
    page = plans_text({"steps": 9, "batch": 2, "max_bytes": 1000, "table": rows, "chosen": rows[1]})
    assert "T = 9, B = 2" in page and "max_bytes = 1000" in page
    (line,) = [line for line in page.splitlines() if line.startswith("  >  values")]
    assert "33%" in line and "900 B" in line and "1.4 KB" in line
