"""A cell of images as a cell of pixels: every pixel is a row of its own, and a convolution is a product that reads the
rows around it.

In: a normalised graph (of training with its backward graph) whose states are images [C, *S] of one size S. Out: the
same equations without the axes S: inputs, states and values have their channels alone, and where there were B rows
there are B * prod(S), the pixels of a batch row one after the other; None where an equation does more to these axes
than to convolve along them. A convolution becomes a `gemm` whose operand is `neighbours`: im2col as a way of
addressing an operand, so that everything that is made for products of vectors holds for images too.

Rewrite: einsum("cuvf,cuvyx->fyx", K, windows(pad(h)))       -->  gemm(K[f, (u, v, c)], neighbours(h))
         einsum_rows("fyx,cuvyx->fcuv", d, windows(pad(h)))  -->  einsum_rows("f,k->fk", d, neighbours(h))
         p[f, y, x] * c                                      -->  at_pixel(p[y, x, f]) * c
         sum_rows(d[f, y, x])                                -->  sum_images(d)[y, x, f]

Source: Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep Learning", section 3 (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tvm_rnn.graph.graph import Graph, Layers, Node, constant, depends
from tvm_rnn.graph.node_text import in_words
from tvm_rnn.graph.ops import TABLE, Shape

from ..decisions import tell
from .normalise import Builder

CHANNELS = 8  # what a tap's channels are padded to: 16 bytes of 16 bits, which the hardware copies at a time


class _NotOfPixelsError(Exception):
    """What does more to an image than to convolve it."""


def of_pixels(layers: Layers) -> Layers:
    """The layers as graphs of pixels, where all of them can be; else the layers themselves."""
    found = []
    for graph in layers.graphs:
        try:
            found.append(_graph(graph))
        except _NotOfPixelsError as reason:
            if _taps(graph):
                tell(False, "each pixel a row of its own, convolutions as products", str(reason))
            return layers
    if len({prod(graph.pixels) for graph in found}) != 1:
        tell(False, "each pixel a row of its own, convolutions as products", "layers have images of different sizes")
        return layers
    size = " x ".join(map(str, found[0].pixels))
    tell(True, "each pixel a row of its own, convolutions as products", f"images of {size} are convolved, and no more")
    return Layers(tuple(found), layers.of_layer)


def _taps(graph: Graph) -> int:
    """Along how many axes the graph convolves; 0: it does not."""
    return next((len(node.attrs["taps"]) for node in graph.nodes() if node.op == "windows"), 0)


def _graph(graph: Graph) -> Graph:
    rank = _taps(graph)
    if not rank or any(len(state.shape) != rank + 1 for state in graph.states):
        raise _NotOfPixelsError("states are no images that are convolved")
    size = graph.states[0].shape[1:]
    made = _Pixels(graph, size).graph()
    if graph.backward is None:
        return made
    return replace(made, backward=_Pixels(graph.backward, size).graph())


@dataclass
class _Pixels:
    """One graph. size: S. new: what nodes become, of those that can; summed: nodes without some of the axes of S, whose
    sums are still to be made, with these axes."""

    old: Graph
    size: Shape
    builder: Builder = field(default_factory=Builder)
    new: dict[Node, Node] = field(default_factory=dict)
    summed: dict[Node, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rank, self.area = len(self.size), prod(self.size)
        self.reasons: dict[Node, str] = {}

    def graph(self) -> Graph:
        old = self.old
        nodes = old.nodes()
        self.leaves = depends(nodes)
        if any(node.random for node in nodes):
            raise _NotOfPixelsError("masks and random numbers are numbered by the elements of a whole row")
        leaves = [*old.inputs, *old.states]
        self.new = {node: self._leaf(node) for node in leaves}
        for node in nodes:
            if node in self.new:
                continue
            if not self.leaves[node]:
                self.new[node] = node
                continue
            made = self._again(node) if self._sums(node) else self._made(node)
            if made is not None:
                self.new[node] = made

        def of(node: Node) -> Node:
            if node not in self.new or node in self.summed:
                raise _NotOfPixelsError(self._reason(node))
            return self.new[node]

        return replace(
            old,
            inputs=tuple(map(of, old.inputs)),
            states=tuple(map(of, old.states)),
            results=tuple(map(of, old.results)),
            output=self._vector(of(old.output)),
            emitted=tuple(map(of, old.emitted)),
            weight_gradients=tuple(map(of, old.weight_gradients)),
            region={self.new[node]: where for node, where in old.region.items() if node in self.new},
            pixels=self.size,
        )

    def _reason(self, node: Node) -> str:
        """Which operation stands in the way: the first one."""
        below = [node]
        while below:
            node = below.pop()
            left = [a for a in node.args if a not in self.new]
            if not left:
                break
            below = left[:1]
        return f"{in_words(node)} is more than a convolution"

    def _sums(self, node: Node) -> bool:
        """Whether a node is made of sums over rows that are there."""
        return "sum_rows" in self.leaves[node] and TABLE[node.op].kind != "sum_rows"

    # --- nodes -----------------------------------------------------------------------------------------------------

    def make(self, op: str, *args: Node, source: str = "", **attrs: object) -> Node:
        return self.builder.make(op, *args, source=source, **attrs)

    def _leaf(self, node: Node) -> Node:
        """An input or state: an image, or one as a vector."""
        flat = len(node.shape) == 1 and node.shape[0] % self.area == 0
        if not flat and node.shape[-self.rank :] != self.size:
            raise _NotOfPixelsError(f"{node.name} has no image of {' x '.join(map(str, self.size))}")
        lead = (node.shape[0] // self.area,) if flat else node.shape[: -self.rank]
        return replace(node, shape=lead or (1,))

    def _again(self, node: Node) -> Node | None:
        if any(a not in self.new for a in node.args):
            return None
        return self.make(node.op, *(self.new[a] for a in node.args), source=node.source, **node.attrs)

    def _made(self, node: Node) -> Node | None:
        """What a node of rows becomes; None where it is none of pixels."""
        if node.op in ("sum_rows", "einsum_rows"):
            return self._sum_rows(node) if node.op == "sum_rows" else self._product_of_rows(node)
        if node.op == "einsum":
            return self._product(node)
        if node.op == "reshape":
            return self._reshape(node)
        if node.op in ("sum", "max"):
            return self._reduced(node)
        if node.shape[-self.rank :] != self.size or len(node.shape) == self.rank:
            return None
        if node.pointwise and node.op != "take":
            args = [self._operand(a, len(node.shape)) for a in node.args]
            return None if None in args else self._put(node, *(a for a in args if a is not None))
        args = [self.new.get(a) for a in node.args if a not in self.summed]
        own = [a for a in args if a is not None]
        if len(own) < len(node.args):
            return None
        attrs = dict(node.attrs)
        if node.op in ("index", "slice", "flip", "concat") and attrs["axis"] < -self.rank:
            if any(not self.leaves[a] for a in node.args):
                return None
            return self._put(node, *own, axis=attrs["axis"] + self.rank)
        if node.op == "transpose":
            lead = len(node.shape) - self.rank
            keeps = tuple(attrs["axes"][lead:]) == tuple(range(lead, len(node.shape)))
            return self._put(node, *own, axes=tuple(attrs["axes"][:lead])) if keeps else None
        if node.op == "broadcast" and node.args[0].shape[-self.rank :] == self.size:
            return self._put(node, *own, to=tuple(attrs["to"][: -self.rank]))
        return None

    def _put(self, node: Node, *args: Node, **changed: object) -> Node:
        return self.make(node.op, *args, source=node.source, **{**node.attrs, **changed})

    def _operand(self, node: Node, rank: int) -> Node | None:
        """What a pointwise operation reads: a value of pixels, or a parameter, one for all of them or one for each."""
        if self.leaves[node]:
            whole = node.shape[-self.rank :] == self.size and node not in self.summed
            return self.new.get(node) if whole else None
        if len(node.shape) != rank:
            return None
        lead, size = node.shape[: -self.rank], node.shape[-self.rank :]
        if all(one == 1 for one in size):
            return self.make("reshape", node, rank=rank, to=lead)
        if size != self.size:
            node = self.make("broadcast", node, to=(*lead, *self.size))
        axes = (*range(len(lead), rank), *range(len(lead)))
        table = self.make("transpose", node, source=node.source, axes=axes)
        row = next(self.new[leaf] for leaf in (*self.old.inputs, *self.old.states))
        return self.make("at_pixel", table, self._vector(row), source=node.source, image=self.size)

    def _reshape(self, node: Node) -> Node | None:
        """Of an image's channels, or of a whole image to a vector and back."""
        x, (own, to) = self.new.get(node.args[0]), (node.args[0].shape, node.shape)
        if x is None or node.args[0] in self.summed:
            return None
        images = [shape[-self.rank :] == self.size and len(shape) > self.rank for shape in (own, to)]
        flat = [len(shape) == 1 for shape in (own, to)]
        if not all(image or vector for image, vector in zip(images, flat, strict=True)):
            return None
        lead = to[: -self.rank] if images[1] else (to[0] // self.area,)
        if prod(lead) != prod(x.shape):
            return None
        return self.make("reshape", x, source=node.source, rank=len(x.shape), to=lead)

    def _vector(self, x: Node) -> Node:
        return self.make("reshape", x, source=x.source, rank=len(x.shape), to=(prod(x.shape),))

    def _reduced(self, node: Node) -> Node | None:
        """Over channels; of sums over pixels, which sums over rows make later, only the axis is noted."""
        x, axis = self.new.get(node.args[0]), node.attrs["axis"]
        if x is None:
            return None
        if axis >= -self.rank:
            if node.op != "sum" or not node.attrs["keepdims"]:
                return None
            self.summed[node] = self.summed.get(node.args[0], frozenset()) | {axis}
            return x
        if node.args[0] in self.summed or node.args[0].shape[-self.rank :] != self.size:
            return None
        return self._put(node, x, axis=axis + self.rank)

    # --- products --------------------------------------------------------------------------------------------------

    def _product(self, node: Node) -> Node | None:
        """A convolution with a kernel of parameters, or a product with a matrix of them at each pixel."""
        inputs, out = node.attrs["spec"].split("->")
        (kernel, seen), (left, right) = node.args, inputs.split(",")
        if self.leaves[kernel] or not self.leaves[seen] or out[-self.rank :] != right[-self.rank :]:
            return None
        if node.shape[-self.rank :] != self.size or len(node.shape) == self.rank:
            return None
        lead, around = out[: -self.rank], self._around(seen)
        channel, taps = right[0], right[1 : -self.rank]
        if around is None or sorted(left) != sorted(channel + taps + lead) or len(around.taps) != len(taps):
            return None
        order = [left.index(letter) for letter in lead + taps + channel]
        shape = tuple(kernel.shape[i] for i in order)
        kernel = self.make("transpose", kernel, source=node.source, axes=tuple(order))
        kernel = self.make(
            "reshape", kernel, rank=len(shape), to=(prod(shape[: len(lead)]), prod(around.taps), shape[-1])
        )
        results = shape[: len(lead)]
        gates = results[0] if len(results) == 2 else 1
        found = [self._gate(node, kernel, around, (gate, gates)) for gate in range(gates)]
        if len(results) != 2:
            return self.make("reshape", found[0], rank=1, to=results)
        rows = [self.make("reshape", one, rank=1, to=(1, *results[1:])) for one in found]
        return rows[0] if gates == 1 else self.make("concat", *rows, axis=-2)

    def _gate(self, node: Node, kernel: Node, around: _Around, part: tuple[int, int]) -> Node:
        """The products of a part of the results, number and count of which are given: of each part of the channels."""
        total, size = None, kernel.shape[0] // part[1]
        own = self.make("slice", kernel, axis=-3, start=part[0] * size, stop=(part[0] + 1) * size)
        for first, x in around.pieces(self):
            weight = self.make("slice", own, axis=-1, start=first, stop=first + x.shape[0])
            weight = self._depth(weight, around.wide(x))
            product = self.make("gemm", weight, around.operand(self, x), source=node.source)
            total = product if total is None else self.make("add", total, product, source=node.source)
        assert total is not None
        return total

    def _depth(self, kernel: Node, wide: int) -> Node:
        """[N, taps, C] as [N, K], with 0 for channels that are not there."""
        results, taps, channels = kernel.shape
        if wide > channels:
            zeros = self.make("broadcast", self.builder.leaf(constant(0.0, 3)), to=(results, taps, wide - channels))
            kernel = self.make("concat", kernel, zeros, axis=-1)
        return self.make("reshape", kernel, rank=3, to=(results, taps * wide))

    def _around(self, seen: Node) -> _Around | None:
        """What a product reads at each pixel: an image's taps, or its channels alone."""
        if seen.op != "windows":
            x = self.new.get(seen)
            image = seen.shape[-self.rank :] == self.size and len(seen.shape) == self.rank + 1
            return _Around(x, (), (), (), self.size) if x is not None and image and seen not in self.summed else None
        below, before = _unpadded(seen.args[0], self.rank)
        x = self.new.get(below)
        if x is None or below.shape[1:] != self.size:
            return None
        return _Around(x, seen.attrs["taps"], seen.attrs["dilation"], before, self.size)

    def _sum_rows(self, node: Node) -> Node | None:
        """Rows are pixels: a sum over both is one over rows. One over rows alone is made for each pixel, and of these
        sums that over the other axes."""
        below = node.args[0]
        x, axes = self.new.get(below), self.summed.get(below, frozenset())
        if x is None or len(below.shape) <= self.rank:
            return None
        if axes == frozenset(range(-self.rank, 0)):
            return self.make("reshape", self._put(node, x, rank=len(x.shape)), rank=len(x.shape), to=node.shape)
        found = self.make("sum_images", x, source=node.source, rank=len(x.shape), image=self.size)
        order = (*range(self.rank, len(found.shape)), *range(self.rank))
        found = self.make("transpose", found, source=node.source, axes=order)
        for axis in sorted(axes):
            found = self.make("sum", found, source=node.source, axis=axis, keepdims=True)
        return self.make("reshape", found, rank=len(found.shape), to=node.shape)

    def _product_of_rows(self, node: Node) -> Node | None:
        """The gradient of a kernel: of each part of what is above, with what taps saw."""
        inputs, out = node.attrs["spec"].split("->")
        (above, seen), (left, right) = node.args, inputs.split(",")
        if seen.op != "windows" and above.op == "windows":
            above, seen, left, right = seen, above, right, left
        lead, channel, taps = left[: -self.rank], right[0], right[1 : -self.rank]
        around = self._around(seen)
        d = self.new.get(above)
        fits = around is not None and len(taps) == len(around.taps) and d is not None and above not in self.summed
        fits = fits and left[-self.rank :] == right[-self.rank :] and sorted(out) == sorted(lead + channel + taps)
        if not fits or above.shape[-self.rank :] != self.size:
            return None
        assert around is not None and d is not None
        columns = []
        for _, part in around.pieces(self):
            operand = around.operand(self, part)
            rows = [self.make("einsum_rows", own, operand, spec="i,k->ik") for _, own in _parts(self, d)]
            total = rows[0] if len(rows) == 1 else self.make("concat", *rows, axis=-2)
            wide = around.wide(part)
            total = self.make("reshape", total, rank=2, to=(prod(d.shape), prod(around.taps), wide))
            columns.append(self.make("slice", total, axis=-1, start=0, stop=part.shape[0]))
        found = columns[0] if len(columns) == 1 else self.make("concat", *columns, axis=-1)
        shape = (*d.shape, *around.taps, found.shape[-1])
        found = self.make("reshape", found, rank=3, to=shape)
        order = lead + taps + channel
        return self.make("transpose", found, source=node.source, axes=tuple(order.index(letter) for letter in out))


@dataclass(frozen=True)
class _Around:
    """An image's channels at each pixel [C], and what is seen of it from there: no taps: the pixel alone."""

    x: Node
    taps: Shape
    dilation: Shape
    before: Shape  # zeros before the first pixel of each axis
    size: Shape

    def wide(self, part: Node) -> int:
        """Elements of K that a tap has of a part."""
        return -(-part.shape[0] // CHANNELS) * CHANNELS if self.taps else part.shape[0]

    def pieces(self, own: _Pixels) -> list[tuple[int, Node]]:
        """The channels by the values that they are joined of, and where each begins."""
        return _parts(own, self.x)

    def operand(self, own: _Pixels, part: Node) -> Node:
        if not self.taps:
            return part
        two = (1,) * (2 - len(self.taps))
        return own.make(
            "neighbours",
            part,
            taps=(*two, *self.taps),
            dilation=(*two, *self.dilation),
            before=(*(0 for _ in two), *self.before),
            image=(*two, *self.size),
            wide=self.wide(part),
        )


def _parts(own: _Pixels, x: Node, first: int = 0) -> list[tuple[int, Node]]:
    """Of a value's elements in order: the vectors that it is joined of along its first axis, and where each begins."""
    below = x
    while below.op == "reshape":
        below = below.args[0]
    if below.op != "concat" or len(below.shape) + below.attrs["axis"] != 0:
        return [(first, own._vector(x))]
    found = list[tuple[int, Node]]()
    for part in below.args:
        found += _parts(own, part, first)
        first += prod(part.shape)
    return found


def _unpadded(x: Node, rank: int) -> tuple[Node, Shape]:
    """The image of which a padded one is made, and how many zeros stand before it along each axis."""
    before = [0] * rank
    while x.op == "concat" and x.attrs["axis"] >= -rank:
        at, found, axis = 0, None, x.attrs["axis"]
        for part in x.args:
            if not _is_zero(part):
                if found is not None:
                    return x, tuple(before)
                found, before[axis] = part, before[axis] + at
            at += part.shape[axis]
        if found is None:
            return x, tuple(before)
        x = found
    return x, tuple(before)


def _is_zero(node: Node) -> bool:
    while node.op in ("broadcast", "reshape", "slice"):
        node = node.args[0]
    return node.value is not None and not np.any(node.value)


__all__: Sequence[str] = ("of_pixels",)
