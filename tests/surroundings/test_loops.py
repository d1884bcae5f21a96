"""A graph's functions as loops: which values are computed where they are read, which constants are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi
from graphs import graph_of
from tvm import relax, tirx

from tvm_rnn.surroundings.calls import Value
from tvm_rnn.surroundings.loops import loops_of, with_numbers
from tvm_rnn.surroundings.nest import nest_of
from tvm_rnn.tir.index import int64


def loops(make: Any, shape: Any = ("n", 4)) -> list[Any]:
    graph = graph_of([*shape], make)
    bodies = [function.body for function in loops_of([call.function for call in graph.calls])]
    parts = [part for body in bodies for part in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]
    return [part for part in parts if not isinstance(part, tirx.AllocBuffer)]


def value(array: np.ndarray) -> Value:
    return Value(tuple(array.shape), array.dtype.name, array)


def test_pointwise_values_are_computed_where_they_are_read() -> None:
    (one,) = loops(lambda x: relax.op.exp(relax.op.tanh(relax.op.negative(x))))
    nest = nest_of(one)
    assert nest is not None and not nest.summed and len(nest.own) == 2


def test_equal_functions_are_lowered_once() -> None:
    graph = graph_of(["n", 4], lambda x: relax.op.exp(x))
    other = graph_of(["m", 4], lambda x: relax.op.exp(x))
    one, two = loops_of([graph.calls[0].function, other.calls[0].function])
    assert one is two


def test_a_number_that_takes_long_is_computed_once() -> None:
    """It is no part of the loops that read it."""
    parts = loops(lambda x: relax.op.multiply(x, relax.op.sqrt(relax.op.max(x, 1, True))))
    assert [len(nest.own) for nest in map(nest_of, parts) if nest is not None] == [1, 1, 2]


def test_numbers_are_in_the_code() -> None:
    x, two, odd = (tirx.decl_buffer(shape, "float32", name=n) for n, shape in (("x", (4,)), ("two", ()), ("odd", (1,))))
    load = tirx.BufferLoad(x, [int64(1)])
    power = tirx.BufferStore(x, tirx.pow(load, tirx.BufferLoad(two, [])), [int64(1)])
    known = {two: value(np.array(2, "f4")), odd: value(np.array([np.inf], "f4"))}
    assert tvm_ffi.structural_equal(with_numbers(power, known).value, load * load)
    strange = tirx.BufferStore(x, tirx.BufferLoad(odd, [int64(0)]), [int64(1)])
    assert tvm_ffi.structural_equal(with_numbers(strange, known), strange)


def test_a_zero_below_is_no_number_in_the_code() -> None:
    x, below = (tirx.decl_buffer((), "float32", name=name) for name in ("x", "below"))
    store = tirx.BufferStore(x, tirx.BufferLoad(below, []), [])
    assert tvm_ffi.structural_equal(with_numbers(store, {below: value(np.array(-0.0, "f4"))}), store)
