"""Numbers of C in fixed point: 16 bits, each value with a power of two of its own; weights of products in 8 or 16 bits.

In: nodes, and for each its exponent e: the number q is q 2**-e. Out: C expressions in int32_t, as `arithmetic.py` says;
and the same arithmetic in NumPy (`evaluate`), bit for bit.

`fixed_rows.py` has the operations. What has one operand and no row there is a table over the operand's range, with
straight lines between its entries: sigmoid, tanh, exp, sqrt, ...; so is a power of a known exponent. What is neither is
refused. The scales of weights and the layout of products follow the usual practice of quantised inference: B. Jacob and
others, Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.graph.graph import Node, is_move
from tvm_rnn.graph.ops import TABLE

from .arithmetic import Array, Product, Sum
from .fixed_rows import (
    LARGEST,
    MOST_LEFT,
    ROWS,
    SMALLEST,
    CMachine,
    Exponents,
    Machine,
    NumpyMachine,
    Text,
    Value,
    fitted,
)
from .floating import blocked

Ints = np.ndarray  # of int64
MOST, LEAST = 30, -15  # exponents
LINES = 512  # of a table
GUARD = 8  # bits that sums of several products have besides
BLOCK = 4  # rows of a product at a time
SUMMED = 1 << 29  # what the sum of one product is cut off at
NO_ROW = ("mod", "take")  # operations with more operands, of which ROWS has nothing

# An int of 32 bits, and >> that keeps the sign: C leaves both open. The functions compute what fixed_rows.py does.
HELPERS = {
    "int_is_as_expected": "typedef char int_is_as_expected[sizeof(int) >= 4 && -1 >> 1 == -1 ? 1 : -1];",
    "cut": "static int32_t cut(int32_t v) { return v > 32767 ? 32767 : v < -32768 ? -32768 : v; }",
    "cut64": "static int32_t cut64(int64_t v) { return v > 32767 ? 32767 : v < -32768 ? -32768 : (int32_t)v; }",
    "fit": """\
static int32_t fit(int64_t v, int right) {
  return right > 62 ? 0 : cut64((v + ((int64_t)1 << right >> 1)) >> right);
}""",
    "fit32": """\
static int32_t fit32(int32_t v, int right) {
  return cut((v + ((int32_t)1 << right >> 1)) >> right);
}""",
    "grown": "static int32_t grown(int32_t v, int left) { return cut64((int64_t)v * ((int32_t)1 << left)); }",
    "absolute": "static int32_t absolute(int32_t a) { return a < 0 ? -a : a; }",
    "positive": "static int32_t positive(int32_t a) { return a < 0 ? 0 : a; }",
    "sign_of": "static int32_t sign_of(int32_t a) { return (a > 0) - (a < 0); }",
    "larger": "static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }",
    "smaller": "static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }",
    "ratio": """\
/* a 2**left / b, rounded; beyond 16 bits where b is 0. */
static int32_t ratio(int32_t a, int32_t b, int left) {
  const int64_t above = (int64_t)absolute(a) << (left > 0 ? left : 0);
  const int64_t below = (int64_t)absolute(b) << (left < 0 ? -left : 0);
  const int64_t size = below ? (above + (below >> 1)) / below : 32768;
  return !a ? 0 : cut64((a < 0) != (b < 0) ? -size : size);
}""",
    "line": """\
/* A function between the entries of its table. */
static int32_t line(const int16_t *table, int32_t a) {
  const int32_t at = (a + 32768) >> 7, rest = (a + 32768) & 127;
  return table[at] + (((table[at + 1] - table[at]) * rest + 64) >> 7);
}""",
    "scaled": """\
/* v 2**-shift, rounded, of at most 30 bits. */
static int32_t scaled(int64_t v, int shift) {
  const int32_t most = 536870912;
  v += (int64_t)1 << shift >> 1;
  if (shift < 32) return v >> shift > most ? most : v >> shift < -most ? -most : (int32_t)(v >> shift);
  const int32_t moved = (int32_t)(v >> 32) >> (shift - 32);
  return moved > most ? most : moved < -most ? -most : moved;
}""",
    "finish": """\
