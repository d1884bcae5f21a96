"""One head of a layer: where states have an axis along which a step reads no other element, the layer of one element.

In: the layout of a layer after all passes. Out: `one_head`: the layout of a layer that is one of its heads, which knows
where each value's part of a head lies among those of all heads; or `Coupled`, with what reads several heads. Kernels
run it as they run any layer, with weights of its own: heads are to their blocks what slices of a batch are.

A value is cut along one axis, in which heads are outermost: [G, N, H] and [N H] become [G, H] and [H]. What has no such
axis is the same for all heads.

Rewrite: z[g, n, a] = sum_k R[g, n, a, k] h[n, k]  -->  for each n: z[g, a] = sum_k R[g, a, k] h[k]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import gcd, prod

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import Graph, Node, constant, depends, make, stepped
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import TABLE, Shape
from tvm_rnn.passes.combine_gemms import combined
from tvm_rnn.passes.fuse_pointwise import grouped
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.tir.expr import Expr

from .pointers import Place
from .value_layout import Layout, PackIndex, Taped
from .weight_packing import Weights

Cut = int | None  # the axis of a value in which heads are outermost; None: it is the same for all heads


class Coupled(Exception):
    """A step reads values of several heads; the text says where."""


@dataclass(frozen=True)
class HeadLayout(Layout):
    """The layout of one of `heads` heads. whole: the layer's; origin: of an input or a parameter of the head's graph
    the layer's value, and how that is cut. parts: of what is kept, what the steps write."""

    whole: Layout | None = None
    origin: Mapping[Node, tuple[Node, Cut]] = field(default_factory=dict)
    lifted: Mapping[Node, Node] = field(default_factory=dict)  # of a product's parameter: [N, *shape], of all heads
    parts: Sequence[Taped] = ()

    @property
    def taped(self) -> Sequence[Taped]:
        return self.parts

    @property
    def of_all(self) -> Layout:
        assert self.whole is not None
        return self.whole

    def of_layer(self, node: Node) -> Node:
        found = self.origin[node][0]
        while _is_view(found):
            (found,) = found.args
        return found

    def is_first_input(self, node: Node) -> bool:
        return self.whole is not None and self.whole.is_first_input(self.of_layer(node))

    def packed(self, node: Node, elements: int, index: PackIndex) -> tuple[Node, int, PackIndex]:
        """Of all heads, in the order that each has it in."""

        def of_heads(at: Expr) -> tuple[tuple[Expr, ...], Expr]:
            found, valid = index(tirx.floormod(at, elements))
            return (tirx.floordiv(at, elements), *found), valid

        return self.lifted[node], elements * self.heads, of_heads

    def side_by_side(self, node: Node) -> int:
        if node not in self.origin:
            return prod(node.shape)
        return _side_by_side(*self.origin[node], self.heads)


def _is_view(node: Node) -> bool:
    """Whether it is the elements of another value, in their order."""
    return node.op == "reshape"


def _side_by_side(value: Node, cut: Cut, heads: int) -> int:
    return 0 if cut is None else prod(value.shape[cut:]) // heads


def one_head(layout: Layout) -> HeadLayout | None:
    """The layout of one head; None where no product of the step has an axis of heads. Raises Coupled."""
    reason: Coupled | None = None
    for heads in _counts(layout.graph):
        try:
            return of_heads(layout, heads)
        except Coupled as found:
            reason = reason or found
    if reason is not None:
        raise reason
    return None


def _counts(graph: Graph) -> list[int]:
    """How many heads there may be: sizes of axes of what is made of states, in a product of the step and its result."""
    found, leaves = set[int](), depends(graph.nodes())
    for node in graph.nodes():
        if node.op == "einsum" and graph.region_of(node) == "step":
            inputs, out = node.attrs["spec"].split("->")
            late = {
                t for own, arg in zip(inputs.split(","), node.args, strict=True) if "state" in leaves[arg] for t in own
            }
            found |= {size for t, size in zip(out, node.shape, strict=True) if t in late and size > 1}
    return sorted(found, reverse=True)


