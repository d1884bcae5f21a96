"""Choose how layers and time are walked: tiles of time outside and layers inside where that is allowed.

In: a graph with groups. Out: `graph.tiling`. A tile of T-steps goes through all layers while its activations and
hoisted products are still in cache, and only one tile of them is ever stored, whatever T is. The backward direction
reads a whole sequence before its first output, so networks that have it go layer by layer (each still in tiles).

Rewrite: for layer: for t in T: step   -->   for tile in T/n: for layer: for t in n: step

Source: the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3, here one tile deep on one core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Tiling
from . import Pass

if TYPE_CHECKING:
    from ..rnn import RNN
    from ..target import Target

MIN_ROWS, MAX_ROWS = 32, 512  # below, the batched product runs short of rows; above, nothing more is gained


@dataclass(frozen=True)
class TileLayersAndTime(Pass):
    """Time tiles that fit half of the level-2 cache. enabled=False: all of T in one tile, layer by layer."""

    name = "tile_layers_and_time"
    enabled: bool = True

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        if not self.enabled:
            return replace(graph, tiling=Tiling("layer-major", None))
        order = "layer-major" if net.bidirectional or net.reverse else "time-major"
        hoisted = sum(n.shape[-1] if n.shape else 1 for g in graph.groups if g.region == "before" for n in g.stored)
        width = hoisted + graph.inputs[0].shape[0] + graph.output.shape[0]
        bytes_per_row = width * np.dtype(graph.dtype).itemsize
        rows = max(MIN_ROWS, min(MAX_ROWS, target.l2_bytes // 2 // bytes_per_row))
        return replace(graph, tiling=Tiling(order, rows))

    def ensures(self, graph: Graph) -> None:
        self.check(graph.tiling is not None, "no tiling was chosen", graph)
