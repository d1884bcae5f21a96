"""Cells with tangents: the equations of a cell, and how their results change along a direction, as one cell.

In: a cell. Out: a cell that has beside every state and parameter a tangent, and whose first input and output have an
axis of two in front: the value, and its tangent. Its output is y and J u, for u the tangents of inputs, first states
and parameters. Its back-propagation gives what differentiates gradients: the gradient of <v, J u> is the second
derivative of the network along u, weighted with v (Pearlmutter, Fast Exact Multiplication by the Hessian, 1994).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from tvm_rnn.graph.graph import Graph, Node, constant, make, with_args
from tvm_rnn.graph.ops import TABLE, Shape

from . import functions, trace
from .cell import Argument, Cell
from .dims import parse_dims
from .trace import Value

END = "_tangent"


class NoTangents(ValueError):
    """A cell has no such form."""


@dataclass(frozen=True, eq=False, repr=False)
class Tangents(Cell):
    """A cell with tangents. base: the cell; parts: directions of the layer below, whose outputs are the first input,
    one after the other."""

    base: Cell = field(kw_only=True)
    parts: int = 1

    def lead(self, sizes: Mapping[str, int]) -> Shape:
        return (2, *self.base.lead(sizes))

    def joined(self, parts: int) -> Tangents:
        return self if parts == self.parts else replace(self, base=self.base.joined(parts), parts=parts)

    def trace(self, sizes: Mapping[str, int], dtype: str = "float32") -> Graph:
        """The base's graph with tangents."""
        return with_tangents(self.base.trace(sizes, dtype), self.parts)

    def __reduce__(self) -> tuple[object, ...]:
        return tangents, (self.base, self.parts)


def tangents(cell: Cell, parts: int = 1) -> Tangents:
    """The cell with tangents. Raises NoTangents where it has constants, draws numbers or begins from parameters."""
    if cell.constants or cell.begins:
        raise NoTangents("constants" if cell.constants else "initial values that are no numbers")
    own = {item.name: getattr(cell, item.name) for item in fields(Cell)}
    first, *rest = cell.inputs
    own["inputs"] = (Argument(first.name, parse_dims(f"2 {first.dims.text}")), *rest, *map(_tangent, rest))
    for kind in ("states", "params"):
        own[kind] = (*own[kind], *map(_tangent, own[kind]))
    return Tangents(**own, base=cell, parts=parts)


def _tangent(argument: Argument) -> Argument:
    return Argument(argument.name + END, argument.dims)


def with_tangents(graph: Graph, parts: int) -> Graph:
    """The graph with tangents. The first input, flat, is [parts, 2, ...], the output [2, ...]. Raises NoTangents."""
    if any(node.random for node in graph.nodes()):
        raise NoTangents("random numbers")
    first, *rest = graph.inputs
    wide = replace(first, shape=(2 * first.shape[0],))
    more = [tuple(replace(leaf, name=leaf.name + END) for leaf in part) for part in (rest, graph.states, graph.params)]
    value, tangent = (_half(wide, parts, number) for number in range(2))
    own, along = {first: value}, {value: tangent}
    for leaves, others in zip((rest, graph.states, graph.params), more, strict=True):
        own |= {leaf: leaf for leaf in leaves}
        along |= dict(zip(leaves, others, strict=True))
    for node in graph.nodes():
        if node not in own:
            own[node] = with_args(node, own)
            if (found := _along(own[node], along)) is not None:
                along[own[node]] = found
    results = [own[node] for node in graph.results]
    changes = [along.get(new) or _nothing(old) for new, old in zip(results, more[1], strict=True)]
    ends = own[graph.output], along.get(own[graph.output])
    if ends[1] is None:
        raise NoTangents("an output that depends on nothing")
    whole = replace(
        graph,
        inputs=(wide, *rest, *more[0]),
        states=(*graph.states, *more[1]),
        params=(*graph.params, *more[2]),
        results=(*results, *changes),
        output=make("concat", ends[0], ends[1], axis=-1),
        output_shape=(2, *(graph.output_shape or graph.output.shape)),
    )
    if not {*whole.params} <= {*whole.nodes()}:
        raise NoTangents("a parameter without gradient")
    return whole


def _half(leaf: Node, parts: int, number: int) -> Node:
    """The values or the tangents of the first input, flat."""
    width = leaf.shape[0] // 2
    apart = make("reshape", leaf, rank=1, to=(parts, 2, width // parts))
    own = make("index", apart, axis=-2, at=number)
    return make("reshape", own, rank=2, to=(width,))


def _nothing(state: Node) -> Node:
    """No change, whatever the state's was."""
    return make("where", make("equal", state, state), *[constant(0.0, len(state.shape))] * 2)


def _along(node: Node, along: Mapping[Node, Node]) -> Node | None:
    """The tangent of a value, of those of its operands; None: it does not change."""
    given = [along.get(arg) for arg in node.args]
    if node.leaf or node.boolean or not any(given):
        return None
    token = trace.LINE.set(node.source or "a tangent")
    try:
        found = _rule(node, [None if part is None else Value(part) for part in given])
        if found is not None and found.shape != node.shape:
            found = functions.repeat(found, node.shape)
        return None if found is None else found.node
    finally:
        trace.LINE.reset(token)


def _rule(node: Node, given: Sequence[Value | None]) -> Value | None:
    op, attrs = TABLE[node.op], dict(node.attrs)
    column = op.gradient
    if column is None or op.kind not in ("pointwise", "move", "reduce", "contract"):
        raise NoTangents(f"the operation {node.op}")
    args, value = [Value(arg) for arg in node.args], Value(node)
    if node.op in ("einsum", "conv"):  # a product, by either operand
        terms = [trace.node(node.op, *_with(args, number, part), **attrs) for number, part in _there(given)]
        return _total([Value(term) for term in terms])
    if node.op == "concat":
        pairs = zip(given, node.args, strict=True)
        parts = [_zeros(arg.shape) if part is None else part for part, arg in pairs]
        return Value(trace.node("concat", *parts, **attrs))
    if node.op == "take":  # linear in the table; places do not change
        return None if given[0] is None else Value(trace.node("take", given[0], args[1], **attrs))
    if given[0] is not None and (op.kind == "move" or node.op == "sum"):
        return Value(trace.node(node.op, given[0], **attrs))
    if given[0] is not None and node.op == "max":
        (share,) = column(functions, _ones(node.shape), value, args, **attrs)
        own: Value = functions.sum(share * given[0], attrs["axis"], keepdims=attrs["keepdims"])
        return own
    # Each result depends on one element of each operand: what a gradient is multiplied with, tangents are too.
    every = ((column(functions, part, value, args, **attrs)[number]) for number, part in _there(given))
    return _total([part for part in every if part is not None])


def _there(given: Sequence[Value | None]) -> list[tuple[int, Value]]:
    return [(number, part) for number, part in enumerate(given) if part is not None]


def _with(args: Sequence[Value], number: int, part: Value) -> list[Value]:
    return [*args[:number], part, *args[number + 1 :]]


def _total(terms: Sequence[Value]) -> Value | None:
    total: Value | None = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _zeros(shape: Shape) -> Value:
    found: Value = functions.repeat(Value(constant(0.0, len(shape))), shape)
    return found


def _ones(shape: Shape) -> Value:
    found: Value = functions.repeat(Value(constant(1.0, len(shape))), shape)
    return found
