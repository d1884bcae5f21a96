"""The TIR passes of CPU code: what stays on the stack, which vectors become loops, and equations that TVM refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from networks import compiled
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import cell, exp, maximum, mean, minimum, sum, tanh
from tvm_rnn.cpu.tir_pipeline import STACK_BYTES, flat, inner_loops_apart, keep_on_stack, one_by_one, simplified
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import (
    bind,
    buffer,
    load,
    loop,
    runtime_function,
    sequence,
    store,
    variable,
    vector,
    when,
)


@cell(states="h")
def negated(x: "I", h: "H", *, W: "H I", s: ""):
    return h * mean(-maximum(tanh(h), s), keepdims=True) + W @ x


@cell(states="h s")
def scaled(x: "I", h: "H", s: "", *, W: "H I"):
    return h * sum(0.1 * minimum(exp(-h * h), s), keepdims=True) + tanh(W @ x), 0.5 * s + 0.1


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("c", [negated, scaled], ids=lambda c: c.name)
@pytest.mark.parametrize("hidden", [5, 16])
def test_scalars_against_functions_inside_a_reduction(c: Any, hidden: int) -> None:
    net, module = compiled(c, 3, hidden, dtype="float64")
    x = np.random.default_rng(0).normal(size=(7, 4, 3))
    assert_close(module(x), rnn.reference(net)(x), "float64", 7)


def loops_of(function: str, dtype: str = "float64") -> Any:
    source, into = (tirx.decl_buffer((8,), dtype, name=name) for name in ("source", "into"))

    def body(v: Any) -> Any:
        value = tirx.BufferLoad(source, [v])
        called = tirx.call_pure_extern(dtype, function, value) if function else value + value
        return tirx.BufferStore(into, called, [v])

    return vector("v", 8, body)


def test_only_vectors_with_calls_become_loops() -> None:
    assert one_by_one(loops_of("tanh")).kind == tirx.ForKind.SERIAL
    plain = loops_of("")
    assert one_by_one(plain).same_as(plain) and plain.kind == tirx.ForKind.VECTORIZED


@pytest.mark.parametrize(("elements", "kept"), [(STACK_BYTES // 8, True), (STACK_BYTES // 8 + 1, False)])
def test_small_buffers_stay_on_the_stack(elements: int, kept: bool) -> None:
    found = keep_on_stack(tirx.AllocBuffer(tirx.decl_buffer((elements,), "float64", scope="local")))
    assert ("disable_lower_builtin" in found.annotations) == kept


def test_arrays_of_several_axes_have_one() -> None:
    """What is given has an address of its own, and so has what is allocated; what has one axis stays."""
    given, whole, line = (
        tirx.decl_buffer(shape, "float32", name=name)
        for shape, name in (((3, 4), "given"), ((), "whole"), ((5,), "line"))
    )
    tile = tirx.decl_buffer((2, 3, 4), "float32", name="tile", scope="local")
    read = tirx.BufferLoad(given, [2, 1]) + tirx.BufferLoad(whole, []) + tirx.BufferLoad(line, [3])
    body = tirx.SeqStmt([tirx.AllocBuffer(tile), tirx.BufferStore(tile, read, [1, 2, 3])])
    found = flat(tirx.PrimFunc([given, whole, line], body)).body
    stored = found.seq[-1]
    assert [len(s.buffer.shape) for s in found.seq] == [1, 1, 1, 1] and int(found.seq[-2].buffer.shape[0]) == 24
    assert int(stored.indices[0]) == 1 * 12 + 2 * 4 + 3
    places = [(load.source.name, int(load.indices[0])) for load in (stored.value.a.a, stored.value.a.b, stored.value.b)]
    assert places == [("given", 9), ("whole", 0), ("line", 3)]
    plain = tirx.PrimFunc([line], tirx.BufferStore(line, tirx.BufferLoad(line, [3]), [0]))
    assert flat(plain).same_as(plain)


def test_what_no_array_reaches_divides_by_nothing() -> None:
    """In a branch for no rows TVM knows that a divisor is 0."""
    n, x = variable("n"), buffer("x", "float32")

    def body(i: Any) -> list[Any]:
        place, set_place = bind("place", tirx.floormod(i, n * int64(32)))
        return [set_place, store(x, i, load(x, place))]

    rows = loop("i", int64(5), body)
    function = runtime_function("f", [n, x], when(tirx.EQ(n, int64(0)), rows))
    with pytest.raises(tvm.error.InternalError, match="divide by zero"):
        tirx.transform.StmtSimplify()(tvm.IRModule({"f": function}))
    assert simplified(function) is function
    assert simplified(runtime_function("f", [n, x], rows)) is not None


def nested(inner: bool) -> tvm.IRModule:
    """A loop that threads share, with one in it that they share too, or not; on a view of x."""
    x, n = buffer("x", "float32"), variable("n")
    view = tirx.decl_buffer(x.shape, "int32", name="view")

    def row(i: Any) -> Any:
        return loop("j", n, lambda j: store(view, i * n + j, load(view, i * n + j) + 1), parallel=inner)

    body = sequence(tirx.DeclBuffer(view, data=tirx.buffer.buffer_data(x)), loop("i", n, row, parallel=True))
    return tvm.IRModule({"main": runtime_function("main", [n, x], body).with_attr("target", tvm.target.Target("llvm"))})


def test_loops_that_threads_share_are_not_in_one_another() -> None:
    assert len(inner_loops_apart(nested(False)).functions) == 1
    made = {name.name_hint: f for name, f in inner_loops_apart(nested(True)).functions_items()}
    assert {*made} == {"main", "main_beside_0"}
    names = {p.name for p in made["main_beside_0"].params}
    assert names == {"i", "n", "size_x", "pointer_x"}  # not of the view, which is x's memory
    assert not tirx.analysis.undefined_vars(made["main_beside_0"].body, [*made["main_beside_0"].params])


@pytest.mark.broad_after(1)
def test_both_directions_at_the_same_time_have_the_same_bits() -> None:
    net, module = compiled(rnn.cells.lstm, 40, 25, bidirectional=True)
    x = np.random.default_rng(0).normal(size=(30, 2, 40)).astype("f4")
    module.threads = 1
    alone, states = module(x)
    module.threads = 2
    for _ in range(20):
        y, own = module(x)
        assert np.array_equal(y, alone) and all(np.array_equal(own[name], states[name]) for name in states)
    assert_close((alone, states), rnn.reference(net)(x), "float32", 30)
