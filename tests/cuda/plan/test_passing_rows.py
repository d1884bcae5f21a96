"""Memory that hoisted values share with what is made behind the steps: what lies beside what, and how large it is."""

from __future__ import annotations

import pytest

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.plan.passing_rows import PassingRows
from tvm_rnn.graph.graph import Node

A, B = (Node("input", shape=(100,), name=name) for name in "ab")
PLACES = [(A, Place("bfloat16", 104, 16)), (B, Place("float32", 100, 16))]


@pytest.mark.parametrize(("behind", "size"), [("T * B * 10", 3328 + 6400 + 256), ("T * B * 1000", 16128)])
def test_it_is_as_large_as_the_larger_of_both_uses(behind: str, size: int) -> None:
    """16 rows of two values, each aligned, and what is beside them; or what comes behind."""
    program, rows = Program(), PassingRows(PLACES, "B * 8", behind)
    rows.reserve(program, "T * B", 3)
    assert working_memory(program, 132)(4, 4) == 3 * size


def test_layers_that_share_the_code_reserve_it_once() -> None:
    program, rows = Program(), PassingRows(PLACES, 0, 0)
    for copy in range(2):
        rows.reserve(program, "T * B", 2)
        found = rows.hoisted(copy)
        assert [place.dtype for place in found.values()] == ["bfloat16", "float32"]
        assert all(
            f"int64_t(({copy}) * passing_size_1)" in place.text for place in (*found.values(), rows.beside(copy))
        )
    assert sum("reserve(" in line for line in program.layout) == 1


def test_values_lie_behind_each_other() -> None:
    program, rows = Program(), PassingRows(PLACES, "B * 8", 0)
    rows.reserve(program, "T * B", 1)
    first, second = rows.hoisted(0).values()
    assert first.text != second.text != rows.beside(0).text
    assert "passing_1" in second.text and "passing_2" in rows.beside(0).text
