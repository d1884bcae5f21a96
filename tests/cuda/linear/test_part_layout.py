"""Operands of a part in shared memory, and which vectors are multiplied with which."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from again_pairs import pair

from tvm_rnn.cuda.linear.pair import EVERY, GRADIENT, STATE
from tvm_rnn.cuda.linear.parts_layout import PartsLayout


def layout(**more: Any) -> PartsLayout:
    return PartsLayout("k", pair(**{"precision": "bfloat16", "chained": True, **more}))


def test_operands_lie_one_behind_the_other() -> None:
    own = layout(keys=40, values=50, reads="sgb")
    places = sorted((own.at(name), EVERY * own.pitch(name)) for name in own.held)
    assert places[0][0] == 0 and all(a + size == b for (a, size), (b, _) in pairwise(places))
    assert sum(places[-1]) == own.operand_bytes


def test_an_operand_is_there_once() -> None:
    own = layout(reads="sgb")
    assert "vector_0" not in own.held and own.at("vector_0") == own.at("gradient_row_0")
    assert own.shared_bytes < PartsLayout("k", replace(own.pair, same=())).shared_bytes


def test_one_score_serves_both_matrices() -> None:
    """What reads the matrix is written to its gradient, and the other way."""
    own = layout(reads="sgsb", writes=(1, 2))
    assert own.vectors == {STATE: ["gradient_row_0", "gradient_row_1"], GRADIENT: ["state_row_0"]}
    assert own.scores == [("gradient_row_0", "state_row_0"), ("gradient_row_1", "state_row_0")]
    apart = PartsLayout("k", replace(own.pair, same=()))
    assert len(apart.scores) > len(own.scores)
