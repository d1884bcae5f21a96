"""A network that feeds itself, as a network of its own: what a step emits is a state, which the next step reads.

In: an RNN whose output can be its input. Out: `Loop`, with an RNN of one layer whose call is the whole loop. So whatever
runs sequences runs generation: GPUs do, by any of their ways.

    layers   one graph: layer l + 1 reads what layer l emits in the same step
    fed      a state in place of x: the next row of x where `given` is 1, else what the step emitted
    ended    1 behind a step that emitted `stop`, where nothing was given: from then on all states stay as they are

Inputs: the rows that are given, each a step early; `given`; `stop`, where outputs are single numbers; the cell's others.
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
        raise ConfigError(message("generation: tokens are numbers of the network's dtype", got=got, expected=f"{most} at most", do=do))


def closed(net: RNN) -> Loop:
    """The loop. Its states are those of the network, each with one for every layer, then `fed` and `ended`."""
    first, *others = net.layers[0].graph.inputs
    one = first.shape == (1,)
    fed = Node("state", shape=first.shape, name=FED)
    following, given, stop = first, *(Node("input", shape=(1,), name=name) for name in (GIVEN, STOP))
    output, graphs = fed, list[Graph]()
    for layer in net.layers:
        graphs.append(_one_of(layer, output, others))
        output = graphs[-1].output
    states, results = (_by_name([getattr(graph, kind) for graph in graphs]) for kind in ("states", "results"))
    on = apply("where", Value(given) > 0.5, Value(following), Value(output))
    states, after, inputs = [*states, fed], [*map(Value, results), on], [following, given]
    if one:
        ended = Node("state", shape=(1,), name=ENDED)
        over, hit = Value(ended) > 0.5, apply("logical_and", Value(output) == Value(stop), Value(given) < 0.5)
        after = [v if v.node is s else apply("where", over, Value(s), v) for s, v in zip(states, after, strict=True)]
        after.append(apply("where", hit, 1.0, Value(ended)))
        states, inputs = [*states, ended], [*inputs, stop]
    inputs += others
    own = replace(
        graphs[0],
        inputs=tuple(inputs),
        states=tuple(states),
        params=tuple(p for g in graphs for p in g.params),
        results=tuple(v.node for v in after),
        output=output,
    )
    return Loop(_network(net, own), net, tuple(_of_layer(s, layer.index) for layer in net.layers for s in net.draws))


def _one_of(layer: Layer, x: Node, others: Iterable[Node]) -> Graph:
    """The graph of one layer that reads x, with names of its own."""
    graph, new = layer.graph, dict[Node, Node]()
    new.update(zip(graph.inputs, (x, *others), strict=True))
    for node in graph.nodes():
        if node.op in ("state", "param"):
            new[node] = replace(node, name=weight_name(node.name, layer.index, 0))
        elif node.random:
            new[node] = replace(node, attrs={**node.attrs, "stream": _of_layer(node.attrs["stream"], layer.index)})
        else:
            new.setdefault(node, with_args(node, new))
    for leaf in (*graph.states, *graph.params):  # also those that nothing reads
        new.setdefault(leaf, replace(leaf, name=weight_name(leaf.name, layer.index, 0)))
    mapped = {kind: tuple(new[n] for n in getattr(graph, kind)) for kind in ("states", "params", "results")}
    return replace(graph, output=new[graph.output], **mapped)


def _of_layer(stream: str, layer: int) -> str:
    return f"{layer}.{stream}"


def _by_name(layers: Sequence[Sequence[Node]]) -> list[Node]:
    """Of nodes by layer: the first of every layer, the second, and so on."""
    return [node for each in zip(*layers, strict=True) for node in each]


def _arguments(nodes: Iterable[Node]) -> tuple[Argument, ...]:
    return tuple(Argument(n.name, parse_dims(" ".join(map(str, n.shape)))) for n in nodes)


def _network(net: RNN, graph: Graph) -> RNN:
    """An RNN of that one layer."""
    found, cell = copy.copy(net), net.cell
    found.__dict__.pop("draws", None)
    found.num_layers = 1
    own = {"inputs": _arguments(graph.inputs), "states": _arguments(graph.states)}
    found.cell = replace(cell, **own, initial={}, begins={}, constants=())
    found.layers = (Layer(0, net.layers[0].sizes, graph, graph),)
    return found
