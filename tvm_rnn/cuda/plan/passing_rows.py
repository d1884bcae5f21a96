"""Memory that a tile's rows share: of what the steps read and nothing behind them, and of what is made behind them.

In: which hoisted values those are, what else the steps read there, and bytes of what is made behind. Out: one buffer
for each layer that runs at the same time as others, and where everything lies in it. A layer's tiles follow each other
on one stream, so that the steps of the next tile write there when the launches behind those of this one have read.

    steps    [hoisted value] [hoisted value] ... [more]
    behind   [operands of weight gradients, in another order]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm_rnn.cuda.codegen.host_program import ALIGNMENT, ITEM_BYTES, HostExpr, Pointer, Program
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Node


def aligned(size: HostExpr) -> str:
    """Bytes, up to where the next array may begin."""
    return f"({size} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"


@dataclass
class PassingRows:
    """values: hoisted ones, and how their rows lie. more, behind: bytes. Call `reserve` before the others."""

    values: Sequence[tuple[Node, Place]]
    more: HostExpr
    behind: HostExpr
    size: str = field(init=False, default="")  # bytes of a copy
    start: Pointer | None = field(init=False, default=None)  # of the first copy

    def reserve(self, program: Program, rows: HostExpr, copies: HostExpr) -> None:
        """Memory of `copies` copies for so many rows; once for all layers that share the code."""
        if self.start is not None:
            return
        self.starts = ["0"]
        for _, place in self.values:
            size = aligned(f"{rows} * {place.row_stride * ITEM_BYTES[place.dtype]}")
            self.starts.append(program.let("passing", f"{self.starts[-1]} + {size}"))
        end = f"{self.starts[-1]} + {aligned(self.more)}"
        self.size = program.let("passing_size", f"max<int64_t>({end}, {aligned(self.behind)})")
        self.start = program.buffer("passing", f"({copies}) * {self.size}")

    def _copy(self, copy: HostExpr) -> Pointer:
        assert self.start is not None
        return self.start.at(f"({copy}) * {self.size}")

    def hoisted(self, copy: HostExpr) -> dict[Node, Pointer]:
        """Where the values of a copy are."""
        pairs = zip(self.values, self.starts, strict=False)
        return {node: self._copy(copy).at(at).cast(place.dtype) for (node, place), at in pairs}

    def beside(self, copy: HostExpr) -> Pointer:
        """Where `more` is."""
        return self._copy(copy).at(self.starts[-1])


__all__ = ["PassingRows"]
