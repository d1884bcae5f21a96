"""One canonical graph for every spelling of the same equations.

In: the graph as traced. Out: a graph in which indexing has been pushed down to parameters and leaves, equal nodes are
one node, and products with parameters are `gemm` nodes. A packed `W: "4 H I"` that is unpacked after the product and
four separate matrices become the same graph up to the names of the parameters, so they compile to the same code.

Rewrite: index(add(W @ x, b), g)  -->  add(gemm(index(W, g), x), index(b, g))
         W @ concat(x, h)         -->  add(gemm(W[:, :I], x), gemm(W[:, I:], h))
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import numpy as np

from tvm_rnn.graph.graph import Attributes, Graph, Node, constant, depends, make, rewrite, topological
from tvm_rnn.graph.ops import TABLE

OWN_GRADIENT = ("stop_gradient", "surrogate")  # their value is that of their first operand


class Builder:
    """Makes nodes, simplified and each only once (hash-consing). expand: functions that are cheaper in parts become
    them."""

    def __init__(self, expand: bool = True) -> None:
        self.known: dict[Hashable, Node] = {}
        self.expand = expand

    def make(self, op: str, *args: Node, source: str = "", **attrs: object) -> Node:
        simpler = self._simplify(op, args, source, attrs)
        if simpler is not None:
            return simpler
        key = (op, args, tuple(sorted(attrs.items())))
        if key not in self.known:
            self.known[key] = make(op, *args, source=source, **attrs)
        return self.known[key]

    def leaf(self, node: Node) -> Node:
        if node.op != "const":
            return node
        assert node.value is not None
        return self.known.setdefault(("const", node.shape, node.value.tobytes()), node)

    def _simplify(self, op: str, args: tuple[Node, ...], source: str, attrs: Attributes) -> Node | None:
        x = args[0] if args else None
        folds = not TABLE[op].boolean and TABLE[op].kind != "sum_rows" and op not in ("where", "broadcast")
        if folds and args and all(a.scalar is not None for a in args):
            with np.errstate(all="ignore"):
                return self.leaf(constant(TABLE[op].numpy(*(a.value for a in args), **attrs)))
        if x is None:  # a mask
            return None
        if op == "softplus" and self.expand:  # parts are values of their own: cheaper to compile than one deep one
            small = self.make("exp", self.make("neg", self.make("abs", x, source=source), source=source), source=source)
            small = self.make("log1p", small, source=source)
            return self.make("add", self.make("relu", x, source=source), small, source=source)
        if op == "conv" and self.expand:
            return self._windowed(args, source, attrs)
        if op == "reshape":
            return self._reshape(x, attrs["to"], source)
        if op == "transpose":
            return self._transpose(x, attrs["axes"], source)
        if op == "broadcast" and x.shape == attrs["to"]:
            return x
        if op == "slice" and (attrs["start"], attrs["stop"]) == (0, x.shape[attrs["axis"]]):
            return x
        if op in ("slice", "index"):
            return self._push(op, x, source, attrs)
        return None

    def _reshape(self, x: Node, to: tuple[int, ...], source: str) -> Node | None:
        if x.op == "reshape":
            x = x.args[0]
            return x if x.shape == to else self.make("reshape", x, source=source, rank=len(x.shape), to=to)
        if x.shape == to:
            return x
        if x.op == "const":
            assert x.value is not None
            return self.leaf(Node("const", shape=to, value=x.value.reshape(to)))
        return None

    def _windowed(self, args: tuple[Node, ...], source: str, attrs: Attributes) -> Node:
        """A convolution as the product with windows; the axes of its results come last in the kernel: they lie side by
        side where one tap is applied."""
        how, (kernel, x) = {key: attrs[key] for key in ("taps", "dilation")}, args
        inputs, out = attrs["spec"].split("->")
        left, right = inputs.split(",")
        order = sorted(left, key=lambda t: (t in out, left.index(t)))
        kernel = self.make("transpose", kernel, source=source, axes=tuple(left.index(t) for t in order))
        seen = self.make("windows", x, source=source, **how)
        return self.make("einsum", kernel, seen, source=source, spec=f"{''.join(order)},{right}->{out}")

    def _transpose(self, x: Node, axes: tuple[int, ...], source: str) -> Node | None:
        if axes == tuple(range(len(axes))):
            return x
        if x.op == "transpose":
            inner = x.attrs["axes"]
            return self.make("transpose", x.args[0], source=source, axes=tuple(inner[a] for a in axes))
        if x.op == "einsum_rows" and x.args[1].op != "windows":  # a sum over all rows is made in any order
            inputs, out = x.attrs["spec"].split("->")
            spec = f"{inputs}->{''.join(out[a] for a in axes)}"
            return self.make("einsum_rows", *x.args, source=x.source, spec=spec)
        return None

    def _push(self, op: str, x: Node, source: str, attrs: dict[str, object]) -> Node | None:
        """Move index or slice below the op that made x, where that is possible."""
        axis = attrs["axis"]
        if x.op == "const":
            assert x.value is not None
            value = TABLE[op].numpy(x.value, **attrs)
            return self.leaf(Node("const", shape=value.shape, value=value))
        if x.op == "take":
            return self._push_take(op, x, source, attrs)
        if x.pointwise:
            return self.make(x.op, *(self._narrow(op, a, source, attrs) for a in x.args), source=x.source)
        if x.op == "slice" and x.attrs["axis"] == axis and op == "index":
            return self.make("index", x.args[0], source=source, axis=axis, at=attrs["at"] + x.attrs["start"])
        if x.op == "slice" and x.attrs["axis"] == axis:
            start = x.attrs["start"]
            moved = {"axis": axis, "start": attrs["start"] + start, "stop": attrs["stop"] + start}
            return self.make("slice", x.args[0], source=source, **moved)
        if x.op == "reshape":
            return self._push_reshape(op, x, source, attrs)
        if x.op == "einsum":
            return self._push_einsum(op, x, source, attrs)
        if x.op == "windows" and op == "slice":
            return self._push_windows(x, source, attrs)
        if x.op == "broadcast":
            part = self._narrow(op, x.args[0], source, attrs)
            to = TABLE[op].shape(x.shape, **attrs)
            return self.make("broadcast", part, source=source, to=to)
        if x.op == "concat" and x.attrs["axis"] == axis:
            return self._push_concat(op, x, source, attrs)
        return None

    def _narrow(self, op: str, arg: Node, source: str, attrs: Attributes) -> Node:
        """index or slice of one operand of a pointwise op; an axis of size 1 is broadcast."""
        if arg.shape[attrs["axis"]] != 1:
            return self.make(op, arg, source=source, **attrs)
        return self.make("index", arg, source=source, axis=attrs["axis"], at=0) if op == "index" else arg

    def _push_take(self, op: str, x: Node, source: str, attrs: Attributes) -> Node:
        """A part of rows of a table is rows of a part of it; a part of the other axes, rows at a part of the places."""
        table, places = x.args
        if -attrs["axis"] < x.attrs["rank"]:
            table = self.make(op, table, source=source, **attrs)
        places = self._narrow(op, places, source, attrs)
        return self.make("take", table, places, source=x.source, rank=len(table.shape))

    def _push_reshape(self, op: str, x: Node, source: str, attrs: Attributes) -> Node | None:
        base, axis = x.args[0], attrs["axis"]
        if op == "index" and x.shape[axis] == 1:
            to = tuple(s for i, s in enumerate(x.shape) if i != len(x.shape) + axis)
            return self.make("reshape", base, source=source, rank=len(base.shape), to=to)
        if len(base.shape) == 1 and axis == -len(x.shape):
            # The leading axis of a vector cut into rows: rows are contiguous pieces of the vector.
            row = int(np.prod(x.shape[1:], dtype=int))
            start, stop = (attrs["at"], attrs["at"] + 1) if op == "index" else (attrs["start"], attrs["stop"])
            piece = self.make("slice", base, source=source, axis=-1, start=start * row, stop=stop * row)
            to = x.shape[1:] if op == "index" else (stop - start, *x.shape[1:])
            return self.make("reshape", piece, source=source, rank=1, to=to)
        tail = -axis
        if len(base.shape) >= tail and base.shape[-tail:] == x.shape[-tail:] and op == "slice":
            lead = (*x.shape[:-tail], attrs["stop"] - attrs["start"], *x.shape[len(x.shape) - tail + 1 :])
            piece = self.make("slice", base, source=source, **attrs)
            return self.make("reshape", piece, source=source, rank=len(piece.shape), to=lead)
        return None

    def _push_einsum(self, op: str, x: Node, source: str, attrs: Attributes) -> Node | None:
        inputs, out = x.attrs["spec"].split("->")
        letter = out[len(out) + attrs["axis"]]
        if x.args[1].op == "windows" and letter not in inputs.partition(",")[2]:
            return None  # all results of a convolution at once
        names, args = [], []
        for letters, arg in zip(inputs.split(","), x.args, strict=True):
            if letter in letters:
                own = {**attrs, "axis": letters.index(letter) - len(letters)}
                arg = self.make(op, arg, source=source, **own)
                letters = letters.replace(letter, "") if op == "index" else letters
            names.append(letters)
            args.append(arg)
        result = out.replace(letter, "") if op == "index" else out
        return self.make("einsum", *args, source=x.source, spec=f"{','.join(names)}->{result}")

    def _push_windows(self, x: Node, source: str, attrs: Attributes) -> Node | None:
        """Some of the places where a convolution's taps look: those see a part of the operand."""
        axis, taps = attrs["axis"], x.attrs["taps"]
        if -axis > len(taps):
            return None
        reach = x.attrs["dilation"][axis] * (taps[axis] - 1)
        part = self._cut(x.args[0], source, axis, attrs["start"], attrs["stop"] + reach)
        return self.make("windows", part, source=x.source, **x.attrs)

    def _cut(self, x: Node, source: str, axis: int, start: int, stop: int) -> Node:
        """start:stop of an axis; of what was joined, as zeros are to an image, from each part."""
        if x.op != "concat":
            return self.make("slice", x, source=source, axis=axis, start=start, stop=stop)
        along, at, parts = x.attrs["axis"], 0, list[Node]()
        for arg in x.args:
            size = arg.shape[axis]
            first, last = (max(start - at, 0), min(stop - at, size)) if axis == along else (start, stop)
            if first < last:
                parts.append(self._cut(arg, source, axis, first, last))
            at += size
        return parts[0] if len(parts) == 1 else self.make("concat", *parts, source=x.source, axis=along)

    def _push_concat(self, op: str, x: Node, source: str, attrs: Attributes) -> Node | None:
        axis, at = attrs["axis"], 0
        start, stop = (attrs["at"], attrs["at"] + 1) if op == "index" else (attrs["start"], attrs["stop"])
        for arg in x.args:
            size = arg.shape[axis]
            if at <= start and stop <= at + size:
                moved = {"at": start - at} if op == "index" else {"start": start - at, "stop": stop - at}
                return self.make(op, arg, source=source, axis=axis, **moved)
            at += size
        return None


