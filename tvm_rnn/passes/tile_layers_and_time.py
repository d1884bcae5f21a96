"""Choose the order of layers and time: a tile of steps through all layers while it is in cache, where that is allowed.

In: a graph with groups; a template for the walk, and records for it. Out: `graph.tiling`. A tile of T-steps goes
through all layers while its activations and hoisted products are still in cache, and only one tile of them is ever
stored, whatever T is. The backward direction reads a whole sequence before its first output, so networks that
have it go layer by layer (each still in tiles). On CPUs so do backward graphs: what they read is stored for all T in
any case. On GPUs they go back through the layers as forward graphs go on, side by side.

Rewrite: for layer: for t in T: step   -->   for tile in T/n: for layer: for t in n: step

Source: the wavefront of Appleyard, Kocisky & Blunsom 2016, section 3.3, here one tile deep on one core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Tiling, has_steps
from tvm_rnn.schedule.schedule_template import Chosen, Unit, best

from ..decisions import tell
from . import Pass
from .fuse_pointwise import read_at_last

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

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
            why = "each layer needs all of a sequence before the next one begins" if whole else ""
            tell(not whole, "layers side by side in time", why or "kernels walk time by themselves; see the regimes")
            return replace(graph, tiling=Tiling("layer-major" if whole else "time-major", None))
        unit = unit_of(graph, net, self.batches[-1:])  # there is one walk for all: that of the largest batch
        chosen = best(unit, target)
        order = "layer-major" if chosen.knobs["layers_first"] else "time-major"
        _tell(graph, net, chosen)
        return replace(graph, tiling=Tiling(order, chosen.knobs["rows"], unit, chosen))

    def ensures(self, graph: Graph) -> None:
        self.check(graph.tiling is not None, "no tiling was chosen", graph)


def unit_of(graph: Graph, net: RNN, batches: tuple[int, ...]) -> Unit:
    """What a template is asked about. region: "layer", "layers" or "backward"; gates: 2 where a direction reads all of
    a sequence before its first output, else 1; width: elements per row that are stored for all of a tile: what `before`
    computes, and in graphs of training what others read at last, and what goes to the tape; depths: those of the input
    and of the output; stages: recurrences that go through a tile at once, where nothing is left for its steps."""
    kept = dict.fromkeys(n for g in graph.groups if g.region == "before" for n in g.stored)
    kept |= dict.fromkeys((*read_at_last(graph), *(graph.emitted if graph.kind == "forward" else ())))
    width = sum(prod(n.shape) for n in kept)
    flow = (graph.inputs[0].shape[0], graph.output.shape[0])
    region = "backward" if graph.kind == "backward" else "layers" if net.num_layers > 1 else "layer"
    stages = 0 if has_steps(graph) else sum(g.kind == "scan" for g in graph.groups)
    gates = 1 + _reads_all_first(graph, net)
    return Unit("walk", region, graph.dtype, gates, width, flow, stages, batches=batches)


def _tell(graph: Graph, net: RNN, chosen: Chosen) -> None:
    rows = chosen.knobs["rows"]
    why = f"by {chosen.template.name}, {chosen.record}"
    tell(True, f"tiles of {rows} rows (steps x batch)", why, rows=rows)
    if _reads_all_first(graph, net):
        both = "the backward pass" if graph.kind == "backward" else "a direction that goes backwards"
        tell(False, "a tile through all layers", f"{both} reads a whole sequence before its first output")
    elif chosen.knobs["layers_first"]:
        tell(False, "a tile through all layers", why)
    elif net.num_layers == 1:
        tell(False, "a tile through all layers", "there is one layer")
    else:
        tell(True, f"a tile through all {net.num_layers} layers", "time outside, layers inside")


def _reads_all_first(graph: Graph, net: RNN) -> bool:
    """Whether a layer needs all of a sequence before it can say anything of the step that comes first."""
    return net.bidirectional or net.reverse or graph.kind == "backward"