/* The end of a sum of products. */
static void finish(const int32_t *sums, int count, int16_t *y) {
  for (int i = 0; i < count; ++i) y[i] = (int16_t)fit32(sums[i], 8);
}""",
}
# Four rows at a time; m: what a row's sum is multiplied with, 2**-shift times.
PRODUCT = """\
static void {name}(const {w} *w, const int32_t *m, const int16_t *x, int rows, int columns, int shift, int add,
                   int32_t *sums) {{
  for (int r = 0; r < rows; r += 4) {{
    {sum} s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    const {w} *const row = w + r * columns;
    int k = 0;
#ifdef TWO_AT_ONCE
    for (; k + 1 < columns; k += 2) {{
      const int32_t v = two(x + k);
{pairs}
    }}
#endif
    for (; k < columns; ++k) {{
      const int32_t v = x[k];
{single}
    }}
    const {sum} own[4] = {{s0, s1, s2, s3}};
    for (int i = 0; i < 4 && r + i < rows; ++i) {{
      const int32_t kept = scaled(own[i] * (int64_t)m[r + i], shift);
      sums[r + i] = add ? sums[r + i] + kept : kept;
    }}
  }}
}}"""
# Arm's instructions that multiply two pairs of 16 bits and add: weights of 8 bits lie so that a word has two columns of
# two rows, and one instruction makes a pair of 16 bits of it. __smlad of arm_acle.h, Arm's C Language Extensions. gcc
# does not turn the bytes in the instruction that widens them, clang does.
TWO = """\
#if defined(__ARM_FEATURE_DSP) && !defined(__ARM_BIG_ENDIAN)
#define TWO_AT_ONCE
#include <arm_acle.h>
#include <string.h>
static inline int32_t two(const void *at) {{
  int32_t v;
  memcpy(&v, at, sizeof v);
  return v;
}}
static inline int32_t even(int32_t bytes) {{ return __sxtb16(bytes); }}
static inline int32_t odd(int32_t bytes) {{
#if defined(__GNUC__) && !defined(__clang__)
  int32_t v;
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(v) : "r"(bytes));
  return v;
#else
  return __sxtb16((int32_t)((uint32_t)bytes >> 8 | (uint32_t)bytes << 24));
#endif
}}
#endif""".replace("{{", "{").replace("}}", "}")


def _product(bits: int, wide: bool) -> str:
    """The function in C. wide: with sums of 64 bits."""
    add = "__smlald" if wide else "__smlad"
    pairs, single = [], []
    if bits == 8:
        for i in (0, 2):
            pairs.append(f"const int32_t w{i} = two(row + {i} * columns + 2 * k);")
            pairs += [f"s{i + n} = {add}(v, {half}(w{i}), s{i + n});" for n, half in enumerate(("even", "odd"))]
            single += [f"s{i + n} += row[{i} * columns + 2 * k + {n}] * v;" for n in (0, 1)]
    else:
        pairs = [f"s{i} = {add}(v, two(row + {i} * columns + k), s{i});" for i in range(BLOCK)]
        product = "(int64_t)row" if wide else "row"
        single = [f"s{i} += {product}[{i} * columns + k] * v;" for i in range(BLOCK)]
    name, kinds = (
        f"product{bits}{'_wide' if wide else ''}",
        {"w": f"int{bits}_t", "sum": "int64_t" if wide else "int32_t"},
    )
    lines = {"pairs": "\n".join(f"      {t}" for t in pairs), "single": "\n".join(f"      {t}" for t in single)}
    return PRODUCT.format(name=name, **kinds, **lines)


def _laid_out(w: Ints, bits: int) -> Ints:
    """Weights as that function reads them: rows, in 8 bits pairs of rows with their columns side by side."""
    rows = np.concatenate([w, np.zeros((-len(w) % BLOCK, w.shape[1]), w.dtype)])
    return blocked(rows, 2) if bits == 8 else rows


def exponent_of(most: float) -> int:
    """The exponent of values of at most this magnitude."""
    if not 0 < most < np.inf:
        return 15 if not most > 0 else LEAST
    return int(np.clip(np.floor(np.log2(LARGEST / most)), LEAST, MOST))


def quantised(values: np.ndarray, exponent: int) -> Ints:
    """Numbers in 16 bits; NaN is 0."""
    scaled = np.nan_to_num(values, nan=0.0, posinf=1e30, neginf=-1e30) * 2.0**exponent
    return np.clip(np.rint(scaled), SMALLEST, LARGEST).astype(np.int64)