def normalise(graph: Graph, expand: bool = True) -> Graph:
    """The canonical form of a traced graph (see the module's docstring), and of its backward graph where it has one.

    expand=False leaves softplus whole: its parts have no gradient at 0, so it must be differentiated in one piece. It
    leaves what has a gradient of its own, too.
    """
    builder = Builder(expand)
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        if node.op in OWN_GRADIENT and expand:
            new[node] = new[node.args[0]]
        else:
            new[node] = builder.leaf(node) if node.leaf else _again(builder, node, new)
    graph = _shared_truths(_products(rewrite(graph, new), builder), builder)
    return graph if graph.backward is None else replace(graph, backward=normalise(graph.backward, expand))


def _again(builder: Builder, node: Node, new: Mapping[Node, Node]) -> Node:
    return builder.make(node.op, *(new[a] for a in node.args), source=node.source, **node.attrs)


def _products(graph: Graph, builder: Builder) -> Graph:
    """einsum of a parameter with a vector that is summed whole --> gemm."""
    nodes = graph.nodes()
    leaves = depends(nodes)
    free = {n: not d for n, d in leaves.items()}  # depends on parameters alone
    new: dict[Node, Node] = {}
    for node in nodes:
        if node.leaf:
            new[node] = node
        elif node.op == "einsum" and free[node.args[0]] != free[node.args[1]] and "sum_rows" not in leaves[node]:
            new[node] = _product(builder, node, 0 if free[node.args[0]] else 1, new)
        else:
            new[node] = _again(builder, node, new)
    return rewrite(graph, new)


