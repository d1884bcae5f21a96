"""Heads that read one another: the same layer with all heads' values in one vector.

In: the layout of a layer after all passes. Out: `one_vector`: the layout of a layer whose states are vectors and whose
products of heads are dense, with 0 between heads, for kernels that know nothing of heads; or `NoVector`, with what
cannot be written so. In memory nothing moves: [N, D] and [N D] are the same elements.

The graph says which matrices are blocks along a diagonal ("heads" of a parameter): kernels by mma.sync leave out blocks
of K that are 0 for all units of a warp. Where zeros are multiplied, an infinite value of one head is NaN in others of
its row.

Rewrite: z[n, i] = sum_j R[n, i, j] h[n, j]; V h  -->  z = R' h; V h, with R'[(n, i), (n, j)] = R[n, i, j], else 0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import Graph, Node, constant, make, stepped
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import Shape
from tvm_rnn.passes.combine_gemms import combined
from tvm_rnn.passes.fuse_pointwise import grouped
from tvm_rnn.passes.normalise import normalise

from .value_layout import Layout, PackIndex, Taped
from .weight_packing import Weights


class NoVector(Exception):
    """A step cannot be written with vectors alone; the text says why."""


@dataclass(frozen=True)
class VectorLayout(Layout):
    """whole: the layer's; origin: of an input or a parameter of this graph the layer's value; dense: of a product's
    parameter what it is made of. parts: of what is kept, what the steps write."""

    whole: Layout | None = None
    origin: Mapping[Node, Node] = field(default_factory=dict)
    dense: Mapping[Node, Node] = field(default_factory=dict)
    parts: tuple[Taped, ...] = ()

    @property
    def taped(self) -> tuple[Taped, ...]:
        return self.parts

    def of_layer(self, node: Node) -> Node:
        return self.origin[node]

    def is_first_input(self, node: Node) -> bool:
        return self.whole is not None and self.whole.is_first_input(self.of_layer(node))

    def packed(self, node: Node, elements: int, index: PackIndex) -> tuple[Node, int, PackIndex]:
        return self._made_of(node), elements, index

    def _made_of(self, node: Node) -> Node:
        """A product's parameter, of the layer's parameters."""
        return self.dense.get(node) or replace(node, args=tuple(map(self._made_of, node.args)))


def one_vector(layout: Layout) -> VectorLayout:
    """The layout with vectors in place of heads. Raises NoVector."""
    if layout.weights.stored:
        raise NoVector("weights in 8 bits have scales of rows without zeros")
    graph, flat = stepped(layout.graph), _Flattening(layout)
    if any(len(s.shape) > 2 for s in graph.states) or not flat.pairs:
        raise NoVector("a state is not a vector for each head")
    results = tuple(map(flat.value, graph.results))
    emitted = tuple(flat.value(own.node) for own in layout.taped)
    # A backward graph's output is no value of the step.
    output = flat.value(graph.output) if layout.emits else results[0]
    leaves = {kind: tuple(n for n in flat.origin if n.op == kind) for kind in ("input", "param")}
    states, params = tuple(map(flat.value, graph.states)), (*leaves["param"], *flat.dense)
    own = Graph(graph.cell, graph.dtype, leaves["input"], states, params, results, output, graph.output_name)
    own = replace(own, kind=graph.kind, emitted=emitted)
    with recording(listen=False):  # what the passes say of it is no news: they said it of the layer
        own = grouped(combined(normalise(own)))
    if not layout.emits:
        own = replace(own, output=own.inputs[0])
    weights = Weights(own, layout.weights.number, layout.precision)
    if strange := [n for n in weights.kept if n not in flat.origin]:
        raise NoVector(f"a value of parameters is made of {in_words(strange[0])}")
    found = VectorLayout(own, layout.precision, weights, layout.dtype, layout.directions)
    parts = tuple(replace(tape, node=node) for tape, node in zip(layout.taped, own.emitted, strict=True))
    given = {number: layout.rows(flat.origin[node]) for number, node in enumerate(own.inputs)}
    return replace(found, whole=layout, origin=flat.origin, dense=flat.dense, parts=parts, given=given)


class _Flattening:
    """Values of a layer's step with heads in one axis. pairs: the axes of heads and of their units."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.pairs = {s.shape for s in layout.graph.states if len(s.shape) == 2}
        self.hoisted = frozenset(n for n, group in layout.home.items() if group.region == "before")
        self.origin: dict[Node, Node] = {}
        self.dense: dict[Node, Node] = {}
        self.made: dict[Node, Node] = {}

    def shape(self, shape: Shape) -> Shape:
        return (*shape[:-2], prod(shape[-2:])) if shape[-2:] in self.pairs else shape

    def value(self, node: Node) -> Node:
        if node not in self.made:
            found = self._leaf(node) or self._worked(node)
            same = found.shape == self.shape(node.shape)
            self.made[node] = found if same else self._viewed(found, self.shape(node.shape))
        return self.made[node]

    @staticmethod
    def _viewed(node: Node, shape: Shape) -> Node:
        return make("reshape", node, rank=len(node.shape), to=shape)

    def _leaf(self, node: Node) -> Node | None:
        if node.op == "state":
            return Node("state", shape=self.shape(node.shape), name=node.name)
        if node.scalar is not None:
            return node
        if node.mask:
            raise NoVector("a mask has words of every head")
        kept = self.layout.weights.place(node) is not None
        if not kept and node.op != "input" and node not in self.hoisted:
            if node.leaf:
                raise NoVector(f"{in_words(node)} is read in another form")
            return None
        found = Node("param" if kept else "input", shape=self.shape(node.shape), name=in_words(node))
        self.origin[found] = node
        return found

    def _worked(self, node: Node) -> Node:
        if node.pointwise or node.op == "broadcast":
            attrs = {"to": self.shape(node.shape)} if node.op == "broadcast" else node.attrs
            return make(node.op, *(self._along(a, node) for a in node.args), source=node.source, **attrs)
        if node.op == "reshape":
            own = self.value(node.args[0])
            to = self.shape(node.shape)
            return own if own.shape == to else self._viewed(own, to)
        if node.op == "gemm":
            pairs = zip(node.args[::2], node.args[1::2], strict=True)
            args = [arg for w, x in pairs for arg in (self._parameter(w), self.value(x))]
            return make("gemm", *args, source=node.source, **node.attrs)
        if node.op == "einsum":
            return self._contracted(node)
        if node.op in ("sum", "max", "index", "slice", "flip", "concat"):
            return self._with_axis(node)
        raise NoVector(f"{in_words(node)} is no work on vectors")

    def _along(self, arg: Node, node: Node) -> Node:
        """An operand of equal rank, which may be broadcast."""
        own = self.value(arg)
        if self.shape(node.shape) == node.shape or own.shape != arg.shape:
            return own
        if arg.shape[-2:] != (1, 1):
            raise NoVector(f"{in_words(arg)} is broadcast along heads or their units")
        if arg.scalar is not None:
            return constant(arg.scalar, len(arg.shape) - 1)
        return self._viewed(own, arg.shape[:-1])

    def _with_axis(self, node: Node) -> Node:
        """What has an axis of its operands as an attribute, counted from the end."""
        args, axis = tuple(map(self.value, node.args)), node.attrs["axis"]
        if all(a.shape == b.shape for a, b in zip(args, node.args, strict=True)):
            return make(node.op, *args, source=node.source, **node.attrs)
        if axis >= -2:
            raise NoVector(f"{in_words(node)} is of each head or of each unit")
        return make(node.op, *args, source=node.source, **{**node.attrs, "axis": axis + 1})

    def _parameter(self, node: Node, **attrs: int) -> Node:
        """heads: how many blocks lie along the diagonal."""
        found = Node("param", attrs=attrs, shape=node.shape, name=in_words(node))
        self.dense[found] = node
        return found

    def _contracted(self, node: Node) -> Node:
        """A parameter of every head times a vector of every head."""
        inputs, out = node.attrs["spec"].split("->")
        texts, free = inputs.split(","), [a in self.layout.weights.free for a in node.args]
        if sorted(free) != [False, True]:
            raise NoVector(f"{in_words(node)} is no product with a parameter")
        letters, read = (texts[free.index(own)] for own in (True, False))
        weight, vector = (node.args[free.index(own)] for own in (True, False))
        if vector.shape not in self.pairs or node.shape[-2:] not in self.pairs or out[-2] != read[0]:
            raise NoVector(f"{in_words(node)} is no product of vectors of heads")
        head, unit, deep = read[0], out[-1], read[1]
        if deep in out or unit in read or {*letters} - {head} != {*out[:-2], unit, deep}:
            raise NoVector(f"{in_words(node)} is no product of vectors of heads")
        if head not in letters:
            weight = make("reshape", weight, rank=len(weight.shape), to=(1, *weight.shape))
            weight = make("broadcast", weight, to=(vector.shape[0], *weight.shape[1:]))
            letters = head + letters
        order = tuple(letters.index(t) for t in (head, *out[:-2], unit, deep))
        turned = make("transpose", weight, axes=order)
        heads, *lead, units, depth = turned.shape
        rows = make("reshape", turned, rank=len(turned.shape), to=(heads, prod(lead) * units, depth))
        rows = make("reshape", block_diagonal(rows), rank=3, to=(heads, *lead, units, heads * depth))
        after = len(lead) + 1
        rows = make("transpose", rows, axes=(*range(1, after), 0, after, after + 1))
        matrix = make("reshape", rows, rank=after + 2, to=(*lead, heads * units, heads * depth))
        matrix = self._parameter(matrix, heads=heads)
        spec = f"{out[:-2]}{unit}{deep},{deep}->{out[:-2]}{unit}"
        return make("einsum", matrix, self.value(vector), source=node.source, spec=spec)


def block_diagonal(blocks: Node) -> Node:
    """Of [N, A, K] the matrix [N, A, N K] with the n-th block at columns n K and on, and 0 elsewhere: each row with
    zeros behind it, cut where the next block's must begin."""
    heads, rows, depth = blocks.shape
    turned = make("transpose", blocks, axes=(1, 0, 2))
    zeros = make("broadcast", constant(0.0, 3), to=(rows, heads, heads * depth))
    wide = make("concat", turned, zeros, axis=-1)
    line = make("reshape", wide, rank=3, to=(rows, heads * (heads + 1) * depth))
    line = make("slice", line, axis=-1, start=0, stop=heads * heads * depth)
    return make("transpose", make("reshape", line, rank=2, to=(rows, heads, heads * depth)), axes=(1, 0, 2))
