"""Whole numbers that follow from sizes: what exporters compute shapes of, known while a model is read, as expressions.

In: an operator on such numbers. Out: such numbers again, as NumPy arrays of ints and expressions, or of bools of a
comparison; or None where the operator has no such form, or only a run shows what is equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .demands import MOST
from .evaluation import evaluated

Sizes = np.ndarray  # of dtype object: ints and expressions
Number: TypeAlias = Any  # an int, of NumPy too, or an expression


def sizes_of(values: Sequence[Expr | int]) -> Sizes:
    """An array of these."""
    found = np.empty(len(values), object)
    found[:] = [int(value) if isinstance(value, int | tirx.IntImm) else value for value in values]
    return found


def computed(op: str, inputs: Sequence[np.ndarray | None], attributes: Mapping[str, Number]) -> Sizes | None:
    """What an operator makes of sizes and of whole numbers."""
    if op in ARITHMETIC:
        return np.asarray(np.frompyfunc(ARITHMETIC[op], len(inputs), 1)(*inputs), object)
    if op == "Cast":
        return np.asarray(inputs[0]) if attributes.get("to") in WHOLE else None
    if op in ("ReduceProd", "Size") and (numbers := np.asarray(inputs[0])).ndim <= 1:
        kept = op == "ReduceProd" and attributes.get("keepdims", 1)
        return np.full(numbers.shape and (1,) if kept else (), math.prod(numbers.reshape(-1).tolist()), object)
    if op == "Equal":
        one, other = (np.asarray(value, object) for value in inputs)
        found = np.asarray(np.frompyfunc(_equal, 2, 1)(one, other), object)
        return None if any(value is None for value in found.reshape(-1)) else found.astype(bool)
    if op == "Where" and inputs[0] is not None and inputs[0].dtype == bool:
        return np.asarray(np.where(inputs[0], *(np.asarray(value, object) for value in inputs[1:])), object)
    if op not in MOVES:
        return None
    moved = [np.asarray(value) for value in (inputs if op == "Concat" else inputs[:1])]
    elements = [value for own in moved for value in own.reshape(-1).tolist()]
    places, begin = list[np.ndarray](), 0
    for own in moved:  # the numbers are moved as their places are
        places.append(np.arange(begin, begin + own.size).reshape(own.shape))
        begin += own.size
    others = [None if value is None else np.asarray(value.tolist(), np.int64) for value in inputs[len(moved) :]]
    known = {name: value for name, value in attributes.items() if name != "tvm_custom"}
    (found,) = evaluated(op, [*places, *others], known)
    result = np.empty(found.shape, object)
    result[...] = sizes_of(elements)[found] if elements else None
    return result


def _quotient(a: Number, b: Number) -> Number:
    """Of sizes, of which none is negative."""
    if isinstance(a, int | np.integer) and isinstance(b, int | np.integer):
        return int(a) // int(b)
    below = wide(b)
    return tirx.floordiv(wide(a), below if isinstance(below, tirx.IntImm) else tirx.Max(below, int64(1)))


def _equal(a: Number, b: Number) -> bool | None:
    """None: only a run shows it."""
    found = simplified(tirx.EQ(wide(a), wide(b)))
    return bool(found) if isinstance(found, bool | tirx.IntImm) else None


def _extremum(
    plain: Callable[[int, int], int], form: Callable[[Expr, Expr], Expr]
) -> Callable[[Number, Number], Number]:
    def chosen(a: Number, b: Number) -> Number:
        known = isinstance(a, int | np.integer) and isinstance(b, int | np.integer)
        return plain(int(a), int(b)) if known else form(wide(a), wide(b))

    return chosen


def _number(value: Number) -> Number:
    return int(value) if isinstance(value, np.integer) else value


ARITHMETIC: dict[str, Callable[..., Number]] = {
    "Add": lambda a, b: _number(a) + _number(b),
    "Sub": lambda a, b: _number(a) - _number(b),
    "Mul": lambda a, b: _number(a) * _number(b),
    "Div": _quotient,
    "Neg": lambda a: 0 - _number(a),
    "Min": _extremum(min, tirx.Min),
    "Max": _extremum(max, tirx.Max),
}
MOVES = {"Identity", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Flatten"}
MOST_SIZES = 8  # of a shape
WHOLE = (6, 7)  # ONNX's numbers of int32 and int64


def factors(size: Expr) -> list[Expr]:
    """What a size is a product of; of numbers one, the last one."""
    found, number, left = list[Expr](), 1, [size]
    while left:
        own = left.pop()
        if isinstance(own, tirx.Mul):
            left += [own.b, own.a]
        elif isinstance(own, int | tirx.IntImm):
            number *= int(own)
        else:
            found.append(own)
    return [*found, number]


def simplified(number: Expr) -> Expr:
    """A number that is made of sizes, none of which is below 0, in fewer operations."""
    names, analyzer = list[tirx.Var](), Analyzer()
    tvm_ffi.structural_walk(number, (tirx.Var, names.append))
    for name in {*names}:
        analyzer.bind(name, tvm.ir.Range(0, MOST))
    return analyzer.simplify(number)
