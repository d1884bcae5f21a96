"""Which statements become one kernel: moves where they are read, what follows a sum with it."""

from __future__ import annotations

import numpy as np
from graphs import graph_of
from tvm import relax, tirx

from tvm_rnn.cuda.surroundings.inline import Piece, pieces_of
from tvm_rnn.cuda.surroundings.statements import Statements
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import loop


def pieces(shape: list[str | int], make: object) -> list[Piece]:
    found = Statements(graph_of(shape, make))
    return pieces_of(found.done, found.outputs)


def test_padding_and_a_turned_picture_are_read_in_place() -> None:
    w = np.ones((4, 3, 5), "f4")
    (piece,) = pieces(["b", 3, "t"], lambda x: relax.op.nn.relu(relax.op.nn.conv1d(x, relax.const(w), padding=2)))
    assert piece.nest is not None and piece.nest.summed and piece.after is not None


def test_exponentials_are_not_computed_again_for_each_term() -> None:
    found = pieces(["n", 8], lambda x: relax.op.matmul(relax.op.exp(x), relax.const(np.ones((8, 8), "f4"))))
    assert [bool(own.nest and own.nest.summed) for own in found] == [False, True]


def test_an_array_that_changes_is_not_replaced_by_what_it_was() -> None:
    """b = a, then b[0] = 0 in a statement of its own; c = b is not a."""
    a, b, c = (tirx.decl_buffer((int64(4),), "float32", name=name) for name in "abc")
    statements = [
        loop("i", int64(4), lambda i: tirx.BufferStore(b, tirx.BufferLoad(a, [i]), [i])),
        tirx.BufferStore(b, tirx.const(0.0, "float32"), [int64(0)]),
        loop("i", int64(4), lambda i: tirx.BufferStore(c, tirx.BufferLoad(b, [i]), [i])),
    ]
    assert len(pieces_of(statements, [c])) == 3
    assert len(pieces_of([statements[0], statements[2]], [c])) == 1
    assert len(pieces_of([statements[0], statements[2]], [b, c])) == 2, "a result is in memory"


def test_a_sum_leaves_what_was_added_up() -> None:
    (piece,) = pieces(["n", "t"], lambda x: relax.op.sum(x, 1))
    assert piece.after is None
    assert piece.stores.buffer.same_as(piece.nest.store.buffer)
