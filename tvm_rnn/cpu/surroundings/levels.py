"""Models that round to 8 bits as they run: what is rounded has the bits that ONNX Runtime's has.

A last bit decides where a value lies beside the middle of two levels, or which scale an array gets; results differ by
whole levels then. ONNX Runtime keeps what each operator gives, and its sigmoid is a rational function
(`onnxruntime/core/mlas/lib/logistic.cpp`; absolute error 1.3e-7). LLVM would make one step of a product and a sum of
two operators, which rounds once.

In: statements of graphs' loops. Out: the same, with these roundings.

Rewrite: x * y + z  -->  arithmetic.fence(x * y) + z
         sigmoid(x) -->  x p(x * x) / q(x * x) + 0.5
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.graph import scalar
from tvm_rnn.surroundings.nest import reads
from tvm_rnn.tir.expr import Expr, Stmt, TirExpr

LEVELS = ("int8", "uint8")


def has_levels(statements: Sequence[Stmt]) -> bool:
    """Whether one of them rounds values to 8 bits."""
    casts = list[tirx.Cast]()
    for own in statements:
        tvm_ffi.structural_walk(own, (tirx.Cast, casts.append))
    return any(str(own.ty) in LEVELS for own in casts)


def rounded_as_kept(statement: Stmt) -> Stmt:
    """The statement with the roundings of ONNX Runtime. Sums over an axis stay: their order is another one anyway."""

    def put(own: tirx.BufferStore) -> Stmt:
        if reads(own.value, own.buffer):
            return own
        value = own.value
        for kind in (tirx.Add, tirx.Sub):
            value = tvm_ffi.structural_map(value, (kind, _of_rounded))
        value = tvm_ffi.structural_map(value, (tvm.ir.Call, _sigmoid))
        return tirx.BufferStore(own.buffer, value, own.indices)

    return tvm_ffi.structural_map(statement, (tirx.BufferStore, put))


def _of_rounded(own: tirx.Add | tirx.Sub) -> Expr:
    a, b = (_rounded(value) if isinstance(value, tirx.Mul) else value for value in (own.a, own.b))
    return type(own)(a, b)


def _rounded(product: TirExpr) -> TirExpr:
    if str(product.ty) != "float32":
        return product
    return tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence.f32", product)


def _sigmoid(own: tvm.ir.Call) -> Expr:
    is_one = getattr(own.op, "name", "") == "tirx.sigmoid" and str(own.ty) == "float32"
    return scalar.rational_sigmoid(own.args[0]) if is_one else own


# A cell's functions with these roundings, for `scalar.using`.
FORMS = {"sigmoid": scalar.rational_sigmoid, "rounded": _rounded}
