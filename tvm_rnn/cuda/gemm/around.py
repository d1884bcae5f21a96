"""Operands whose vector is what the taps of a kernel see around a pixel: im2col as a way of addressing, nothing is
copied before.

In: a `neighbours` node; from a kernel: rows, which are pixels, and an element k of the vector. Out: how many rows
further a tap looks, at which channel, and whether a pixel is there. K is [tap][channels, padded to `wide`], so that 16
bytes of K are one piece of one pixel's row; where there is no pixel, zeros are copied in its place.

Source: Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep Learning", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import Shape
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64

HALF = 16  # bits of a pixel's column, and of its row


@dataclass(frozen=True)
class Around:
    """taps, dilation: of the kernel, along two axes; before: zeros before an image's first pixel; image: its size;
    channels: of a pixel, of `wide` elements of K."""

    taps: Shape
    dilation: Shape
    before: Shape
    image: Shape
    channels: int
    wide: int

    @staticmethod
    def of(node: Node) -> Around:
        """That of a `neighbours` node."""
        return Around(channels=node.args[0].shape[0], **node.attrs)

    def pixel(self, w: Writer, row: TirExpr) -> TirExpr:
        """Where in its image a row is: its line and column as one number."""
        height, width = self.image
        place = w.keep(tirx.Cast("int32", tirx.truncmod(row, int64(height * width))))
        return w.keep(tirx.truncdiv(place, width) * (1 << HALF) + tirx.truncmod(place, width))

    def look(self, w: Writer, k: TirExpr) -> Look:
        """What element k of a vector is."""
        tap = w.bind(tirx.truncdiv(k, self.wide))
        across = self.taps[1]
        steps = []
        for at, step, zeros in zip(
            (tirx.truncdiv(tap, across), tirx.truncmod(tap, across)), self.dilation, self.before, strict=True
        ):
            steps.append(w.bind(at * step - zeros))
        return Look(self, k, w.bind(tirx.truncmod(k, self.wide)), (steps[0], steps[1]))


@dataclass(frozen=True)
class Look:
    """One element k. channel: of a pixel; steps: lines and columns from the own pixel to that one."""

    around: Around
    k: TirExpr
    channel: TirExpr
    steps: tuple[TirExpr, TirExpr]

    @property
    def rows(self) -> TirExpr:
        """How many rows further that pixel is."""
        return self.steps[0] * self.around.image[1] + self.steps[1]

    def sees(self, pixel: TirExpr) -> TirExpr:
        """Whether there is a pixel, seen from one."""
        line, column = (
            tirx.shift_right(pixel, tirx.const(HALF, "int32")),
            tirx.bitwise_and(pixel, tirx.const((1 << HALF) - 1, "int32")),
        )
        found = []
        for place, step, size in zip((line, column), self.steps, self.around.image, strict=True):
            found.append(tirx.And(place + step >= 0, place + step < size))
        return tirx.And(*found)

    def reach(self, count: int) -> Expr:
        """How many of `count` elements from here on are channels of the pixel."""
        around = self.around
        here: Expr = count
        if around.channels < around.wide:
            here = tirx.max(tirx.min(around.channels - self.channel, count), 0)
        taps = around.taps[0] * around.taps[1]
        return tirx.Select(self.k < taps * around.wide, here, 0)
