"""A network that feeds itself, as a network of its own: what a step emits is a state, which the next step reads.

In: an RNN whose output can be its input. Out: `Loop`, with an RNN of one layer whose call is the whole loop. So
whatever runs sequences runs generation: GPUs do, by any of their ways.

    layers   one graph: layer l + 1 reads what layer l emits in the same step
    fed      a state in place of x: the next row of x where `given` is 1, else what the step emitted
    ended    1 behind a step that emitted `stop`, where nothing was given: from then on all states stay as they are

Inputs: the rows that are given, each a step early; `given`; `stop`, where outputs are single numbers; the others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.graph.graph import Graph, Node, with_args
from tvm_rnn.graph.ops import Shape
from tvm_rnn.language.cell import Argument
from tvm_rnn.language.dims import parse_dims
from tvm_rnn.language.trace import Value, apply

from .layer import Layer, weight_name
from .rnn import RNN

FED, ENDED, GIVEN, STOP = (f"loop.{word}" for word in ("fed", "ended", "given", "stop"))

EXACT = {"bfloat16": 257, "float16": 2049}  # so many whole numbers from 0 on have no other between them that is missing


@dataclass(frozen=True)
class Loop:
    """net: of one layer. of: what it was made of. streams: the names of random numbers in net, of each layer all."""

    net: RNN
    of: RNN
    streams: tuple[str, ...]

    def weight(self, name: str) -> str:
        """The name among the weights of `of` of one of net's."""
        return name.removesuffix(weight_name("", 0, 0))


def size_of(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def check_generation(net: RNN) -> None:
    """Raises ConfigError where an output cannot be an input."""
    if net.num_directions > 1 or net.reverse:
        got, do = "a network that goes backwards", "generate with a forward network"
        raise ConfigError(message("generation goes forward in time", got=got, do=do))
    shape = next(iter(net.input_shapes.values()))
    if net.output_shape != shape:
        got = f"outputs of {size_of(net.output_shape)}, inputs of {size_of(shape)}"
        do = 'emit what the cell takes: of a token, x: "1", a place such as sample(logits, keepdims=True)'
        raise ConfigError(message("generation: an output is the next input", got=got, expected="one shape", do=do))
    most = EXACT.get(net.dtype)
    if most is not None and net.tokens is not None and net.tokens > most:
        got, do = f"{net.tokens} tokens in {net.dtype}", 'dtype="float32", for GPUs with precision="tf32"'
        what = "generation: tokens are numbers of the network's dtype"
        raise ConfigError(message(what, got=got, expected=f"{most} at most", do=do))


def closed(net: RNN) -> Loop:
    """The loop. Its states are those of the network, each with one for every layer, then `fed` and `ended`."""
    x, *others = net.layers[0].graph.inputs
    fed, ended = Node("state", shape=x.shape, name=FED), Node("state", shape=(1,), name=ENDED)
    given, stop = (Node("input", shape=(1,), name=name) for name in (GIVEN, STOP))
    ends = x.shape == (1,)
    graphs, output = list[Graph](), fed
    for layer in net.layers:
        graphs.append(_one_of(layer, (output, *others), ended if ends else None))
        output = graphs[-1].output
    inputs, states, results = [x, given], _in_turn(graphs, "states"), _in_turn(graphs, "results")
    goes_on = apply("where", Value(given) > 0.5, Value(x), Value(output))
    if ends:
        hit = apply("logical_and", Value(output) == Value(stop), Value(given) < 0.5)
        goes_on, over = _frozen(ended, fed, goes_on), apply("where", hit, 1.0, Value(ended))
        inputs, states, results = [*inputs, stop], [*states, ended], [*results, over.node]
    states.insert(len(results) - ends, fed)
    results.insert(len(results) - ends, goes_on.node)
    own = replace(
        graphs[0],
        inputs=(*inputs, *others),
        states=tuple(states),
        params=tuple(p for g in graphs for p in g.params),
        results=tuple(results),
        output=output,
    )
    return Loop(_network(net, own), net, tuple(_of_layer(s, layer.index) for layer in net.layers for s in net.draws))


def _one_of(layer: Layer, inputs: Sequence[Node], ended: Node | None) -> Graph:
    """The graph of one layer that reads these inputs, with names of its own. Where `ended` is 1 its states stay, also
    for what reads the new ones in the same step: a row's outputs after its end count nothing."""
    graph, new = layer.graph, dict[Node, Node]()
    new.update(zip(graph.inputs, inputs, strict=True))
    for leaf in (*graph.states, *graph.params):
        new[leaf] = replace(leaf, name=weight_name(leaf.name, layer.index, 0))
    made = {r: s for s, r in zip(graph.states, graph.results, strict=True) if not r.leaf}

    def frozen(state: Node, value: Node) -> Node:
        return value if ended is None else _frozen(ended, new[state], Value(value)).node

    for node in graph.nodes():
        if node.random:
            new[node] = replace(node, attrs={**node.attrs, "stream": _of_layer(node.attrs["stream"], layer.index)})
        elif node not in new:
            new[node] = with_args(node, new)
            new[node] = frozen(made[node], new[node]) if node in made else new[node]
    pairs = zip(graph.states, graph.results, strict=True)
    results = tuple(new[r] if r is s or made.get(r) is s else frozen(s, new[r]) for s, r in pairs)
    states, params = (tuple(new[n] for n in leaves) for leaves in (graph.states, graph.params))
    return replace(graph, states=states, params=params, results=results, output=new[graph.output])


def _frozen(ended: Node, state: Node, value: Value) -> Value:
    over = Value(ended) if state.shape else Value(ended)[0]
    return apply("where", over > 0.5, Value(state), value)


def _in_turn(graphs: Sequence[Graph], kind: str) -> list[Node]:
    """The first state (or result) of every graph, the second, and so on."""
    return [node for each in zip(*(getattr(graph, kind) for graph in graphs), strict=True) for node in each]


def _of_layer(stream: str, layer: int) -> str:
    return f"{layer}.{stream}"


def _arguments(nodes: Iterable[Node]) -> tuple[Argument, ...]:
    return tuple(Argument(n.name, parse_dims(" ".join(map(str, n.shape)))) for n in nodes)


def _network(net: RNN, graph: Graph) -> RNN:
    """An RNN of that one layer."""
    found, cell = copy.copy(net), net.cell
    found.__dict__.pop("draws", None)
    found.num_layers = 1
    inputs, states = _arguments(graph.inputs), _arguments(graph.states)
    found.cell = replace(cell, inputs=inputs, states=states, initial={}, begins={}, constants=())
    found.layers = (Layer(0, net.layers[0].sizes, graph, graph),)
    return found
