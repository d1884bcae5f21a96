"""Loops around networks: which statements are nests, and what their tiles are."""

from __future__ import annotations

from typing import Any

from graphs import graph_of
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.schedule import Tiles
from tvm_rnn.surroundings.loops import loops_of
from tvm_rnn.surroundings.nest import nest_of
from tvm_rnn.tir.index import int64


def loops(make: Any, shape: Any = ("n", 4)) -> list[Any]:
    graph = graph_of([*shape], make)
    bodies = [function.body for function in loops_of([call.function for call in graph.calls])]
    parts = [part for body in bodies for part in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]
    return [part for part in parts if not isinstance(part, tirx.AllocBuffer)]


def test_a_sum_is_stored_by_what_follows() -> None:
    weights = relax.const([[1.0] * 3] * 4, "float32")
    parts = loops(lambda x: relax.op.exp(relax.op.matmul(x, weights)))
    assert [len(nest.summed) for nest in map(nest_of, parts) if nest is not None] == [1, 0]
    assert len(Tiles(8, int64(1)).scheduled(parts, lambda buffer: True)) == 1
    assert len(Tiles(8, int64(1)).scheduled(parts, lambda buffer: False)) == 2


def test_what_is_no_nest_stays() -> None:
    (one,) = loops(relax.op.tanh)
    other = tirx.SeqStmt([one, one])
    assert nest_of(other) is None
    assert Tiles(8, int64(1)).scheduled([other], lambda buffer: True) == [other]


def test_a_number_may_stand_between_a_sum_and_what_stores_it() -> None:
    weights = relax.const([[1.0] * 3] * 4, "float32")
    parts = loops(lambda x: relax.op.exp(relax.op.matmul(x, weights)))
    own = tirx.decl_buffer((), "float32")
    number = tirx.BufferStore(own, tirx.const(2.0, "float32"), [])
    assert len(Tiles(8, int64(1)).scheduled([parts[0], number, parts[1]], lambda buffer: True)) == 2
