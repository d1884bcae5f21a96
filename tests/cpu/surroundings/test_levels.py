"""Roundings of models that round to 8 bits; their bits are compared in `tests/frontends/test_onnx_integers.py`."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.surroundings.levels import FORMS, has_levels, rounded_as_kept
from tvm_rnn.graph import scalar
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64

BUFFERS = [tirx.decl_buffer((4,), "float32", name=name) for name in "xyz"]
X, Y, Z = (tirx.BufferLoad(own, [int64(0)]) for own in BUFFERS)


def stored(value: Expr) -> Stmt:
    return tirx.BufferStore(BUFFERS[2], value, [int64(0)])


def calls(statement: Stmt) -> list[str]:
    found = list[tvm.ir.Call]()
    tvm_ffi.structural_walk(statement, (tvm.ir.Call, found.append))
    return [str(own.op.name) for own in found]


def test_levels_are_found() -> None:
    byte = tirx.decl_buffer((4,), "uint8")
    rounding = tirx.BufferStore(byte, tirx.Cast("uint8", tirx.round(X)), [int64(0)])
    assert has_levels([stored(X), rounding])
    assert not has_levels([stored(X + Y)])


def test_products_in_sums_are_rounded_and_sums_over_an_axis_stay() -> None:
    assert calls(rounded_as_kept(stored(X * Y + X))) == ["tirx.call_llvm_pure_intrin"]
    assert calls(rounded_as_kept(stored(X - X * Y))) == ["tirx.call_llvm_pure_intrin"]
    assert calls(rounded_as_kept(stored(X * Y))) == []
    assert calls(rounded_as_kept(stored(Z + X * Y))) == []


def test_sigmoid_is_written_out() -> None:
    assert calls(stored(tirx.sigmoid(X))) == ["tirx.sigmoid"]
    assert "tirx.sigmoid" not in calls(rounded_as_kept(stored(tirx.sigmoid(X))))


def test_a_cells_products_are_rounded_before_sums() -> None:
    with scalar.using(FORMS):
        own = scalar.add(scalar.mul(X, Y), Y)
    assert calls(stored(own)) == ["tirx.call_llvm_pure_intrin"]
    assert calls(stored(scalar.add(scalar.mul(X, Y), Y))) == []
