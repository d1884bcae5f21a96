"""Nodes as TVM expressions: one element of a node at given indices, and whole graphs as tensor expressions.

In: a node, indices (Python ints or TVM expressions), and a reader that knows which nodes are stored where. Out: a
scalar expression for `cpu/register_tile.py`; or, from `te`, the `te.Tensor`s of a cell for people to read. Views
(index, slice, reshape, transpose, concat) cost nothing here: they are changes of index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import te as tvm_te
from tvm import tirx

from .graph import Graph, Node, make, reduced_axes
from .ops import TABLE, Shape

Expr = Any  # a TVM expression or a Python int
Index = tuple[Expr, ...]
Reader = Callable[[Node, Index], Expr | None]


class NotAligned(Exception):
    """A unit reads other units' values in a way that no constant number of whole strides explains."""


@dataclass(frozen=True)
class Lane:
    """An index "offset + u", where u is the unit that a GPU thread owns, 0 <= u < width.

    Kernels that spread units over blocks use it in place of an expression: views may move it by whole widths (a slice
    of 4H values at 2H is gate 2 of the same unit); anything else belongs to another unit, and NotAligned says so.
    """

    offset: int
    width: int

    def __add__(self, other: int) -> Lane:
        if not isinstance(other, int):
            raise NotAligned(f"index + {other}")
        return Lane(self.offset + other, self.width)

    __radd__ = __add__

    def __sub__(self, other: int) -> Lane:
        return self + -other

    def __mul__(self, other: int) -> Lane:
        if other != 1:
            raise NotAligned(f"index * {other}")
        return self

    def _whole(self, size: int) -> None:
        if size % self.width or self.offset % self.width:
            raise NotAligned(f"{self.offset} + unit, in rows of {size}")

    def __mod__(self, size: int) -> Lane:
        self._whole(size)
        return Lane(self.offset % size, self.width)

    def __floordiv__(self, size: int) -> int:
        self._whole(size)
        return self.offset // size


# TVM has these under their own names: te() shows them so; compiled code uses the forms of scalar.py.
NAMED = ("tanh", "sigmoid", "exp", "log", "sqrt", "erf", "sin", "cos", "log1p")


def element(node: Node, index: Index, read: Reader, dtype: str) -> Expr:
    """The value of `node` at `index`, with stored nodes loaded through `read` and everything else computed inline."""
    loaded = read(node, index)
    if loaded is not None:
        return loaded
    scalar = node.scalar
    if scalar is not None:
        return tirx.const(scalar, dtype)
    if node.op == "take":
        return _row_element(node, index, read, dtype)
    if node.pointwise:
        operands = [element(a, fit(a.shape, index), read, dtype) for a in node.args]
        expression = TABLE[node.op].expression
        assert expression is not None
        return expression(*operands)
    if node.op == "concat":
        return _joined(node, index, read, dtype)
    return element(node.args[0], moved(node, index), read, dtype)


def _row_element(node: Node, index: Index, read: Reader, dtype: str) -> Expr:
    """An element of a row of a table; NaN where there is no such row."""
    table, places = node.args
    lead = len(node.shape) - node.attrs["rank"] + 1
    place, last = element(places, fit(places.shape, index), read, dtype), float(table.shape[0] - 1)
    below, above = tirx.const(0.0, dtype), tirx.const(last, dtype)
    inside = tirx.max(tirx.min(place, above), below)
    row = tirx.Cast("int64", tirx.Select(tirx.EQ(inside, place), tirx.trunc(inside), below))
    value = element(table, (row, *index[lead:]), read, dtype)
    return tirx.Select(tirx.EQ(tirx.Cast(dtype, row), place), value, tirx.const(float("nan"), dtype))


def fit(shape: Shape, index: Index) -> Index:
    """An operand's index: axes of size 1 are broadcast."""
    return tuple(0 if size == 1 else i for size, i in zip(shape, index, strict=True))


