"""A graph of many members: every value of a step's graph gets one more axis in front, of independent copies.

In: the traced graph of one network's layer. Out: the graph of `count` such layers, each with inputs, states and
parameters of its own: products become products in groups, as those of heads are. Numbers of the equations are shared.
"""

from __future__ import annotations

import string
from dataclasses import replace

from .graph import Attributes, Graph, Node, make
from .ops import TABLE, Shape


class NoMembers(ValueError):
    """An operation has no form with one more axis."""


def batched(graph: Graph, count: int, parts: int = 1) -> Graph:
    """The graph of `count` members. The first input, flat as ever, is [parts, count, ...]: what `parts` directions of
    the layer below hand on; the output is [count, ...]. Raises NoMembers."""
    made: dict[Node, Node] = {}
    inputs = []
    for number, leaf in enumerate(graph.inputs):
        if number:
            own = value = _leaf(leaf, count)
        else:
            own = replace(leaf, shape=(count * leaf.shape[0],))
            value = _first(own, count, parts, leaf.shape[0])
        made[leaf] = value
        inputs.append(own)
    for leaf in (*graph.states, *graph.params):
        made[leaf] = _leaf(leaf, count)
    for node in graph.nodes():
        if node not in made:
            made[node] = _lifted(node, [made[arg] for arg in node.args], count)
    results = [_whole(made[node], count) for node in graph.results]
    shape = (count, *(graph.output_shape or graph.output.shape))
    output = _reshaped(_whole(made[graph.output], count), (count * graph.output.shape[0],))
    states, params = (tuple(made[leaf] for leaf in leaves) for leaves in (graph.states, graph.params))
    return replace(
        graph,
        inputs=tuple(inputs),
        states=states,
        params=params,
        results=tuple(results),
        output=output,
        output_shape=shape,
        sizes={**graph.sizes},
    )


def _leaf(leaf: Node, count: int) -> Node:
    return replace(leaf, shape=(count, *leaf.shape))


def _first(leaf: Node, count: int, parts: int, width: int) -> Node:
    """The first input by members."""
    if parts == 1:
        return _reshaped(leaf, (count, width))
    apart = _reshaped(leaf, (parts, count, width // parts))
    return _reshaped(make("transpose", apart, axes=(1, 0, 2), source=leaf.source), (count, width))


def _reshaped(node: Node, to: Shape) -> Node:
    return node if node.shape == to else make("reshape", node, rank=len(node.shape), to=to, source=node.source)


def _whole(node: Node, count: int) -> Node:
    """A value that may be shared, of each member."""
    if node.shape[0] == count:
        return node
    return make("broadcast", node, to=(count, *node.shape[1:]), source=node.source)


def _lifted(node: Node, args: list[Node], count: int) -> Node:
    """The node on arguments that have the axis: of size `count`, or 1 where all members share them."""
    if node.op == "const":
        assert node.value is not None
        return replace(node, shape=(1, *node.shape), value=node.value.reshape(1, *node.shape))
    attrs: Attributes = {**node.attrs}
    kind = TABLE[node.op].kind
    if node.op == "einsum":
        return _product(node, args)
    if node.op in ("take", "conv", "windows") or kind not in ("pointwise", "move", "reduce", "random"):
        raise NoMembers(node.op)
    if node.op == "reshape":
        attrs |= {"rank": attrs["rank"] + 1, "to": (args[0].shape[0], *attrs["to"])}
    elif node.op == "broadcast":
        attrs["to"] = (args[0].shape[0], *attrs["to"])
    elif node.op == "transpose":
        attrs["axes"] = (0, *(axis + 1 for axis in attrs["axes"]))
    elif node.op == "concat" and len({arg.shape[0] for arg in args}) > 1:
        args = [_whole(arg, count) for arg in args]
    elif kind == "random":
        attrs["to"] = (count, *attrs["to"])
    return make(node.op, *args, source=node.source, **attrs)


def _product(node: Node, args: list[Node]) -> Node:
    """An einsum with one letter more, of the operands that differ from member to member."""
    spec = str(node.attrs["spec"])
    inputs, result = spec.split("->")
    letter = next(one for one in string.ascii_letters if one not in spec)
    shared = [arg.shape[0] == 1 for arg in args]
    if all(shared):
        shared = [False, False]
    words = [text if alike else letter + text for text, alike in zip(inputs.split(","), shared, strict=True)]
    operands = [_reshaped(arg, arg.shape[1:]) if alike else arg for arg, alike in zip(args, shared, strict=True)]
    return make("einsum", *operands, spec=f"{','.join(words)}->{letter}{result}", source=node.source)