def of_heads(layout: Layout, heads: int) -> HeadLayout:
    """The layout of one of so many heads. Raises Coupled."""
    if layout.weights.stored:
        raise Coupled("weights in 8 bits have scales of all heads")
    graph = stepped(layout.graph)
    cut = _Cutting(layout, heads)
    results = tuple(cut.value(r, cut.of_state(s)) for s, r in zip(graph.states, graph.results, strict=True))
    taped = {own: cut.of_kept(own.node) for own in layout.taped}
    emitted = tuple(cut.value(own.node, at) for own, at in taped.items())
    # A backward graph's output is no value of the step.
    output = cut.value(graph.output, cut.of_state(graph.output)) if layout.emits else (*results, *emitted)[0]
    leaves = {kind: tuple(n for n in cut.origin if n.op == kind) for kind in ("input", "param")}
    states = tuple(cut.states[s] for s in graph.states)
    own = Graph(graph.cell, graph.dtype, leaves["input"], states, leaves["param"], results, output, graph.output_name)
    own = replace(own, kind=graph.kind, emitted=emitted)
    with recording(listen=False):  # what the passes say of it is no news: they said it of the layer
        own = grouped(combined(normalise(own)))
    if not layout.emits:
        own = replace(own, output=own.inputs[0])
    weights = Weights(own, layout.weights.number, layout.precision, layout.weights.stored)
    if strange := [n for n in weights.kept if n not in cut.origin]:
        raise Coupled(f"a value of parameters is made of {in_words(strange[0])}")
    products = [g.root for g in own.groups if g.kind == "gemm" and g.root is not None]
    lifted = {w: _lifted(w, cut.origin, heads) for root in products for w in root.args[::2]}
    found = HeadLayout(own, layout.precision, weights, layout.dtype, layout.directions * heads)
    parts = [
        replace(whole, node=node, apart=_side_by_side(whole.node, at, heads))
        for (whole, at), node in zip(taped.items(), own.emitted, strict=True)
    ]
    found = replace(found, whole=layout, heads=heads, origin=cut.origin, lifted=lifted, parts=parts, sums=layout.sums)
    given = {number: _place(found, node) for number, node in enumerate(own.inputs)}
    return replace(found, given=given)


def _place(layout: HeadLayout, node: Node) -> Place:
    """Of an input of the head's graph: rows of all heads, that head's part of which may be less aligned. A call that
    gives x itself looks where it begins."""
    assert layout.whole is not None
    place = layout.whole.rows(layout.of_layer(node))
    if layout.is_first_input(node):
        place = replace(place, align=gcd(16, place.row_stride * ITEM_BYTES[place.dtype]))
    return replace(place, align=gcd(place.align, layout.side_by_side(node) * ITEM_BYTES[place.dtype]))


