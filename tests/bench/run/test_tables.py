"""The report of a GPU benchmark: ratios, shares, means, as table and Markdown."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tvm_rnn.bench.run.tables import report

FACTS: dict[str, Any] = {
    "kind": "facts",
    "device": "a device",
    "versions": {"torch": "2.11"},
    "ceilings": {"memory_tb_s": 4.0, "bfloat16_tflops": 800.0},
}


def record(point: str, framework: str, us: float | None, **more: Any) -> dict[str, Any]:
    base = {"kind": "point", "point": point, "framework": framework, "precision": "bfloat16", "batch": 2, "steps": 10}
    timing = {} if us is None else {"us_per_step": us, "us": us * 10, "spread": 0.01, "error": 1e-3, "bytes": 8e6}
    return {**base, **timing, **more}


RECORDS = [
    FACTS,
    record("a", "tvm_rnn", 1.0, flops_per_row=2e6, repeats_equal=True, regime="cluster"),
    record("a", "torch", 4.0),
    record("a", "triton", None, reason="not installed"),
    record("b", "tvm_rnn", 2.0, precision="float16", repeats_equal=False, regime="grid"),
    record("b", "torch", 2.0, precision="float16"),
    record("c", "tvm_rnn", None, reason="it hung"),
    record("c", "torch", 3.0),
    {"kind": "stopped", "limit": 60.0, "points_left": 4},
]


def test_records_of_no_point_are_no_lines() -> None:
    found = report([FACTS, {"kind": "compile", "network": "lif", "framework": "tvm_rnn", "training": 2.0}])
    assert not found.lines and found.facts == FACTS


def test_ratios_and_means_are_of_points_that_have_both() -> None:
    found = report(RECORDS)
    assert [line.ratio("torch") for line in found.lines] == [4.0, 1.0, None]
    assert found.means() == [
        ("bfloat16", "torch", pytest.approx(4.0), 4.0, 1),
        ("float16", "torch", pytest.approx(1.0), 1.0, 1),
        ("all", "torch", pytest.approx(2.0), 1.0, 2),
    ]


def test_the_worst_of_all_points_beside_the_best_of_their_peers_comes_first() -> None:
    found = report([*RECORDS, record("a", "triton", 3.0)], worst_first=True)
    assert [(line.point, line.best) for line in found.lines] == [("b", 1.0), ("a", 3.0), ("c", None)]
    assert ("all", "the best of them", pytest.approx(3**0.5), 1.0, 2) in found.means()
    assert "of 2 points 0 below 1.0, 0 below 0.9" in found.notes()


def test_who_multiplies_in_another_precision_is_not_the_best() -> None:
    """It has a column of its own, with its error."""
    found = report([*RECORDS, record("a", "cudnn-fp16", 0.5, error=4.7e-4)], worst_first=True)
    line = next(line for line in found.lines if line.point == "a")
    assert line.best == 4.0 and line.ratio("cudnn-fp16") == 0.5
    assert found.cells(line)[found.header().index("its error")] == "4.7e-04"


def test_the_share_is_of_the_slower_floor() -> None:
    found = report(RECORDS)
    # 8e6 bytes at 4 TB/s are 2 us, 2e6 x 2 x 10 FLOPs at 800 TFLOP/s far less; ours takes 10 us
    assert found.share(found.lines[0]) == (pytest.approx(0.2), "bytes")
    busy = report([FACTS, record("a", "tvm_rnn", 1.0, flops_per_row=2e8)])
    assert busy.share(busy.lines[0]) == (pytest.approx(0.5), "FLOPs")
    assert found.share(found.lines[2]) is None


def test_the_table_says_what_is_known_and_why_the_rest_is_missing() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(report(RECORDS).table())
    text = out.getvalue()
    for part in ("4.00", "20% bytes", "1.0e-03", "equal", "DIFFER", "cluster", "it hung", "a device", "torch 2.11"):
        assert part in text
    assert "triton: not installed (1 point)" in text and "4 points left" in text


def test_markdown_is_a_table_with_notes() -> None:
    lines = report(RECORDS).markdown().splitlines()
    assert lines[0].startswith("| point | us/step | spread | torch | ratio | triton | ratio |")
    assert {line.count("|") for line in lines[:5]} == {lines[0].count("|")}
    assert any(line.startswith("- all: 2.00 x torch (geometric mean, least 1.00, 2 points)") for line in lines)


CUDNN = {"configs": {"STANDARD": 3.0, "PERSIST_STATIC": 2.5}, "left_out": {"PERSIST_DYNAMIC": "NOT_SUPPORTED"}}
COMPILED = [
    FACTS,
    record("a", "tvm_rnn", 1.0, compile_seconds=12.0),
    record("a", "torch", 4.0, configs={"torch.nn": 4.0}),
    record("a", "cudnn", 2.5, config="PERSIST_STATIC", **CUDNN),
    record("a", "torch-compile", 9.0, config="hoisted", configs={"hoisted": 9.0}, compile_seconds=31.25),
    record("b", "tvm_rnn", 1.0),
    record("b", "cudnn", None, reason="no cell mgu"),
]


def test_columns_name_the_configuration_that_won_and_the_seconds_of_compilers() -> None:
    found = report(COMPILED)
    assert found.header()[:4] == ["point", "us/step", "spread", "compile s"]
    by_title = list(zip(found.header(), found.cells(found.lines[0]), strict=True))[3:13]
    assert by_title == [
        ("compile s", "12"),
        *(("torch", "4"), ("ratio", "4.00")),
        *(("cudnn", "2.5"), ("ratio", "2.50"), ("config", "PERSIST_STATIC")),
        *(("torch-compile", "9"), ("ratio", "9.00"), ("compile s", "31.2")),
        ("share", "20% bytes"),
    ]
    assert len(found.cells(found.lines[1])) == len(found.header())
    assert "cudnn, PERSIST_DYNAMIC: NOT_SUPPORTED (1 point)" in found.notes()
    assert "cudnn: no cell mgu (1 point)" in found.notes()


def test_what_passes_give_is_the_ratio_to_all_of_them() -> None:
    network = {"cell": "lstm", "hidden": 8}
    found = report(
        [
            FACTS,
            record("no_fuse", "tvm_rnn", 6.0, without=["fuse_pointwise"], **network),
            record("all", "tvm_rnn", 2.0, without=[], **network),
            record("all", "torch", 8.0, without=[], **network),
            record("other", "tvm_rnn", 3.0, cell="gru", hidden=8, without=[]),
        ]
    )
    assert found.header()[3:7] == ["all passes", "ratio", "torch", "ratio"]
    assert [line.ratio("all passes") for line in found.lines] == [pytest.approx(1 / 3), 1.0, None]
    assert [line.ratio("torch") for line in found.lines] == [None, 4.0, None]
    assert [peer for _, peer, *_ in found.means()] == ["torch"]


def test_a_run_without_points_can_be_reported() -> None:
    empty = report([FACTS])
    assert empty.lines == () and empty.markdown() and empty.table().row_count == 0


def test_a_busy_machine_is_told_of() -> None:
    assert not any("busy" in note for note in report(RECORDS).notes())
    assert any("busy" in note for note in report([FACTS, record("a", "tvm_rnn", 1.0, spread=2.2)]).notes())
