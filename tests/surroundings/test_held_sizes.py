"""held_sizes: one name for a size, which TVM's simplifier leaves as it is."""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_rnn.surroundings.held_sizes import HeldSizes
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, function, loop, sequence, store, variable


def halved(width: tirx.Var) -> tirx.PrimExpr:
    return (width + int64(1)) // int64(2)


def test_equal_sizes_have_one_name_and_what_has_one_keeps_it() -> None:
    held, width = HeldSizes(), variable("w")
    assert held(int64(3)).value == 3 and held(width).same_as(width) and held.statements() == []
    first = held(halved(width))
    assert held(halved(width)).same_as(first) and not held(halved(first)).same_as(first)
    assert len(held.names) == 2 and len(held.statements()) == 1 + 2 * 2


def test_the_simplifier_leaves_names() -> None:
    held, width = HeldSizes(), variable("w")
    size = width
    for _ in range(5):
        size = held(halved(size))
    out, count = buffer("out", "int64"), size

    def at(i: tirx.Var) -> tirx.Stmt:
        return store(out, (i * count + int64(1)) * count, i)

    made = function("f", [out, width], sequence(held.statements(), loop("i", count, at)))
    module = tirx.transform.StmtSimplify()(tvm.IRModule({"f": made}))
    stored = [line for line in str(module["f"].body).splitlines() if "out[" in line]
    assert len(stored) == 1 and "//" not in stored[0] and "w" not in stored[0].replace("out", "")
