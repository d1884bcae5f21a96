"""The passes in order, with the reason for each position, and the function that runs them.

In: an RNN, a target, and names of passes to leave out. Out: one graph per distinct layer, ready for
`cpu/lower_network.py`; `trail` keeps the graph after every stage for `show`, `--dump` and the golden tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm_rnn.decisions import about, tell
from tvm_rnn.graph.graph import Graph, Layers
from tvm_rnn.options import Options, check_passes

from . import Pass, keep_choice
from .combine_gemms import CombineGemms
from .differentiate import Differentiate, choice
from .first_step import first_step
from .fuse_pointwise import FusePointwise
from .hoist_gemms import HoistGemms
from .normalise import normalise
from .parallelise_time import ParalleliseTime
from .passed import Passed
from .rows_of_pixels import of_pixels
from .tile_layers_and_time import TileLayersAndTime

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.target import Target

PASSES: tuple[Pass, ...] = (
    # Before all others: what is made of a state that is known for all steps can leave the loop with its products.
    ParalleliseTime(),
    # First, on single products: what leaves the loop must not be tied to what stays in it.
    HoistGemms(),
    # Then, region by region: the products of one level and operand become one.
    CombineGemms(),
    # Needs the final products: it hangs pointwise work on them, and decides what is stored.
    FusePointwise(),
    # Last: needs to know how much is stored per row.
    TileLayersAndTime(),
)


def run(
    net: RNN,
    target: Target,
    without: Iterable[str] = (),
    batches: Iterable[int] = (),
    *,
    training: bool | str = False,
    precision: str = "",
    starts: bool = False,
) -> list[tuple[str, Layers]]:
    """All stages in order: "trace", "normalise" (for training "differentiate", which does both), then each pass that
    was not left out. For training the graphs have regularisers' masks, and backward graphs, which every pass is applied
    to as well.

    training: what it keeps, by name (`keep_choice.py`); True: "auto". precision: of products, which "auto" goes by; "":
    the network's dtype. batches: sizes to optimise for. starts: the graphs of a first step from no states, see
    `first_step.py`. fuse_pointwise and tile_layers_and_time also decide things that later stages cannot do without, so
    leaving them out means running them in their plain form: one group per node; all of T in one tile, layer by layer.
    """
    off, batches = check_passes(without), tuple(batches)
    graphs: list[Graph] = []
    of_layer = []
    for layer in net.layers:
        own = layer.training if training else layer.graph
        if not any(own is g for g in graphs):
            graphs.append(own)
        of_layer.append(next(i for i, g in enumerate(graphs) if g is own))
    stages = [("trace", Layers(tuple(graphs), tuple(of_layer)))]
    for number in range(len(graphs)):
        where = [layer for layer, index in enumerate(of_layer) if index == number]
        with about("trace", graph=number):
            tell(True, f"layer{'s' * (len(where) > 1)} {', '.join(map(str, where))}", "one graph", layers=where)
    first = "differentiate" if training else "normalise"
    if training:
        what = keep_choice.chosen(training, net, target, batches, precision)
        graphs = _applied(Differentiate(choice(what, spares=target.kind == "cuda")), graphs, net, target)
        with about("differentiate"):
            why = "as asked" if what == training else keep_choice.why(net, target, batches, precision)
            tell(True, f'keep="{what}"', why, elements=0)
    else:
        graphs = [normalise(g) for g in graphs]
        graphs = [first_step(g, net.cell.initial) for g in graphs] if starts else graphs
    stages.append((first, Layers(tuple(graphs), tuple(of_layer))))
    whole = net.num_directions > 1 or net.reverse
    if target.kind == "cuda" and not net.cell.constants and not (training and whole):
        with about("rows_of_pixels"):
            graphs = [*of_pixels(stages[-1][1]).graphs]
    for step in PASSES:
        if missing := [name for name in (step.name, *step.needs) if name in off]:
            with about(step.name):
                tell(False, "the whole pass", "left out by name" if step.name in off else f"needs {missing[0]}")
            if not isinstance(step, (FusePointwise, TileLayersAndTime)):
                continue
            step = replace(step, enabled=False)
        if isinstance(step, ParalleliseTime | TileLayersAndTime):
            step = replace(step, batches=tuple(sorted(batches)))
        graphs = _applied(step, graphs, net, target)
        stages.append((step.name, Layers(tuple(graphs), tuple(of_layer))))
    return stages


def _applied(step: Pass, graphs: Sequence[Graph], net: RNN, target: Target) -> list[Graph]:
    found = []
    for number, graph in enumerate(graphs):
        with about(step.name, graph=number):
            found.append(_apply(step, graph, net, target))
    return found


def _apply(step: Pass, graph: Graph, net: RNN, target: Target) -> Graph:
    step.requires(graph)
    result = step.apply(graph, net, target)
    if getattr(step, "enabled", True):
        result = replace(result, applied=(*graph.applied, step.name))
    step.ensures(result)
    if graph.backward is not None and result.backward is not None:
        with about("", kind="backward"):
            result = replace(result, backward=_apply(step, result.backward, net, target))
    return result


def passed(net: RNN, options: Options) -> Passed:
    """A network with its graphs after the passes, for planners."""

    def graphs(net: RNN, options: Options, starts: bool = False) -> list[tuple[str, Layers]]:
        own = options.without, options.batches
        return run(net, options.least, *own, training=options.training, precision=options.precision, starts=starts)

    return Passed(net, options, graphs)
