"""loops: statements are built with 64-bit indices and nested as asked."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import bind, floordiv, floormod, load, loop, sequence, store, variable, when

BUFFER = tirx.decl_buffer((64,), "float32", name="buffer")


def test_a_sequence_is_flat_and_skips_none() -> None:
    one = store(BUFFER, int64(0), tirx.const(1.0, "float32"))
    assert len(sequence([one, None, [one, [one]]]).seq) == 3
    assert sequence(one) is one
    assert isinstance(sequence([], None), tirx.Evaluate)


def test_loops_count_in_64_bits() -> None:
    serial = loop("i", 5, lambda i: store(BUFFER, i, tirx.const(0.0, "float32")))
    assert serial.kind == tirx.ForKind.SERIAL and str(serial.loop_var.ty) == "int64"
    shared = loop("i", variable("n"), lambda i: store(BUFFER, i, tirx.const(0.0, "float32")), parallel=True)
    assert shared.kind == tirx.ForKind.PARALLEL


def test_bindings_and_conditions() -> None:
    var, statement = bind("base", 3)
    assert statement.var.same_as(var) and int(statement.value) == 3
    branch = when(var > int64(1), [statement], None)
    assert branch.else_case is None
    assert when(var > int64(1), [statement], [statement]).else_case is not None


def test_division_by_one_is_free() -> None:
    n = variable("n")
    assert floordiv(n, 1) is n and int(floormod(n, 1)) == 0
    assert "//" in str(floordiv(n, 4)) and "%" in str(floormod(n, 4))


def test_loads_read_the_flat_buffer() -> None:
    assert str(load(BUFFER, int64(3)).ty) == "float32"
