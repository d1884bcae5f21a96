"""Weights in 8 bits: e4m3 codes and a scale per row, made when weights are packed, undone just before they are used.

In: float32 weights in packing kernels; words of four codes in kernels that multiply by them
(`persistent/product/coded_weights.py`). Out: scales and codes, or weights as 16 bits hold them. A scale is a power of
two: a code times its scale is a float16 or bfloat16 exactly, so kernels that keep codes and kernels that read 16 bits
multiply by the same numbers.

e4m3: a sign, 4 bits of exponent (bias 7), 3 of mantissa; at most 448; subnormals in steps of 2**-9; here never a NaN.
Where a row has a NaN or an infinity its scale is NaN, and with it all that comes of the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import uint32

MOST = 448.0
LEAST_NORMAL_BITS = (127 - 6) << 23  # of 2**-6 as float32
INFINITE = 0x7F800000
# A scale's exponent as float32 has it. Below the first, subnormals times the scale would need more than 16 bits; above
# the second, 448 times the scale.
SCALES = {"float16": (127 - 15, 127 + 7), "bfloat16": (127 - 117, 127 + 119)}
# bfloat16 with these bits of a code in place (sign, then exponent and mantissa) is the code's value times 2**-120: its
# exponent's bias is that much larger. Subnormals are too. A multiplication puts it right.
IN_PLACE, UNBIAS = 0x87F087F0, 0x7B807B80
# The other two codes of a word lie in the gaps: bits 0 to 3, 12 to 14 and 11 of each half are to become 4 to 7, 8 to 10
# and 15.
UP, DOWN = 0x80F080F0, 0x07000700
AND, AND_OR = 0xC0, 0xEA  # truth tables of lop3: a & b, a & b | c


def _int(value: int) -> TirExpr:
    return tirx.const(value, "int32")


def bits(value: TirExpr) -> TirExpr:
    """A float32's, as int32."""
    return tirx.call_pure_extern("int32", "__float_as_int", value)


def from_bits(found: TirExpr) -> TirExpr:
    """The float32 that has these."""
    return tirx.call_pure_extern("float32", "__int_as_float", found)


def _inverse(power: TirExpr) -> TirExpr:
    """1 divided by the power of two that has these bits."""
    return from_bits(_int(254 << 23) - power)


# --- in packing kernels -----------------------------------------------------------------------------------------------


def magnitude(value: TirExpr) -> TirExpr:
    """A float32's bits without the sign: integers in the order of magnitudes, infinity and NaN the largest."""
    return tirx.bitwise_and(bits(value), _int(0x7FFFFFFF))


def scale(largest: TirExpr, precision: str) -> TirExpr:
    """The scale of a row whose largest magnitude has these bits: the least power of two, within bounds, that makes it
    448 at most; 1 for a row of zeros; NaN where the row has an infinity or a NaN."""
    least, most = SCALES[precision]
    # 448 is 1.75 * 2**8: the carry of what mantissas above 1.75 overflow by makes it the next power.
    exponent = tirx.shift_right(largest + _int(0x1FFFFF), _int(23)) - _int(8)
    exponent = tirx.Max(_int(least), tirx.Min(_int(most), exponent))
    exponent = tirx.Select(tirx.EQ(largest, _int(0)), _int(127), exponent)
    return from_bits(tirx.Select(largest >= _int(INFINITE), _int(0x7FC00000), tirx.shift_left(exponent, _int(23))))


def _rounded(w: Writer, value: TirExpr, scale: TirExpr) -> tuple[TirExpr, TirExpr]:
    """|value / scale|, at most 448, to nearest, ties to even: (bits of the power of two below it, at least 2**-6; how
    many eighths of that)."""
    quotient = w.keep(from_bits(magnitude(value)) * _inverse(bits(scale)))
    most = tirx.const(MOST, "float32")
    quotient = w.keep(tirx.Select(quotient < most, quotient, most))
    power = w.keep(tirx.Max(tirx.bitwise_and(bits(quotient), _int(INFINITE)), _int(LEAST_NORMAL_BITS)))
    eighths = quotient * tirx.const(8.0, "float32") * _inverse(power)
    return power, w.keep(tirx.call_pure_extern("float32", "rintf", eighths))


