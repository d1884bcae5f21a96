"""Exponentials of floats as our networks have them: polynomials, of which compilers make vectors.

In: a statement of a graph's loops. Out: the same without calls of the C library, which go element by element.

Rewrite: exp(x)  -->  2 ** n * p(x - n ln 2)
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi

from tvm_rnn.graph import scalar
from tvm_rnn.tir.expr import Expr, Stmt

# What LLVM has of vectors too, which TVM does not say: it would take their loops element by element.
for _name in ("tirx.nearbyint", "tirx.isnan", "tirx.rsqrt"):
    tvm.ir.register_op_attr(_name, "TVectorizable", True)

FORMS: dict[str, Callable[[Expr], Expr]] = {
    "tirx.exp": scalar.exp,
    "tirx.sigmoid": scalar.sigmoid,
    "tirx.tanh": scalar.tanh,
    "tirx.log": scalar.log,
    "tirx.erf": scalar.erf,
}


def with_polynomials(statement: Stmt) -> Stmt:
    """The statement with exponentials, and what is made of them, written out."""

    def written(own: tvm.ir.Call) -> Expr:
        form = FORMS.get(getattr(own.op, "name", ""))
        return own if form is None or str(own.ty) != "float32" else form(own.args[0])

    return tvm_ffi.structural_map(statement, (tvm.ir.Call, written))