def moved(node: Node, index: Index) -> Index:
    """The index into a view's operand."""
    attrs, rank = node.attrs, len(node.args[0].shape)
    if node.op == "index":
        at = rank + attrs["axis"]
        return (*index[:at], attrs["at"], *index[at:])
    if node.op == "slice":
        at = rank + attrs["axis"]
        return (*index[:at], index[at] + attrs["start"], *index[at + 1 :])
    if node.op == "flip":
        at = rank + attrs["axis"]
        return (*index[:at], index[at] * -1 + (node.shape[at] - 1), *index[at + 1 :])
    if node.op == "broadcast":
        return fit(node.args[0].shape, index)
    if node.op == "transpose":
        return tuple(index[attrs["axes"].index(a)] for a in range(rank))
    if node.op == "windows":
        steps = node.attrs["dilation"]
        taps, places = index[1 : 1 + len(steps)], index[1 + len(steps) :]
        return (index[0], *(at + tap * step for at, tap, step in zip(places, taps, steps, strict=True)))
    assert node.op == "reshape", node.op
    return _reshaped(node.args[0].shape, node.shape, index)


def _reshaped(shape: Shape, to: Shape, index: Index) -> Index:
    wide = [i for i, size in zip(index, to, strict=True) if size != 1]
    if [s for s in shape if s != 1] == [s for s in to if s != 1]:
        rest = iter(wide)
        return tuple(0 if size == 1 else next(rest) for size in shape)
    flat: Expr = 0
    for i, size in zip(index, to, strict=True):
        flat = flat * size + i
    result: list[Expr] = []
    for axis, size in enumerate(reversed(shape)):
        last = axis == len(shape) - 1
        result.append(flat if last else flat % size)
        flat = flat // size if not last else flat
    return tuple(reversed(result))


def _joined(node: Node, index: Index, read: Reader, dtype: str) -> Expr:
    at = len(node.shape) + node.attrs["axis"]
    i = index[at]
    start, result = 0, None
    for part in reversed(node.args):
        start += part.shape[at]
    for part in reversed(node.args):
        size = part.shape[at]
        start -= size
        if isinstance(i, Lane):
            if start <= i.offset and i.offset + i.width <= start + size:
                return element(part, (*index[:at], i - start, *index[at + 1 :]), read, dtype)
            if start < i.offset + i.width and i.offset < start + size:
                raise NotAligned(f"units {i.offset} to {i.offset + i.width} of a join at {start}")
            continue
        if isinstance(i, int):
            if start <= i < start + size:
                return element(part, (*index[:at], i - start, *index[at + 1 :]), read, dtype)
            continue
        inside = tirx.max(tirx.min(i - start, size - 1), 0)
        value = element(part, (*index[:at], inside, *index[at + 1 :]), read, dtype)
        result = value if result is None else tirx.Select(i >= start + size, result, value)
    assert result is not None
    return result


class Traceable(Protocol):
    """A Cell, as far as tensor expressions need it."""

    @property
    def size_names(self) -> Sequence[str]: ...

    def trace(self, sizes: Mapping[str, int], dtype: str) -> Graph: ...


def te(
    cell: Traceable | Graph, sizes: Mapping[str, int] | None = None, *, batch: int = 1, dtype: str = "float32"
) -> list[tvm_te.Tensor]:
    """One step of a cell as TVM tensor expressions. Print `tensor.op` and its `input_tensors` to read them.

    One `te.compute` per node of the graph as traced; nothing is scheduled or optimised. Masks, which are made of
    counters, are placeholders.

    Args:
        cell: a Cell or a Graph.
        sizes: of a Cell, such as {"I": 8, "H": 16}; None: 4 for every axis.
        batch: B.
        dtype: of all values.

    Returns:
        The new states, then the output, each [B, *shape].
    """
    graph = cell.trace(sizes or dict.fromkeys(cell.size_names, 4), dtype) if not isinstance(cell, Graph) else cell
    tensors: dict[Node, tvm_te.Tensor] = {}
    for number, node in enumerate(graph.nodes()):
        if node.op == "param" or (node.op == "const" and node.scalar is None):
            tensors[node] = tvm_te.placeholder(node.shape, name=node.name or f"constant_{number}", dtype=graph.dtype)
        elif node.op in ("input", "state"):
            tensors[node] = tvm_te.placeholder((batch, *node.shape), name=node.name, dtype=graph.dtype)
        elif node.random:
            tensors[node] = tvm_te.placeholder((batch, *node.shape), name=f"mask_{number}", dtype=graph.dtype)
        elif node.op != "const":
            tensors[node] = _compute(node, tensors, batch, graph.dtype, f"{node.op}_{number}")
    return [tensors[n] for n in dict.fromkeys(graph.roots) if n in tensors]