@dataclass(frozen=True)
class Matrix:
    """The weights of a product [N, K]: w, integers; the sum of row i is multiplied with m[i] 2**-shift. wide: sums need
    more than 32 bits."""

    w: Ints
    m: Ints
    shift: int
    wide: bool

    def times(self, x: Ints) -> Ints:
        """Of x [B, K] the sums [B, N], with GUARD bits more than the result."""
        scaled = (x @ self.w.T * self.m + (1 << self.shift >> 1)) >> self.shift
        return np.clip(scaled, -SUMMED, SUMMED)


def matrix(weights: np.ndarray, bits: int, of: Exponents) -> Matrix:
    """Weights [N, K] in so many bits, a scale for each row. of: the exponents of the result and of the vector."""
    largest = (1 << bits - 1) - 1
    scale = np.abs(np.nan_to_num(weights)).max(axis=1, initial=0.0) / largest
    w = np.rint(np.nan_to_num(weights) / np.where(scale > 0, scale, 1.0)[:, None]).astype(np.int64)
    bound = int(np.abs(w).sum(axis=1).max(initial=1)) << 15
    ratio = scale * 2.0 ** (of.out + GUARD - of.of[0])
    room = min(30, 62 - bound.bit_length())
    most = float(ratio.max(initial=0.0))
    shift = int(np.clip(room - np.ceil(np.log2(most)) if most > 0 else 1, 1, 62))
    m = np.minimum(np.rint(ratio * 2.0**shift), (1 << room) - 1).astype(np.int64)
    return Matrix(w, m, shift, bound >= 1 << 31)