def _shared_truths(graph: Graph, builder: Builder) -> Graph:
    """A logical_and, _or or _not that is read more than once becomes a number and a comparison at each reader.

    Truth values are never stored: a chain of shared ones would be computed again and again, exponentially often.
    """
    users = graph.users()
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        new[node] = node if node.leaf else _again(builder, node, new)
        if node.op.startswith("logical") and len(users[node]) > 1:
            one, half, zero = (builder.leaf(constant(v, len(node.shape))) for v in (1.0, 0.5, 0.0))
            new[node] = builder.make("greater", builder.make("where", new[node], one, zero), half)
    return rewrite(graph, new)


def _product(builder: Builder, node: Node, weight_at: int, new: Mapping[Node, Node]) -> Node:
    inputs, out = node.attrs["spec"].split("->")
    letters = inputs.split(",")
    wl, xl = letters[weight_at], letters[1 - weight_at]
    weight, x = new[node.args[weight_at]], new[node.args[1 - weight_at]]
    where = node.source
    if x.op == "windows" and set(xl) & set(out):
        return builder.make("einsum", weight, x, source=where, spec=node.attrs["spec"])
    if set(xl) & set(out):
        # Some axis of x survives (heads, matrix-valued x): a general contraction. Vectors run along the parameter's
        # last axis, so the result's last axis goes there if the parameter has it.
        last = [t for t in out[-1:] if t in wl]
        order = [t for t in wl if t not in last] + last
        weight = builder.make("transpose", weight, source=where, axes=tuple(wl.index(t) for t in order))
        return builder.make("einsum", weight, x, source=where, spec=f"{''.join(order)},{xl}->{out}")
    weight = builder.make("transpose", weight, source=where, axes=tuple(wl.index(t) for t in out + xl))
    depth = int(np.prod([s for t, s in zip(out + xl, weight.shape, strict=True) if t in xl], dtype=int))
    width = int(np.prod(node.shape, dtype=int))
    weight = builder.make("reshape", weight, source=where, rank=len(weight.shape), to=(width, depth))
    x = builder.make("reshape", x, source=where, rank=len(x.shape), to=(depth,))
    result = _gemm(builder, weight, x, where)
    return builder.make("reshape", result, source=where, rank=1, to=node.shape)


def _gemm(builder: Builder, weight: Node, x: Node, where: str) -> Node:
    if x.op != "concat":
        return builder.make("gemm", weight, x, source=where)
    at, total = 0, None
    for part in x.args:
        size = part.shape[0]
        piece = builder.make("slice", weight, source=where, axis=-1, start=at, stop=at + size)
        term = _gemm(builder, piece, part, where)
        total = term if total is None else builder.make("add", total, term, source=where)
        at += size
    assert total is not None
    return total


__all__ = ["Builder", "normalise", "topological"]
