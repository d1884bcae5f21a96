"""What a tape need not have of pointwise steps: values that backward makes again from states kept before some steps.

In: a forward graph of training, with its backward graph, after the passes. Out: `MadeAgain`, where that moves fewer
bytes; None elsewhere. Such steps wait for memory: a value that is kept is written and read, one that is made again
costs what it is made of, the inputs that backward does not read anyway, and a part of the states. The kernel that walks
the steps back goes forward through `every` of them first, and has their values in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm_rnn.graph.graph import Graph, Node, stepped
from tvm_rnn.network.rnn import RNN

from .phases import NotPersistent, Step, check_kept, phases

EVERY = (16, 8, 4)  # steps from one kept state to the next: as many as registers have room for
REGISTERS = 96  # of a thread, for what so many steps read and make


@dataclass(frozen=True, eq=False)
class MadeAgain:
    """step: of the forward graph. values: of each leaf of the backward graph that is made again, what it is in the
    forward step. inputs: of each input of the forward step, the backward graph's leaf. states: the backward graph's
    leaves that are the states, in order, kept before each step whose number `every` divides; initial: what they begin
    anew with."""

    step: Step
    values: Mapping[Node, Node]
    inputs: Mapping[Node, Node]
    states: tuple[Node, ...]
    every: int
    initial: Mapping[str, float]


def made_again(graph: Graph, net: RNN) -> MadeAgain | None:
    """What backward makes again, where both graphs are pointwise work on vectors of one width, and fewer bytes move."""
    back = graph.backward
    whole = net.num_directions > 1 or net.reverse  # states lie in the order of the forward steps
    if back is None or not graph.emitted or whole or net.regularisers or graph.pixels:
        return None
    if not all(map(_is_pointwise, (graph, back))):
        return None
    try:
        step, behind = (phases(stepped(own), _never, _never, False) for own in (graph, back))
        check_kept(step, graph.emitted)
    except NotPersistent:
        return None
    first = 1 + len(graph.inputs)
    states = back.inputs[first : first + len(graph.states)]
    read = {*back.nodes()}
    pairs = [*zip(states, graph.states, strict=True)]
    pairs += zip(back.inputs[first + len(states) :], graph.emitted, strict=True)
    values = {leaf: node for leaf, node in pairs if leaf in read}
    width = step.phases[0].width
    vectors = (back.output, *values, *graph.states)
    if width == 1 or behind.phases[0].width != width or any(node.shape != (width,) for node in vectors):
        return None
    inputs = dict(zip(graph.inputs, back.inputs[1:first], strict=True))
    keys = {key for own in (step, behind) for found in own.reads for key in found}
    at_once = len({(inputs.get(node, node), at) for node, at in keys if node not in values}) + len(values)
    every = next((n for n in EVERY if n * at_once <= REGISTERS), None)
    more = [node for node in step.read_nodes if inputs[node] not in read]
    if every is None or 2 * len(values) <= len(more) + 2 * len(states) / every:
        return None
    return MadeAgain(step, values, inputs, states, every, net.cell.initial)


def without_kept(graph: Graph) -> Graph:
    """The forward graph, which keeps nothing that its backward graph reads but inputs."""
    back = graph.backward
    assert back is not None
    first = 1 + len(graph.inputs)
    unread = tuple(replace(leaf) for leaf in back.inputs[first : first + len(graph.states)])
    return replace(graph, emitted=(), backward=replace(back, inputs=(*back.inputs[:first], *unread)))


def _is_pointwise(graph: Graph) -> bool:
    """Whether the steps are all there is, of inputs, states and numbers."""
    leaves = all(n.op in ("input", "state") or n.scalar is not None for n in graph.nodes() if n.leaf)
    return leaves and bool(graph.groups) and all(group.region == "step" for group in graph.groups)


def _never(_: Node) -> bool:
    return False


__all__ = ["MadeAgain", "made_again", "without_kept"]
