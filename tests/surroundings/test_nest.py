"""Which statements are loop nests around one store, and what expressions read."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.surroundings.nest import is_choice, mentions, nest_of, reads, replaced
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop, variable


def test_loops_around_a_store() -> None:
    x, y = tirx.decl_buffer((4, 3), "float32"), tirx.decl_buffer((4,), "float32")

    def one(i: tirx.Var) -> tirx.Stmt:
        return tirx.BufferStore(y, tirx.BufferLoad(x, [i, int64(1)]), [i])

    statement = loop("i", 4, one)
    nest = nest_of(statement)
    assert nest is not None and [int(own.extent) for own in nest.own] == [4] and not nest.summed
    assert len(reads(statement, x)) == 1 and not reads(statement, tirx.decl_buffer((4,), "float32"))
    assert nest_of(one(int64(0))) is None


def test_variables_of_an_expression() -> None:
    i, j = variable("i"), variable("j")
    assert mentions(i + int64(1), i) and not mentions(replaced(i + int64(1), {i: j}), i)


def test_choices_are_known() -> None:
    """By the name that this TVM gives the operator."""
    i = variable("i")
    assert is_choice(tirx.if_then_else(i < int64(3), i, int64(0)))
    assert not is_choice(tirx.Select(i < int64(3), i, int64(0))) and not is_choice(i)
