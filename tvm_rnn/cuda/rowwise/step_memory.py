"""The memory that a layer's kernels work on: of a layer and direction, of one tile of time, and of one step.

In: pointers of the host program. Out: `Buffers`, `Tile` and `Step`, which kernels' launches are written with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_rnn.cuda.codegen.host_program import HostExpr, Pointer
from tvm_rnn.graph.graph import Node

from .dropout_masks import MaskKeys


@dataclass
class Buffers:
    """The memory of one layer and direction, or what several share.

    states, shadows: for each state its two copies, by parity. hoisted: each value for all rows of a tile. step: each
    value's copies.
    """

    weights: Mapping[Any, Pointer]
    states: list[tuple[Pointer, Pointer]]
    shadows: dict[int, tuple[Pointer, Pointer]]
    hoisted: dict[Node, Pointer]
    step: dict[Node, list[Pointer]]
    regimes: list[Pointer]  # each regime's own memory
    mask_keys: MaskKeys | None = None  # what masks are made of
    words: dict[Node, Pointer] = field(default_factory=dict)  # masks as persistent kernels read them


@dataclass
class Tile:
    """One tile of time of one layer and direction. Pointers are those of the tile's first step, in order of time."""

    inputs: list[Pointer]
    output: Pointer
    start: HostExpr  # its first step, in order of time
    count: HostExpr  # its steps
    reverse: bool
    parity: HostExpr  # which copy of the states holds the values before it: 0 or 1
    kept: list[Pointer] = field(default_factory=list)  # rows of what training reads later


@dataclass
class Step:
    """What the kernels of one step work on."""

    tile: Tile
    t: HostExpr  # within the tile
    old: list[Pointer]
    new: list[Pointer]
    old_shadows: dict[int, Pointer]
    new_shadows: dict[int, Pointer]
