"""Numbers as NumPy has them, where TVM's loops have them otherwise: extrema of NaN and of nothing, a number beside
itself, quotients by zero.

In: a function of blocks. Out: the same, in which NaN goes through extrema, these begin with an infinity, what is not
finite does not vanish where it is compared with itself or subtracted from itself, and no division of whole numbers
stops the processor: by 0 a quotient and its rest are 0, and the lowest number over -1 is itself.

Rewrite: max(a, b)  -->  a if a > b or isnan(a) else b;  init: lowest  -->  init: -inf
         a == a  -->  not isnan(a);  a - a  -->  0 if a is finite else NaN
         a / b  -->  0 if b == 0 else a / (1 if b == 0 or (b == -1 and a == lowest) else b)
"""

from __future__ import annotations

import math
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_rnn.tir.expr import Expr, Stmt

Quotient: TypeAlias = tirx.Div | tirx.FloorDiv
Rest: TypeAlias = tirx.Mod | tirx.FloorMod
Comparison: TypeAlias = tirx.EQ | tirx.NE


def as_ieee(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with extrema of floats as IEEE has them, and with divisions that never stop."""
    body = tvm_ffi.structural_map(
        function.body, [(s_tir.SBlock, _block), (tirx.Max, lambda own: _chosen(own, tirx.GT)), (tirx.Min, _smaller)]
    )
    body = tvm_ffi.structural_map(body, [(tirx.Sub, _rest_of_itself), (tirx.EQ, _with_itself), (tirx.NE, _with_itself)])
    body = tvm_ffi.structural_map(body, [(kind, _divided) for kind in (tirx.Div, tirx.FloorDiv)])
    body = tvm_ffi.structural_map(body, [(kind, _rest) for kind in (tirx.Mod, tirx.FloorMod)])
    return function.with_body(body)


def _smaller(own: tirx.Min) -> Expr:
    return _chosen(own, tirx.LT)


def _chosen(own: tirx.Max | tirx.Min, before: type) -> Expr:
    if not str(own.ty).startswith("float"):
        return own
    if isinstance(own.b, tirx.FloatImm) and not math.isnan(own.b.value):
        return tirx.Select(before(own.b, own.a), own.b, own.a)  # of NaN no comparison is true
    return tirx.Select(tirx.Or(before(own.a, own.b), tirx.isnan(own.a)), own.a, own.b)


def _is_of_itself(own: tirx.Sub | Comparison) -> bool:
    """Whether it is of a float and of the same float again: there TVM's simplifier knows no NaN."""
    return str(own.a.ty).startswith("float") and bool(tvm_ffi.structural_equal(own.a, own.b))


def _rest_of_itself(own: tirx.Sub) -> Expr:
    if not _is_of_itself(own):
        return own
    kind = str(own.a.ty)
    infinite = tirx.EQ(tirx.abs(own.a), tirx.FloatImm(kind, math.inf))
    nothing, nan = tirx.FloatImm(kind, 0.0), tirx.FloatImm(kind, math.nan)
    return tirx.Select(tirx.Or(tirx.isnan(own.a), infinite), nan, nothing)


def _with_itself(own: Comparison) -> Expr:
    if not _is_of_itself(own):
        return own
    return tirx.isnan(own.a) if isinstance(own, tirx.NE) else tirx.Not(tirx.isnan(own.a))


def _divided(own: Quotient) -> Expr:
    if not _may_stop(own):
        return own
    zero = tirx.const(0, str(own.ty))
    return tirx.Select(tirx.EQ(own.b, zero), zero, type(own)(own.a, _harmless(own)))


def _rest(own: Rest) -> Expr:
    return type(own)(own.a, _harmless(own)) if _may_stop(own) else own


def _may_stop(own: Quotient | Rest) -> bool:
    """Whether it divides whole numbers that are elements of arrays, not places or sizes, by what may be 0 or -1."""
    if str(own.ty).startswith("float") or (isinstance(own.b, tirx.IntImm) and own.b.value not in (0, -1)):
        return False
    found = list[Expr]()
    for side in (own.a, own.b):
        tvm_ffi.structural_walk(side, (tvm.ir.TensorLoad, found.append))
    return bool(found)


def _harmless(own: Quotient | Rest) -> Expr:
    """The divisor; 1 in its place where the processor would stop."""
    kind = str(own.ty)
    stops = tirx.EQ(own.b, tirx.const(0, kind))
    if kind.startswith("int"):
        # TVM's simplifier holds that no number is the lowest one; of bits it does not know.
        lowest = tirx.EQ(tirx.bitwise_xor(own.a, tirx.min_value(kind)), tirx.const(0, kind))
        stops = tirx.Or(stops, tirx.And(tirx.EQ(own.b, tirx.const(-1, kind)), lowest))
    return tirx.Select(stops, tirx.const(1, kind), own.b)


def _block(own: s_tir.SBlock) -> s_tir.SBlock:
    if own.init is None:
        return own
    init: Stmt = tvm_ffi.structural_map(own.init, (tirx.FloatImm, _unbounded))
    return s_tir.SBlock(
        own.iter_vars,
        own.reads,
        own.writes,
        own.name_hint,
        own.body,
        init,
        own.alloc_buffers,
        own.match_buffers,
        own.annotations,
    )


def _unbounded(own: tirx.FloatImm) -> Expr:
    kind = str(own.ty)
    for end, sign in ((tirx.max_value(kind), 1), (tirx.min_value(kind), -1)):
        if own.value == end.value:
            return tirx.FloatImm(kind, sign * math.inf)
    return own
