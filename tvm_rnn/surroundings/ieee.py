"""Floats as IEEE says, where TVM's loops have it otherwise: the larger of NaN, and the largest of nothing.

In: a function of blocks. Out: the same, in which NaN goes through extrema, and these begin with an infinity.

Rewrite: max(a, b)  -->  a if a > b or isnan(a) else b;  init: lowest  -->  init: -inf
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import s_tir, tirx

from tvm_rnn.tir.expr import Expr, Stmt


def as_ieee(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with extrema of floats as IEEE has them."""
    body = tvm_ffi.structural_map(
        function.body, [(s_tir.SBlock, _block), (tirx.Max, lambda own: _chosen(own, tirx.GT)), (tirx.Min, _smaller)]
    )
    return function.with_body(body)


def _smaller(own: tirx.Min) -> Expr:
    return _chosen(own, tirx.LT)


def _chosen(own: tirx.Max | tirx.Min, before: type) -> Expr:
    if not str(own.ty).startswith("float"):
        return own
    if isinstance(own.b, tirx.FloatImm) and not math.isnan(own.b.value):
        return tirx.Select(before(own.b, own.a), own.b, own.a)  # of NaN no comparison is true
    return tirx.Select(tirx.Or(before(own.a, own.b), tirx.isnan(own.a)), own.a, own.b)


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
