"""Flat indices of 32 bits: the values of what they were, and the GPU's own division of what is never negative."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.cuda.surroundings.narrow import Narrow
from tvm_rnn.tir.index import int64

INDEX, N = tirx.Var("i", "int64"), tirx.Var("n", "int64")
SHORT, SIZE = tirx.Var("i", "int32"), tirx.Var("n", "int32")


def narrow(loads: list[object]) -> Narrow:
    flat = tirx.decl_buffer((1 << 40,), "float32", name="flat")

    def load(source: object, at: tirx.Expr) -> tirx.Expr:
        loads.append(source)
        return tirx.BufferLoad(flat, [at])

    return Narrow({INDEX: SHORT, N: SIZE}, load)


def test_a_load_of_a_flat_array() -> None:
    array, loads = tirx.decl_buffer((N, 4), "float32", name="a"), list[object]()
    found = narrow(loads).value(tirx.BufferLoad(array, [tirx.floordiv(INDEX, N), INDEX % 4 + 1]))
    (index,) = found.indices
    assert str(index.ty) == "int32" and loads[0].same_as(array)
    assert str(index) == "T.Div(i, n) * 4 + T.truncmod(i, 4) + 1"


def test_what_may_be_negative_is_divided_downwards() -> None:
    found = narrow([]).size(tirx.floordiv(INDEX - 1, int64(2)))
    assert isinstance(found, tirx.FloorDiv) and str(found.ty) == "int32"


def test_values_keep_their_dtype() -> None:
    assert str(narrow([]).value(INDEX * 3).ty) == "int64"
    found = narrow([]).value(tirx.exp(tirx.Cast("float32", INDEX)))
    assert "expf" in str(found), "CUDA's own function: TVM's is a rough one"
    assert "expf" not in str(narrow([]).value(tirx.exp(tirx.Cast("float64", INDEX))))


def test_choices_of_indices() -> None:
    found = narrow([]).size(tirx.Select(INDEX < N, INDEX, int64(0)))
    assert str(found.ty) == "int32" and isinstance(found, tirx.Select)
    assert str(narrow([]).size(tirx.if_then_else(INDEX < N, INDEX, N)).ty) == "int32"
