"""Few checks of arguments find what TVM's many found: kinds, axes, dtypes, memory, and sizes by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.compiler.link import generate
from tvm_rnn.cpu.argument_checks import _Checks
from tvm_rnn.target import host
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, function, runtime_function, store


@pytest.fixture(scope="module")
def called() -> Any:
    """f(n, x [n, 3], y [n]): y[0] = x[0, 2], compiled."""
    n = tirx.Var("n", "int64")
    x, y = tirx.decl_buffer((n, 3), "float32", name="x"), tirx.decl_buffer((n,), "float32", name="y")
    body = store(y, tirx.IntImm("int64", 0), tirx.BufferLoad(x, [tirx.IntImm("int64", 0), tirx.IntImm("int64", 2)]))
    return generate(tvm.IRModule({"f": function("f", [n, x, y], body)}), host())["f"]


def array(*shape: int, dtype: str = "float32") -> Any:
    return tvm.runtime.tensor(np.arange(np.prod(shape), dtype=dtype).reshape(shape))


def test_what_fits_runs(called: Any) -> None:
    y = array(4)
    called(4, array(4, 3), y)
    assert y.numpy()[0] == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([4, array(4, 3)], "Mismatched number of arguments"),
        ([4, array(4, 3), None], "Mismatched type of an argument"),
        ([1.5, array(4, 3), array(4)], "Mismatched type of an argument"),
        ([4, array(12), array(4)], "Mismatched axes, dtype or device"),
        ([4, array(4, 3, dtype="float64"), array(4)], "Mismatched axes, dtype or device"),
        ([4, array(4, 2), array(4)], r"x\.shape\[1\]"),
        ([4, array(5, 3), array(4)], r"shape\[0\]"),
    ],
)
def test_what_does_not_fit_is_refused(called: Any, arguments: list[Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        called(*arguments)


def test_a_network_s_own_function_checks_the_number_of_arguments_alone() -> None:
    """The runtime looked at the others, and code that looks again is a large part of a small module's."""
    x = buffer("x", "float32")
    own = generate(
        tvm.IRModule({"f": runtime_function("f", [x], store(x, int64(0), tirx.const(2.0, "float32")))}), host()
    )
    given = array(4)
    own["f"](given)
    assert given.numpy()[0] == 2
    with pytest.raises((TypeError, ValueError), match="Mismatched number of arguments"):
        own["f"](given, given)
    assert "Mismatched type" not in own.mod.inspect_source("ll")


def test_an_axis_that_is_not_the_last_one_is_refused(called: Any) -> None:
    strided = tvm_ffi.from_dlpack(np.zeros((3, 32), np.float32)[:, :16].T[:4])
    with pytest.raises(ValueError, match="Mismatched strides or memory"):
        called(4, strided, array(4))


def test_marks_of_a_thousand_arrays_in_each_other() -> None:
    """As many weights has a whole model."""
    body = inner = tirx.Evaluate(int64(0))
    for _ in range(1500):
        body = tirx.SeqStmt([tirx.AttrStmt(int64(0), "mark", int64(1), body), inner])
    found = _Checks(int64(0), True)
    found.sort(body)
    assert (len(found.marks), len(found.rest)) == (1500, 1501)
