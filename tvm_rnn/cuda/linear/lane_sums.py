"""Sums over the lanes of a warp.

In: what each lane has to add, in registers. Out: the sums, each in the lanes that store it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.tir.expr import TirExpr


def reduce_scatter(
    w: Writer, lane: TirExpr, parts: list[TirExpr], turns: Sequence[int]
) -> tuple[TirExpr, TirExpr, int]:
    """(a sum over lanes, which of the `parts` it is of, bits of a lane's number: lanes that differ in these alone have
    the same). Lanes halve the parts between them as long as there are several. parts: a power of two; turns: the bits
    in which the lanes that are added up differ."""
    everyone = tirx.const(0xFFFFFFFF, "uint32")
    number: TirExpr = tirx.const(0, "int32")
    same = 0
    for turn in turns:
        sent, half = parts, len(parts) // 2
        if half:
            high = w.bind(tirx.NE(lane & turn, 0))
            low, rest = parts[:half], parts[half:]
            sent = [tirx.Select(high, a, b) for a, b in zip(low, rest, strict=True)]
            parts = [tirx.Select(high, b, a) for a, b in zip(low, rest, strict=True)]
            number = w.bind(number + tirx.Select(high, half, 0))
        else:
            same += turn
        sent = [w.keep(part) for part in sent]
        other = [I.tvm_warp_shuffle_xor(everyone, part, turn, 32, 32) for part in sent]
        parts = [w.keep(a + b) for a, b in zip(parts, other, strict=True)]
    return parts[0], number, same