class _Cutting:
    """Values of a layer's step as those of one head. origin: of each leaf that is made."""

    def __init__(self, layout: Layout, heads: int) -> None:
        self.layout, self.heads = layout, heads
        self.hoisted = frozenset(n for n, group in layout.home.items() if group.region == "before")
        self.states: dict[Node, Node] = {}
        self.origin: dict[Node, tuple[Node, Cut]] = {}
        self.made: dict[tuple[Node, Cut], Node] = {}
        self.views: dict[tuple[Node, Shape], Node] = {}

    def of_state(self, node: Node) -> int:
        """Where a state, or the output, has its heads."""
        axes = [a for a, size in enumerate(node.shape) if size == self.heads]
        axes += [a for a, size in enumerate(node.shape) if size % self.heads == 0]
        if not axes:
            raise Coupled(f"{in_words(node)} has no axis of {self.heads} heads")
        return axes[0]

    def of_kept(self, node: Node) -> int:
        """Where a value that is kept for later has its heads."""
        known = [cut for other, cut in self.made if other is node and cut is not None]
        axes = [a for a, size in enumerate(node.shape) if size == self.heads]
        axes += [a for a, size in enumerate(node.shape) if size % self.heads == 0 and size != self.heads]
        for axis in (*known, *axes):
            with suppress(Coupled):
                self.value(node, axis)
                return axis
        raise Coupled(f"{in_words(node)}, which training keeps, reads all heads")

    def value(self, node: Node, cut: Cut) -> Node:
        if (node, cut) not in self.made:
            self.made[node, cut] = self._leaf(node, cut) or self._worked(node, cut)
        return self.made[node, cut]

    def _shape(self, shape: Shape, cut: Cut) -> Shape:
        if cut is None:
            return shape
        own = () if shape[cut] == self.heads else (shape[cut] // self.heads,)
        return (*shape[:cut], *own, *shape[cut + 1 :])

    def _leaf(self, node: Node, cut: Cut) -> Node | None:
        if node.op == "state":
            if cut != self.of_state(node):
                raise Coupled(f"a value of one head reads {node.name} of all")
            return self.states.setdefault(node, Node("state", shape=self._shape(node.shape, cut), name=node.name))
        if node.scalar is not None:
            return constant(node.scalar, len(self._shape(node.shape, cut)))
        if node.mask:
            raise Coupled("a mask has words of all heads")
        kept = node.op == "param" or self.layout.weights.place(node) is not None
        return self._read(node, cut, "param" if kept else "input") if kept or self._is_row(node) else None

    def _is_row(self, node: Node) -> bool:
        """Whether a value is there before the steps: an input, or hoisted."""
        return node.op == "input" or node in self.hoisted

    def _read(self, node: Node, cut: Cut, op: str) -> Node:
        found = Node(op, shape=self._shape(node.shape, cut), name=in_words(node))
        self.origin[found] = node, cut
        return found

    def _read_once(self, view: Node, cut: Cut) -> Node:
        if (view, cut) not in self.made:
            self.made[view, cut] = self._read(view, cut, "input")
        return self.made[view, cut]

    def _worked(self, node: Node, cut: Cut) -> Node:
        if node.pointwise or node.op == "broadcast":
            attrs = {"to": self._shape(node.shape, cut)} if node.op == "broadcast" else node.attrs
            return make(node.op, *(self._along(a, node, cut) for a in node.args), source=node.source, **attrs)
        if node.op == "einsum":
            return self._contracted(node, cut)
        if node.op == "reshape":
            return self._reshaped(node, cut)
        if node.op in ("sum", "max", "index", "slice", "flip", "concat"):
            return self._with_axis(node, cut)
        if node.op == "transpose":
            return self._transposed(node, cut)
        raise Coupled(f"{in_words(node)} reads all heads")

    def _along(self, arg: Node, node: Node, cut: Cut) -> Node:
        """An operand of equal rank, which may be broadcast."""
        if cut is None or arg.shape[cut] == node.shape[cut]:
            return self.value(arg, cut)
        same = self.value(arg, None)
        gone = node.shape[cut] == self.heads
        return make("index", same, axis=cut - len(arg.shape), at=0) if gone else same

    def _contracted(self, node: Node, cut: Cut) -> Node:
        inputs, out = node.attrs["spec"].split("->")
        letter = "" if cut is None else out[cut]
        gone = letter if cut is not None and node.shape[cut] == self.heads else ""
        args = [
            self.value(arg, own.index(letter) if letter and letter in own else None)
            for own, arg in zip(inputs.split(","), node.args, strict=True)
        ]
        spec = node.attrs["spec"].replace(gone, "") if gone else node.attrs["spec"]
        return make("einsum", *args, source=node.source, spec=spec)

    def _reshaped(self, node: Node, cut: Cut) -> Node:
        (arg,) = node.args
        if cut is None:
            return replace(node, args=(self.value(arg, None),))
        before = prod(node.shape[:cut])
        axes = [a for a, size in enumerate(arg.shape) if prod(arg.shape[:a]) == before and size % self.heads == 0]
        if not axes and self._is_row(arg):  # gates lie outside of heads: what is read is the view
            return self._read_once(node, cut)
        if not axes:
            raise Coupled(f"a view of {in_words(arg)} mixes heads")
        own, to = self.value(arg, axes[0]), self._shape(node.shape, cut)
        return make("reshape", own, source=node.source, rank=len(own.shape), to=to)

    def _with_axis(self, node: Node, cut: Cut) -> Node:
        """What has an axis of its operand as an attribute, counted from the end."""
        rank = len(node.args[0].shape)
        axis = rank + node.attrs["axis"]
        removed = len(node.shape) < rank
        if cut is None:
            return replace(node, args=tuple(self.value(a, None) for a in node.args))
        cut += removed and cut >= axis
        if cut == axis:
            return self._part(node, cut)
        args = [self.value(a, cut) for a in node.args]
        gone = node.args[0].shape[cut] == self.heads
        attrs = {**node.attrs, "axis": (axis - (gone and cut < axis)) - (rank - gone)}
        return make(node.op, *args, source=node.source, **attrs)

    def _part(self, node: Node, cut: int) -> Node:
        """One of several parts of a row, each of all heads: what is read is the view [parts, heads x units]."""
        (row, *more), size = node.args, node.shape[cut]
        start, whole = node.attrs.get("start", 0), row.shape[cut]
        if node.op != "slice" or more or not self._is_row(row) or start % size or whole % size:
            raise Coupled(f"{in_words(node)} reads all heads")
        to = (*row.shape[:cut], whole // size, size, *row.shape[cut + 1 :])
        view = self.views.setdefault((row, to), make("reshape", row, rank=len(row.shape), to=to))
        own = self._read_once(view, cut + 1)
        return make("index", own, source=node.source, axis=cut - len(own.shape), at=start // size)

    def _transposed(self, node: Node, cut: Cut) -> Node:
        (arg,), axes = node.args, tuple(node.attrs["axes"])
        if cut is None:
            return replace(node, args=(self.value(arg, None),))
        own = axes[cut]
        if arg.shape[own] == self.heads:
            axes = tuple(a - (a > own) for a in axes if a != own)
        return make("transpose", self.value(arg, own), source=node.source, axes=axes)


def _lifted(node: Node, origin: Mapping[Node, tuple[Node, Cut]], heads: int) -> Node:
    """A value that is made of one head's parameters, of all heads: [N, *shape]."""
    if node in origin:
        value, cut = origin[node]
        if cut is None:
            wide = make("reshape", value, rank=len(value.shape), to=(1, *value.shape))
            return make("broadcast", wide, to=(heads, *value.shape))
        apart = (*value.shape[:cut], heads, value.shape[cut] // heads, *value.shape[cut + 1 :])
        axes = (cut, *(a for a in range(len(apart)) if a != cut))
        turned = make("transpose", make("reshape", value, rank=len(value.shape), to=apart), axes=axes)
        return make("reshape", turned, rank=len(turned.shape), to=(heads, *node.shape))
    if TABLE[node.op].kind != "move":
        raise Coupled(f"a product's parameter is {in_words(node)}")
    args = [_lifted(a, origin, heads) for a in node.args]
    attrs = dict(node.attrs)
    if node.op == "transpose":
        attrs["axes"] = (0, *(a + 1 for a in attrs["axes"]))
    elif node.op in ("reshape", "broadcast"):
        attrs["to"] = (heads, *attrs["to"])
    if node.op == "reshape":
        attrs["rank"] += 1
    return make(node.op, *args, **attrs)
