"""Which arrays hold whole numbers alone, and of what size: levels of quantised values, less their zero points.

In: loop nests in order, and what is known of the arrays that they read. Out: the least and the largest number of each
array; None where it may hold others. That is read off casts from bytes, and what is done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.surroundings.nest import is_choice, reads
from tvm_rnn.tir.expr import Buffer, Expr, Stmt

Range = tuple[int, int]
TYPES: dict[str, Range] = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1), "bool": (0, 1)}
EXACT = 1 << 24  # float32 has all whole numbers up to this


@dataclass
class WholeNumbers:
    """known: the ranges of arrays that hold whole numbers alone."""

    known: dict[Buffer, Range] = field(default_factory=dict)

    def read(self, nests: Sequence[Stmt]) -> None:
        """Learn what these store, in order."""
        stored = dict[Buffer, list[Expr]]()
        for nest in nests:
            tvm_ffi.structural_walk(nest, (tirx.BufferStore, lambda s: stored.setdefault(s.buffer, []).append(s.value)))
        for buffer, values in stored.items():
            if any(reads(value, buffer) for value in values):
                continue  # a sum
            found = _both([self.of(value) for value in values])
            if found is not None:
                self.known[buffer] = found

    def of(self, value: Expr) -> Range | None:
        """The least and the largest whole number that an expression may be."""
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            number = float(value.value)
            return (int(number), int(number)) if number.is_integer() and abs(number) <= EXACT else None
        if isinstance(value, tvm.ir.TensorLoad):
            return self.known.get(value.source) or TYPES.get(str(value.ty))
        if isinstance(value, tirx.Cast):
            return _fitting(self.of(value.value), str(value.ty)) or TYPES.get(str(value.ty))
        if isinstance(value, tirx.Add | tirx.Sub):
            a, b = self.of(value.a), self.of(value.b)
            if a is None or b is None:
                return None
            least, most = (a[0] + b[0], a[1] + b[1]) if isinstance(value, tirx.Add) else (a[0] - b[1], a[1] - b[0])
            return _fitting((least, most), str(value.ty))
        if isinstance(value, tirx.Select):
            return _both([self.of(value.true_value), self.of(value.false_value)])
        if is_choice(value):
            return _both([self.of(own) for own in value.args[1:]])
        return None


def _both(ranges: Sequence[Range | None]) -> Range | None:
    known = [own for own in ranges if own is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(own[0] for own in known), max(own[1] for own in known)


def _fitting(found: Range | None, dtype: str) -> Range | None:
    """The range, where values of the type have all of it."""
    if found is None:
        return None
    most = {"float32": EXACT, "float64": 1 << 53, "int32": (1 << 31) - 1, "int64": (1 << 63) - 1}.get(dtype)
    least, largest = (-most, most) if most is not None else TYPES.get(dtype, (1, 0))
    return found if least <= found[0] and found[1] <= largest else None
