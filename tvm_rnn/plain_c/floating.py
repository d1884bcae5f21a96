"""Numbers of C in IEEE floating point: float or double.

In: nodes and C expressions of their operands. Out: C expressions, as `arithmetic.py` says, and the small functions that
they call. NaN and infinity go through as NumPy has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import TABLE

from .arithmetic import Array, Product, Sum

# Of operations: the function or the operator. {f}: what libm's names end with.
CALLS = {
    "neg": "(-{0})",
    "abs": "fabs{f}({0})",
    "sign": "sign_of({0})",
    "exp": "exp{f}({0})",
    "expm1": "expm1{f}({0})",
    "log": "log{f}({0})",
    "log1p": "log1p{f}({0})",
    "sqrt": "sqrt{f}({0})",
    "tanh": "tanh{f}({0})",
    "sigmoid": "sigmoid({0})",
    "relu": "relu({0})",
    "softplus": "softplus({0})",
    "erf": "erf{f}({0})",
    "sin": "sin{f}({0})",
    "cos": "cos{f}({0})",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "power": "pow{f}({0}, {1})",
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "floor": "floor{f}({0})",
    "mod": "mod({0}, {1})",
    "to_int8": "in_a_byte({0}, -128, 127)",
    "to_uint8": "in_a_byte({0}, 0, 255)",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
    "logical_and": "({0} && {1})",
    "logical_or": "({0} || {1})",
    "logical_not": "!({0})",
    "where": "({0} ? {1} : {2})",
}

HELPERS = {
    "sign_of": "static {t} sign_of({t} x) {{ return x < 0 ? ({t})-1 : x > 0 ? ({t})1 : x; }}",
    "sigmoid": "static {t} sigmoid({t} x) {{ return 1 / (1 + exp{f}(-x)); }}",
    "relu": "static {t} relu({t} x) {{ return x < 0 ? 0 : x; }}",
    "softplus": "static {t} softplus({t} x) {{ return (x < 0 ? 0 : x) + log1p{f}(exp{f}(-fabs{f}(x))); }}",
    "larger": "static {t} larger({t} a, {t} b) {{ return a > b || a != a ? a : b; }}",
    "smaller": "static {t} smaller({t} a, {t} b) {{ return a < b || a != a ? a : b; }}",
    "in_a_byte": """\
static {t} in_a_byte({t} x, {t} low, {t} high) {{
  return x != x ? 0 : nearbyint{f}(x < low ? low : x > high ? high : x);
}}""",
    "mod": """\
static {t} mod({t} a, {t} b) {{
  const {t} rest = fmod{f}(a, b);
  return (rest < 0 && b > 0) || (rest > 0 && b < 0) ? rest + b : copysign{f}(rest, b);
}}""",
    "row_of": """\
/* An element of a row of a table; NaN where there is no such row. */
static {t} row_of(const {t} *table, {t} row, int rows, int size, int at) {{
  return row >= 0 && row <= rows - 1 && row == floor{f}(row) ? table[(int)row * size + at] : ({t})NAN;
}}""",
}
# w: of so many rows at a time, each column of theirs after the other, with zeros where there are fewer.
PRODUCT = """\
static void product{rows}(const {t} *w, const {t} *x, int rows, int columns, int add, {t} *y) {{
  for (int r = 0; r < rows; r += {rows}) {{
    {t} {begin};
    for (int k = 0; k < columns; ++k, w += {rows}) {{
      const {t} v = x[k];
      {step}
    }}
    const {t} sums[] = {{{sums}}};
    for (int i = 0; i < {rows} && r + i < rows; ++i) y[r + i] = add ? y[r + i] + sums[i] : sums[i];
  }}
}}"""
BLOCKS = (8, 4, 2, 1)  # rows at a time: as many as there are registers for, where few are padding


class Floating:
    """Numbers of a network's own dtype, "float32" or "float64"."""

    def __init__(self, dtype: str) -> None:
        self.kind = self.value = {"float32": "float", "float64": "double"}[dtype]
        self.dtype, self.bytes = np.dtype(dtype), np.dtype(dtype).itemsize
        self.end = "f" if dtype == "float32" else ""

    def literal(self, node: Node, value: float) -> str:
        return self._number(value)

    def array(self, node: Node, values: np.ndarray) -> Array:
        return Array(self.kind, [self._number(v) for v in values.ravel()], self.bytes)

    def apply(self, node: Node, operands: Sequence[str]) -> str:
        return CALLS[node.op].format(*operands, f=self.end)

    def taken(self, node: Node, text: str) -> str:
        return f"row_of({text})"

    def converted(self, text: str, source: Node, to: Node) -> str:
        return text

    def sum(self, node: Node) -> Sum:
        if node.op == "max":
            return Sum(self.value, self._number(-math.inf), "larger({sum}, {a})", "{sum}")
        add = "{sum} + {a}" if TABLE[node.op].kind == "reduce" else "{sum} + {a} * {b}"
        return Sum(self.value, "0", add, "{sum}")

    def product(self, node: Node, matrices: Sequence[np.ndarray]) -> Product:
        arrays, lines = {}, []
        for i, matrix in enumerate(matrices):
            rows, columns = matrix.shape
            own = next(b for b in BLOCKS if -(-rows // b) * b * 8 <= rows * 9 or b == 1)
            arrays[f"w{i}"] = self.array(node, blocked(matrix, own))
            lines.append(f"product{own}({{w{i}}}, {{x{i}}}, {rows}, {columns}, {int(i > 0)}, {{y}});")
        return Product(arrays, lines)

    def scale(self, node: Node) -> int | None:
        return None

    def helpers(self) -> dict[str, str]:
        return {name: text.format(t=self.kind, f=self.end) for name, text in HELPERS.items()} | {
            f"product{rows}": self._product(rows) for rows in BLOCKS
        }

    def tables(self) -> dict[str, Array]:
        return {}

    def _product(self, rows: int) -> str:
        names = [f"s{i}" for i in range(rows)]
        begin, sums = ", ".join(f"{n} = 0" for n in names), ", ".join(names)
        step = "\n      ".join(f"{n} += w[{i}] * v;" for i, n in enumerate(names))
        return PRODUCT.format(rows=rows, t=self.kind, begin=begin, step=step, sums=sums)

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            word = "NAN" if math.isnan(value) else "-INFINITY" if value < 0 else "INFINITY"
            return f"(({self.kind}){word})"
        rounded = self.dtype.type(value)
        text = f"{rounded:.9g}" if self.end else f"{rounded:.17g}"
        text += ("" if re.search(r"[.e]", text) else ".0") + self.end
        return f"({text})" if text[0] == "-" else text


def blocked(matrix: np.ndarray, rows: int) -> np.ndarray:
    """A matrix [N, K] as [N / rows, K, rows], with zeros where N is no multiple of rows."""
    more = -len(matrix) % rows
    padded = np.concatenate([matrix, np.zeros((more, matrix.shape[1]), matrix.dtype)])
    return padded.reshape(-1, rows, matrix.shape[1]).transpose(0, 2, 1)
