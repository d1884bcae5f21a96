"""Sizes and places that a host function computes once, and whose expressions TVM's simplifier does not look into.

In: expressions of sizes that callers decide. Out: a name for each, and the statements that set the names. A name that
is bound to an expression is replaced by it wherever TVM simplifies an index; of a model with many strides these are
nested divisions, and their sums, which take it minutes. What is loaded from an array stays a name.

Rewrite: a[((w + 1) // 2 + 1) // 2 * i]  -->  sizes[0] = (w + 1) // 2; n = sizes[0]; ...; a[m * i]
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import load, store, variable


class HeldSizes:
    """Names by what they stand for, in the order in which they are set."""

    def __init__(self) -> None:
        self.names: list[tuple[Expr, tirx.Var]] = []

    def __call__(self, value: Expr, name: str = "n") -> Expr:
        """The name of a value, or the value itself where it is a number or has a name."""
        value = wide(value)
        if isinstance(value, tirx.IntImm | tirx.Var):
            return value
        for own, known in self.names:
            if tvm_ffi.structural_equal(own, value):
                return known
        made = variable(name)
        self.names.append((value, made))
        return made

    def statements(self) -> list[Stmt]:
        """What sets the names."""
        if not self.names:
            return []
        array = tirx.decl_buffer((int64(len(self.names)),), "int64", name="sizes")
        done: list[Stmt] = [tirx.AllocBuffer(array)]
        for i, (value, name) in enumerate(self.names):
            done += [store(array, int64(i), value), tirx.Bind(name, load(array, int64(i)))]
        return done
