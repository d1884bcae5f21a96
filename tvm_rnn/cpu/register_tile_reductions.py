"""Tiles of reductions: a partial result per lane, and what is reduced computed on the way.

In: a tile of a reduce group. Out: its scheduled statement, as for other tiles (`register_tile.py`). Blocks are named
"partial" (one result per lane), "half_n" (of n lanes, where the reduction runs along them: half of the lanes and the
other half, down to one) and "out_i".

A product of heads, or of a matrix state, is such a group. As in a GEMM a tile then has several vectors of the result,
and several rows or elements of another axis: a vector of the parameter serves all of these, one of their numbers all
vectors, and no sum waits for another.

Source: the register-blocked micro-kernel of Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix
Multiplication".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx

from tvm_rnn.graph.graph import Node, reduced_axes
from tvm_rnn.graph.scalar import let, where
from tvm_rnn.graph.tensor_expressions import Index, element, reduced_value
from tvm_rnn.schedule.schedule_template import Config, Template
from tvm_rnn.tir.expr import Expr, Stmt, TirExpr
from tvm_rnn.tir.index import wide

from .register_tile import Tile


def reduction(
    tile: Tile, template: Template, config: Config, index: Index, along: bool, tall: int | None = None
) -> Stmt:
    """A tile of a reduce group at the result's `index`.

    along: the reduction runs along the last axis of what it reads; the tile is then one element. Otherwise the last
    entry of `index` is replaced by the lanes of `panels` vectors from `panel0` on, and axis `tall` of the result (None:
    the batch) by `rows` elements from that of `index` on.
    """
    root = tile.group.root
    assert root is not None
    axes = reduced_axes(root)
    lanes = tile.lanes
    last = axes[-1][1]
    extents = [size for _, size in axes[:-1]] + [-(-last // lanes) if along else last]
    iterators = [te.reduce_axis((0, e), name=f"k{i}") for i, e in enumerate(extents)]
    combine, identity = _combiner(root, tile.unit.dtype)

    def summed(r: Expr, own: Index, *rest: Expr) -> Expr:
        ks = [*(k.var for k in iterators[: len(iterators) - len(rest)]), *rest]
        return _inlined(tile, root, r, own, ks)

    if not along:
        return _of_vectors(tile, template, config, index, tall, lambda r, own: combine(summed(r, own), axis=iterators))

    def body(v: Expr) -> Expr:
        k = iterators[-1] * lanes + v
        value = summed(0, index, k)
        return combine(value if last % lanes == 0 else where(k < last, value, identity), axis=iterators)

    total = te.compute((lanes,), body, name="partial")
    tile.sums.append(total)
    while lanes > 1:
        total, lanes = _halved(root, total, lanes)
        tile.halves.append(total)
    for array in tile.places.write(root):
        out = te.compute((1, 1, 1), lambda r, p, v: total(0), name=f"out_{len(tile.tensors)}")
        tile._emit(out, array, lambda r, p, v: index)
    return tile.statement(template, config)


def _of_vectors(
    tile: Tile,
    template: Template,
    config: Config,
    index: Index,
    tall: int | None,
    value: Callable[[Expr, Index], Expr],
) -> Stmt:
    """A tile of whole vectors of the result. value: the sum in one row, at one index."""

    def place(r: Expr, p: Expr, v: Expr) -> Index:
        own = [i + wide(r) if axis == tall else i for axis, i in enumerate(index)]
        return (*own[:-1], tile.unit_of(p, v))

    batch, rows = (tile.rows, 1) if tall is None else (1, tile.rows)
    shape = (batch, rows, tile.panels, tile.lanes)
    partial = te.compute(shape, lambda b, r, p, v: value(b, place(r, p, v)), name="partial")
    tile.sums.append(partial)
    root = tile.group.root
    assert root is not None
    for array in tile.places.write(root):
        out = te.compute(shape, lambda b, r, p, v: partial(b, r, p, v), name=f"out_{len(tile.tensors)}")
        tile._emit(out, array, lambda b, r, p, v: place(r, p, v))
    return tile.statement(template, config)


def _halved(root: Node, wide: te.Tensor, lanes: int) -> tuple[te.Tensor, int]:
    """Results of so many lanes, put together two by two: for 16 lanes four vector operations in place of 15 of one
    number each, which wait for each other."""
    half = lanes // 2

    def both(v: Expr) -> Expr:
        one, other = wide(v), wide(v + half)
        return _larger(one, other) if root.op == "max" else one + other

    return te.compute((half,), both, name=f"half_{half}"), half


def _combiner(root: Node, dtype: str) -> tuple[Callable[..., Expr], Expr]:
    if root.op == "max":
        low = tirx.const(float("-inf"), dtype)
        return te.comm_reducer(_larger, lambda _: low, name="max"), low
    return te.sum, tirx.const(0.0, dtype)


def _larger(a: TirExpr, b: TirExpr) -> TirExpr:
    """The larger number, or NaN where there is one. TVM puts the reduced value in the place of b: once, for it may have
    variables of its own."""
    value = tirx.Var("value", str(b.ty))
    return tirx.Let(value, b, where(tirx.Or(a > value, tirx.isnan(a)), a, value))


def _inlined(tile: Tile, root: Node, row: Expr, index: Index, ks: Sequence[Expr]) -> Expr:
    """What is reduced, at one element; values used twice are bound once."""

    def read(n: Node, i: Index) -> Expr | None:
        return None if n is root else tile.load(n, row, i)

    def value(n: Node, i: Index) -> Expr:
        return _shared(n, i, read, lambda n: tile.places.read(n) is not None, tile.unit.dtype)

    return reduced_value(root, index, ks, value)


def _shared(
    node: Node, index: Index, read: Callable[[Node, Index], Expr | None], stored: Callable[[Node], bool], dtype: str
) -> Expr:
    """element(), but a pointwise value that is used more than once at this very index is bound by Let."""
    uses: dict[Node, int] = {}
    order: list[Node] = []

    def visit(n: Node) -> None:
        uses[n] = uses.get(n, 0) + 1
        if uses[n] == 1 and n.pointwise and not stored(n):
            for arg in n.args:
                if arg.shape == node.shape:
                    visit(arg)
            order.append(n)

    visit(node)
    twice = [n for n in order if uses[n] > 1 and not n.boolean]
    bound: dict[Node, Expr] = {}

    def lookup(n: Node, i: Index) -> Expr | None:
        # Through a view (z * z.T) the same value is read at another index as well.
        return bound[n] if n in bound and _is_same(i, index) else read(n, i)

    def build(rest: list[Node]) -> Expr:
        if not rest:
            return element(node, index, lookup, dtype)
        value = element(rest[0], index, lookup, dtype)

        def body(var: Expr) -> Expr:
            bound[rest[0]] = var
            return build(rest[1:])

        return let(value, body)

    return build(twice)


def _is_same(one: Index, other: Index) -> bool:
    def equal(a: Expr, b: Expr) -> bool:
        if isinstance(a, int) or isinstance(b, int):
            return isinstance(a, int) and isinstance(b, int) and a == b
        return bool(a.same_as(b))

    return len(one) == len(other) and all(map(equal, one, other))
