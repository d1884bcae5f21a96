"""Expressions of a graph's loops inside of a kernel: flat arrays, indices of 32 bits.

In: expressions on arrays with axes, whose loops and sizes are int64. Out: the same on a kernel's pointers. No array has
2**31 elements, which the host program looks at; a division of 64 bits takes a GPU some 70 instructions.

Rewrite: a[i // n, j]  -->  a[Cast(int32, i) / n * m + j]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.surroundings.nest import is_choice
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max)
# CUDA's functions where TVM has rough ones: those of IEEE's accuracy are asked for by name.
FUNCTIONS = ("exp", "exp2", "exp10", "log", "log2", "log10", "pow", "sin", "cos", "tan", "tanh")


@dataclass(frozen=True)
class Narrow:
    """variables: loops and sizes, none of them negative, by what they are in the kernel: int32. arrays: what a load of
    an array at a flat index is; None: it is another kernel's."""

    variables: Mapping[tirx.Var, TirExpr]
    load: Callable[[Buffer, TirExpr], TirExpr]

    def value(self, expression: Expr) -> Expr:
        """A value, in its dtype."""

        def variable(own: tirx.Var) -> Expr:
            found = self.variables.get(own)
            return own if found is None else tirx.Cast("int64", found)

        def load(own: tvm.ir.TensorLoad) -> Expr:
            return self.load(own.source, self.flat(own.source.shape, own.indices))

        def call(own: tvm.ir.Call) -> Expr:
            name = str(getattr(own.op, "name", "")).removeprefix("tirx.")
            if name not in FUNCTIONS or str(own.ty) != "float32":
                return own
            return tirx.call_pure_extern("float32", f"{name}f", *own.args)

        handlers = [(tirx.Var, variable), (tvm.ir.TensorLoad, load), (tvm.ir.Call, call)]
        return tvm_ffi.structural_map(expression, handlers)

    def flat(self, shape: Sequence[Expr], indices: Sequence[Expr]) -> TirExpr:
        """The place in a flat array of what has these indices, whose variables are the kernel's already."""
        found: TirExpr = tirx.const(0, "int32")
        for size, index in zip(shape, indices, strict=True):
            found = found * self.size(size) + self._index(index)
        return Analyzer().simplify(found)

    def size(self, expression: Expr) -> TirExpr:
        """A size, or an index of loops, as int32."""
        return self._index(self.value(wide(expression)))

    def _index(self, index: Expr) -> TirExpr:
        if isinstance(index, int | tirx.IntImm):
            return tirx.const(int(index), "int32")
        if isinstance(index, tirx.Cast) and str(index.value.ty) == "int32":
            return index.value
        if isinstance(index, BINARY):
            return type(index)(self._index(index.a), self._index(index.b))
        if isinstance(index, tirx.FloorDiv | tirx.FloorMod):
            return _division(index, self._index(index.a), self._index(index.b))
        if isinstance(index, tirx.Select):
            return tirx.Select(index.condition, self._index(index.true_value), self._index(index.false_value))
        if is_choice(index):
            return tirx.if_then_else(index.args[0], self._index(index.args[1]), self._index(index.args[2]))
        return index if str(index.ty) == "int32" else tirx.Cast("int32", index)


def _division(index: tirx.FloorDiv | tirx.FloorMod, a: TirExpr, b: TirExpr) -> TirExpr:
    """Of what is never negative, the GPU's index division."""
    if _never_negative(a) and _never_negative(b):
        return tirx.Div(a, b) if isinstance(index, tirx.FloorDiv) else tirx.Mod(a, b)
    return type(index)(a, b)


def _never_negative(value: TirExpr) -> bool:
    """As far as its form says: variables are loops and sizes."""
    if isinstance(value, tirx.IntImm):
        return int(value) >= 0
    if isinstance(value, tirx.Add | tirx.Mul | tirx.Max | tirx.Min | tirx.Div | tirx.Mod):
        return _never_negative(value.a) and _never_negative(value.b)
    return isinstance(value, tirx.Var)