def dequantised(w: Writer, value: TirExpr, scale: TirExpr) -> TirExpr:
    """A float32 weight as its code and its row's scale have it, in float32."""
    power, eighths = _rounded(w, value, scale)
    found = w.keep(eighths * from_bits(power - _int(3 << 23)) * scale)
    return tirx.Select(value < tirx.const(0.0, "float32"), -found, found)


def code(w: Writer, value: TirExpr, scale: TirExpr) -> TirExpr:
    """The e4m3 code of a float32 weight, as uint32."""
    power, eighths = _rounded(w, value, scale)
    # Exponent and mantissa are one number: eighths from 8 on are the next power's, below 8 (of 2**-6) subnormals.
    number = tirx.shift_right(power, _int(20)) + tirx.Cast("int32", eighths) - _int(((127 - 7) << 3) + 8)
    sign = tirx.bitwise_and(tirx.shift_right(bits(value), _int(24)), _int(0x80))
    return tirx.Cast("uint32", tirx.bitwise_or(number, sign))


def word(codes: Sequence[TirExpr], precision: str) -> TirExpr:
    """Four codes as `Coded.fragment` expects them: the first two are the halves of its first register."""
    first, second, third, fourth = codes
    if precision == "float16":
        low, high = first | second << uint32(8), third | fourth << uint32(8)
        return low | high << uint32(16)
    return _in_place(first) | _in_gaps(third) | (_in_place(second) | _in_gaps(fourth)) << uint32(16)


def _in_place(code: TirExpr) -> TirExpr:
    return (code & uint32(0x80)) << uint32(8) | (code & uint32(0x7F)) << uint32(4)


def _in_gaps(code: TirExpr) -> TirExpr:
    return code & uint32(0x0F) | (code & uint32(0x70)) << uint32(8) | (code & uint32(0x80)) << uint32(4)


# --- in kernels that multiply by them --------------------------------------------------------------------------------


def decode(
    k: Writer, precision: str, codes: TirExpr, into: Sequence[TirExpr], passing: Buffer, zero: TirExpr | None
) -> None:
    """A word of four codes to two registers of two values of 16 bits: in float16 by the hardware's conversion, in
    bfloat16 bit by bit. passing: two registers; zero: one that holds 0 (see `Coded`), or None."""
    (first, second), up, down, none = into, passing[0], passing[1], uint32(0) if zero is None else zero
    if precision == "float16":
        k.do(I.ptx["shf.r.wrap.b32"](down, codes, none, uint32(16)))
        if zero is not None:
            k.do(I.ptx["lop3.b32"](up, codes, codes, zero, AND_OR))
        k.do(I.ptx["cvt.rn.f16x2.e4m3x2"](first, tirx.Cast("uint16", codes if zero is None else up)))
        k.do(I.ptx["cvt.rn.f16x2.e4m3x2"](second, tirx.Cast("uint16", down)))
        return
    k.do(I.ptx["lop3.b32"](first, codes, uint32(IN_PLACE), none, AND_OR))
    k.do(I.ptx["mul.rn.bf16x2"](first, first, uint32(UNBIAS)))
    k.do(I.ptx["mad.lo.u32"](up, codes, uint32(16), none))
    k.do(I.ptx["shf.r.wrap.b32"](down, codes, none, uint32(4)))
    k.do(I.ptx["lop3.b32"](up, up, uint32(UP), up, AND))
    k.do(I.ptx["lop3.b32"](second, down, uint32(DOWN), up, AND_OR))
    k.do(I.ptx["mul.rn.bf16x2"](second, second, uint32(UNBIAS)))