@dataclass
class FixedPoint:
    """Fixed point of one layer. bits: of the weights of products; exponents: of values that are no views; known: values
    that are made of weights alone; lines: tables of functions, by name: a network's layers share them."""

    bits: int
    exponents: Mapping[Node, int]
    known: Mapping[Node, np.ndarray]
    lines: dict[str, Ints] = field(default_factory=dict)
    kind, value, bytes = "int16_t", "int32_t", 2

    def scale(self, node: Node) -> int | None:
        return self.exponent(node)

    def exponent(self, node: Node) -> int:
        """Of any value: a view has that of what it is a view of, a truth is 0 or 1."""
        while is_move(node) and node.op != "concat" and node not in self.exponents:
            node = node.args[0]
        return 0 if node.boolean else self.exponents[node]

    def _of(self, node: Node, *args: Node) -> Exponents:
        return Exponents(self.exponent(node), tuple(self.exponent(a) for a in args or node.args))

    def literal(self, node: Node, value: float) -> str:
        number = int(quantised(np.array(value), self.exponent(node)))
        return f"({number})" if number < 0 else str(number)

    def array(self, node: Node, values: np.ndarray) -> Array:
        return Array(self.kind, [str(v) for v in quantised(values, self.exponent(node)).ravel()], self.bytes)

    def apply(self, node: Node, operands: Sequence[str]) -> str:
        return str(self._row(node, CMachine(), [Text(o) for o in operands]))

    def _row(self, node: Node, machine: Machine, operands: Sequence[Value]) -> Value:
        if node.op in ROWS:
            return ROWS[node.op](machine, self._of(node), *operands)
        open_ = [i for i, a in enumerate(node.args) if a.scalar is None]
        if len(open_) != 1 or node.op in NO_ROW:
            raise unsupported(node)
        return self._line(node, open_[0], operands[open_[0]])

    def _line(self, node: Node, place: int, operand: Value) -> Value:
        """A function of one operand: by a table, whose name says all that it depends on."""
        e = self._of(node, node.args[place])
        constants = [a.scalar for i, a in enumerate(node.args) if i != place]
        words = [node.op, *(str(place) for c in constants), *map(str, constants), str(e.of[0]), str(e.out)]
        name = "_".join(words).replace("-", "m").replace(".", "p").replace("+", "")
        if name not in self.lines:
            x = np.linspace(SMALLEST, LARGEST + 1, LINES + 1) * 2.0 ** -e.of[0]
            given = [np.array(a.scalar) if i != place else x for i, a in enumerate(node.args)]
            with np.errstate(all="ignore"):
                self.lines[name] = quantised(np.asarray(TABLE[node.op].numpy(*given), np.float64), e.out)
        if isinstance(operand, str):
            return f"line({name}, {operand})"
        table, at, rest = self.lines[name], (operand + 32768) >> 7, (operand + 32768) & 127
        return table[at] + (((table[at + 1] - table[at]) * rest + 64) >> 7)

    def taken(self, node: Node, text: str) -> str:
        raise unsupported(node)

    def converted(self, text: str, source: Node, to: Node) -> str:
        right = self.exponent(source) - self.exponent(to)
        return str(CMachine().fit(Text(text), right)) if right else text

    def sum(self, node: Node) -> Sum:
        e = self._of(node)
        if node.op == "max":
            end = f"(int16_t){CMachine().fit(Text('{sum}'), e.of[0] - e.out)}"
            return Sum("int32_t", str(SMALLEST), "larger({sum}, {a})", end)
        add = "{sum} + {a}" if TABLE[node.op].kind == "reduce" else "{sum} + {a} * {b}"
        right = sum(e.of) - e.out
        end = f"(int16_t)fit({{sum}}, {min(right, 63)})"
        if right < 0:
            end = f"(int16_t)grown(cut64({{sum}}), {min(-right, MOST_LEFT)})"
        return Sum("int64_t", "0", add, end)

    def product(self, node: Node, matrices: Sequence[np.ndarray]) -> Product:
        rows, arrays = len(matrices[0]), {}
        lines = ["{{", f"  int32_t sums[{rows}];"]
        for i, own in enumerate(self._matrices(node, matrices)):
            name = f"product{self.bits}{'_wide' if own.wide else ''}"
            w = [str(v) for v in _laid_out(own.w, self.bits).ravel()]
            arrays[f"w{i}"] = Array(f"int{self.bits}_t", w, self.bits // 8)
            arrays[f"m{i}"] = Array("int32_t", [str(v) for v in own.m], 4)
            facts = f"{rows}, {own.w.shape[1]}, {own.shift}, {int(i > 0)}"
            lines.append(f"  {name}({{w{i}}}, {{m{i}}}, {{x{i}}}, {facts}, sums);")
        return Product(arrays, [*lines, f"  finish(sums, {rows}, {{y}});", "}}"])

    def _matrices(self, node: Node, weights: Sequence[np.ndarray]) -> list[Matrix]:
        vectors = node.args[1::2]
        return [matrix(w, self.bits, self._of(node, x)) for w, x in zip(weights, vectors, strict=True)]

    def helpers(self) -> dict[str, str]:
        products = {f"product{b}{'_wide' * wide}": _product(b, wide) for b in (8, 16) for wide in (False, True)}
        return HELPERS | {"two": TWO} | products

    def tables(self) -> dict[str, Array]:
        return {n: Array(self.kind, [str(v) for v in table], self.bytes) for n, table in self.lines.items()}

    def evaluate(self, node: Node, args: Sequence[Ints]) -> Ints:
        """The value of a node on integers, whose trailing axes are the node's own: what the C computes."""
        kind = TABLE[node.op].kind
        if node.op == "concat":
            args = [fitted(a, self.exponent(p) - self.exponent(node)) for a, p in zip(args, node.args, strict=True)]
        if kind == "move":
            return TABLE[node.op].numpy(*args, **node.attrs)
        if node.op == "gemm":
            weights = [self.known[w].reshape(-1, w.shape[-1]) for w in node.args[::2]]
            own = zip(self._matrices(node, weights), args[1::2], strict=True)
            total = sum(w.times(x) for w, x in own)
            return fitted(total, GUARD).reshape(-1, *node.shape)
        if kind in ("reduce", "contract"):
            right = sum(self._of(node).of) - self.exponent(node)
            whole = np.asarray(TABLE[node.op].numpy(*args, **node.attrs)).astype(np.int64)
            return fitted(whole if right >= 0 else np.clip(whole, SMALLEST, LARGEST), right)
        return np.asarray(self._row(node, NumpyMachine(), args)).astype(np.int64)


def unsupported(node: Node) -> ConfigError:
    """The error of an operation that fixed point does not have."""
    do = "leave bits and samples out: floats have every operation"
    return ConfigError(message(f"write_c: no fixed point for {node.op}", where=node.source or None, do=do))
