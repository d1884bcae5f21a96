"""Stages of work that has a row for each step, and the sections that threads take of them."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

import tvm_rnn as rnn
from tvm_rnn.cpu.row_stages import by_sections, in_stages
from tvm_rnn.cpu.second_thread import PART
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.passes import pipeline
from tvm_rnn.target import TABLE
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import sequence


def group(kind: str, *nodes: Node) -> Group:
    return Group(kind, "before", 0, None, nodes, nodes)


def test_rows_wait_for_recurrences_alone() -> None:
    """What a later group may do at once, before a recurrence, is done then."""
    x = Node("input", shape=(4,), name="x")
    a, b = make("exp", x), make("tanh", x)
    first = make("maximum", a, x)
    second, last = make("add", first, b), make("mul", a, b)
    groups = [group("pointwise", a), group("scan", first), *(group("pointwise", n) for n in (b, second, last))]
    stages = [[g.nodes[0] for g in stage] for stage in in_stages(groups, lambda g: g.kind != "scan")]
    assert stages == [[a, b, last], [first], [second]]


def test_recurrences_that_read_none_of_each_other_are_one_stage() -> None:
    """mLSTM: its maximum comes first, then its matrix with the sum of keys, though an output is made of both."""
    groups = pipeline.run(rnn.RNN(rnn.cells.mlstm, 4, 8), TABLE["x86-64-v4"])[-1][1].graphs[0].groups
    stages = in_stages(groups, lambda g: g.kind != "scan")
    scans = [[g.root.args[0].name for g in stage if g.root] for stage in stages if stage[0].kind == "scan"]
    assert scans == [["m"], ["C", "n"]]


@pytest.mark.parametrize(
    ("rows", "work", "threads", "each", "count"),
    [(100, PART, 2, 52, 2), (100, PART, 1, 100, 1), (100, PART - 1, 2, 100, 1), (3, PART, 2, 4, 1), (0, PART, 2, 4, 0)],
)
def test_sections_are_whole_tiles(rows: int, work: int, threads: int, each: int, count: int) -> None:
    made = by_sections(int64(rows), int64(work), int64(threads), 4, lambda first, size: sequence())
    known, sizes, loops = Analyzer(), dict[str, int](), list[tirx.For]()

    def note(s: tirx.Bind) -> None:
        if s.var.name in ("few", "each"):
            sizes[s.var.name] = int(known.simplify(s.value))
            known.bind(s.var, int64(sizes[s.var.name]))

    tvm_ffi.structural_walk(made, (tirx.Bind, note))
    tvm_ffi.structural_walk(made, (tirx.For, loops.append))
    assert (sizes["each"], int(known.simplify(loops[0].extent))) == (each, count)