def _compute(node: Node, tensors: Mapping[Node, tvm_te.Tensor], batch: int, dtype: str, name: str) -> tvm_te.Tensor:
    batched = {n for n, t in tensors.items() if len(t.shape) > len(n.shape)}

    def body(*index: Any) -> Any:
        row, own = index[0], index[1:]

        def read(n: Node, i: Index) -> Expr | None:
            if n is node or n not in tensors:
                return None
            return tensors[n](row, *i) if n in batched else tensors[n](*i)

        if TABLE[node.op].kind in ("reduce", "contract"):
            return _reduction(node, own, read, dtype)
        if node.op in NAMED:
            return getattr(tirx, node.op)(element(node.args[0], own, read, dtype))
        return element(node, own, read, dtype)

    return tvm_te.compute((batch, *node.shape), body, name=name)


def _reduction(node: Node, index: Index, read: Reader, dtype: str) -> Expr:
    if node.op == "gemm":
        raise ValueError("gemm nodes are made after tracing: te() takes a cell or a traced graph")
    if node.op == "conv":
        kernel, x = node.args
        seen = make("windows", x, taps=node.attrs["taps"], dilation=node.attrs["dilation"])
        node = make("einsum", kernel, seen, spec=node.attrs["spec"])
    axes = [tvm_te.reduce_axis((0, size), name=letter) for letter, size in reduced_axes(node)]
    value = reduced_value(node, index, axes, lambda n, i: element(n, i, read, dtype))
    return (tvm_te.max if node.op == "max" else tvm_te.sum)(value, axis=axes)


def reduced_value(node: Node, index: Index, ks: Sequence[Expr], value: Callable[[Node, Index], Expr]) -> Expr:
    """What a sum, max or einsum reduces, where its result is at `index` and its reduced axes at `ks`. value: of one of
    its operands, at that operand's index."""
    if node.op == "einsum":
        inputs, out = node.attrs["spec"].split("->")
        known = dict(zip(out, index, strict=True)) | {t: k for (t, _), k in zip(reduced_axes(node), ks, strict=True)}
        letters = zip(inputs.split(","), node.args, strict=True)
        a, b = (value(arg, tuple(known[t] for t in text)) for text, arg in letters)
        return a * b
    at = len(node.args[0].shape) + node.attrs["axis"]
    rest = (*index[:at], *index[at + 1 :]) if node.attrs["keepdims"] else index
    return value(node.args[0], (*rest[:at], ks[0], *rest[at:]))


def text(tensors: Sequence[tvm_te.Tensor]) -> str:
    """Tensor expressions as TVM prints them: one block per expression, arguments first."""
    placeholders: list[tvm_te.Tensor] = []
    seen: list[object] = []

    def visit(tensor: tvm_te.Tensor) -> None:
        if any(tensor.op.same_as(op) for op in seen):
            return
        seen.append(tensor.op)
        for source in tensor.op.input_tensors:
            visit(source)
        if isinstance(tensor.op, tvm_te.PlaceholderOp):
            placeholders.append(tensor)

    for tensor in tensors:
        visit(tensor)
    results = [t for t in tensors if not isinstance(t.op, tvm_te.PlaceholderOp)]
    return str(tvm_te.create_prim_func([*placeholders, *results]).script())
