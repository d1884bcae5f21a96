"""Memory for the gradients of layers' outputs, in backward on the GPU.

In: a network, its program, which layers run at the same time. Out: pointers to the gradient of a layer's output. The
last layer's is the user's; a copy of it lies here, with 0 in rows that have ended.

    Sequences  of all of T: layers run one after the other, so two are enough, written and read in turn. Of a
               segment they are the caller's, and last
    Tiles      of one tile of time. Layers that run side by side have two each, written and read in turn; else one is
               read while the other is written
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from tvm_rnn.cuda.codegen.host_program import ALIGNMENT, ITEM_BYTES, HostExpr, Pointer, Program
from tvm_rnn.cuda.layer.time_segments import TimeSegment
from tvm_rnn.network.rnn import RNN


def gradient_width(net: RNN) -> int:
    """Elements of a row of a layer's gradient."""
    return max(layer.width * net.num_directions for layer in net.layers)


class LayerGradients(Protocol):
    """place(layer, tile, row, stride): the gradient of a layer's output in a tile, from a row of all rows on; of the
    last layer, the copy. Rows have `stride` elements."""

    def place(self, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer: ...


@dataclass
class Sequences:
    """given: the caller's, where there is an address; None: never."""

    net: RNN
    program: Program
    segment: TimeSegment
    given: Pointer | None
    pair: list[Pointer] = field(init=False)

    def __post_init__(self) -> None:
        width, dtype, self.pair = gradient_width(self.net), self.net.dtype, []
        for number in range(2 if self.net.num_layers > 1 else 1):
            place = self.program.buffer("between", f"T * B * {width}", dtype)
            if self.given is not None:
                size = f"{self.segment.whole} * B * {width * ITEM_BYTES[dtype]}"
                behind = f"{number} * (({size} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT})"
                text = f"({self.given.text} ? {self.given.text} + {behind} : {place.text})"
                place = self.program.sequence.pointer("between", replace(place, text=text))
            self.pair.append(place)

    def place(self, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        """In arrays for all of the time the call's own rows come after those before it."""
        skipped = f"{self.segment.first} * B * {stride}" if self.given is not None else 0
        return self.pair[(self.net.num_layers - 1 - layer) % 2].at(skipped).at(f"{row} * {stride}")


@dataclass
class Tiles:
    """steps: of a tile. wave: a condition: layers run side by side."""

    net: RNN
    program: Program
    steps: str
    wave: str

    def __post_init__(self) -> None:
        dtype, others = self.net.dtype, self.net.num_layers - 1
        each = ALIGNMENT // ITEM_BYTES[dtype]
        size = f"({self.steps} * B * {gradient_width(self.net)} + {each - 1}) / {each} * {each}"
        self.size = self.program.let("handed_size", size)
        count = f"({self.wave} ? {2 * others} : {min(2, others)})"
        self.tiles = self.program.buffer("between", f"{count} * {self.size}", dtype)
        self.last = self.program.buffer("between", self.size, dtype)

    def place(self, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        """The row is the tile's first one."""
        if layer + 1 == self.net.num_layers:
            return self.last
        return self.tiles.at(f"({self.wave} ? {2 * layer} + ({tile} & 1) : {layer % 2}) * {self.size}")


__all__ = ["LayerGradients", "Sequences", "Tiles", "gradient_width"]
