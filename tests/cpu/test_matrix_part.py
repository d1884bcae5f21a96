"""matrix_part: vectors of a part, and sums across their lanes."""

from __future__ import annotations

import pytest
from tvm.sym import Analyzer

from tests.cpu.matrix_parts import delta_part
from tvm_rnn.cpu.matrix_part import across, held, total
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer


@pytest.mark.parametrize(("keys", "count", "turns"), [(64, 1, 4), (64, 4, 2), (64, 9, 1), (7, 1, 1), (6, 1, 2)])
def test_few_sums_take_turns(keys: int, count: int, turns: int) -> None:
    assert delta_part(16, keys).turns(count) == turns


def test_lanes_are_summed_by_halves() -> None:
    statements, _ = across(buffer("wide", "float32"), 16, "float32")
    assert len(statements) == 2 * 4 and across(buffer("one", "float32"), 1, "float32")[0] == []


def test_a_variable_is_held_in_memory() -> None:
    var, statements = held("place", int64(3))
    assert len(statements) == 3 and str(total([var, var])) == "place + place"


@pytest.mark.parametrize("together", [1, 4])
def test_turns_have_several_keys(together: int) -> None:
    keys = list[Expr]()

    def noted(key: Expr) -> None:
        keys.append(key)

    turns = delta_part(16, 8).over_keys(noted, together)
    assert int(turns.extent) * together == 8
    assert [int(Analyzer().simplify(key - keys[0])) for key in keys] == [*range(together)]
