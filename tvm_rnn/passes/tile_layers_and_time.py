"""Choose how layers and time are walked: tiles of time outside and layers inside where that is allowed.

In: a graph with groups; a template for the walk, and records for it. Out: `graph.tiling`. A tile of T-steps goes
through all layers while its activations and hoisted products are still in cache, and only one tile of them is ever
stored, whatever T is. The backward direction reads a whole sequence before its first output, so networks that
have it go layer by layer (each still in tiles).

Rewrite: for layer: for t in T: step   -->   for tile in T/n: for layer: for t in n: step

Source: the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3, here one tile deep on one core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..graph import Graph, Tiling
from ..schedule import Unit, best
from . import Pass

if TYPE_CHECKING:
    from ..rnn import RNN
    from ..target import Target


@dataclass(frozen=True)
class TileLayersAndTime(Pass):
    """Tiles of time as the target's template for a walk has them. enabled=False: all of T in one tile, layer by layer.
    batches: the sizes that are named at compile time."""

    name = "tile_layers_and_time"
    enabled: bool = True
    batches: tuple[int, ...] = ()

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        if not self.enabled:
            return replace(graph, tiling=Tiling("layer-major", None))
        if target.kind == "cuda":  # its kernels walk time by themselves, and layers in waves
            whole = net.bidirectional or net.reverse
            return replace(graph, tiling=Tiling("layer-major" if whole else "time-major", None))
        unit = unit_of(graph, net, self.batches[-1:])  # there is one walk for all: that of the largest batch
        chosen = best(unit, target)
        order = "layer-major" if chosen.knobs["layers_first"] else "time-major"
        return replace(graph, tiling=Tiling(order, chosen.knobs["rows"], unit, chosen))

    def ensures(self, graph: Graph) -> None:
        self.check(graph.tiling is not None, "no tiling was chosen", graph)


def unit_of(graph: Graph, net: RNN, batches: tuple[int, ...]) -> Unit:
    """What a template is asked about: gates: 2 where a direction reads all of a sequence before its first output, else
    1; width: elements per row that `before` stores; depths: those of the input and of the output."""
    hoisted = sum(n.shape[-1] if n.shape else 1 for g in graph.groups if g.region == "before" for n in g.stored)
    flow = (graph.inputs[0].shape[0], graph.output.shape[0])
    region = "layers" if net.num_layers > 1 else "layer"
    return Unit("walk", region, graph.dtype, 1 + (net.bidirectional or net.reverse), hoisted, flow, batches=batches)
