"""Tiles of reductions: a partial result per lane, and what is reduced computed on the way.

In: a tile of a reduce group. Out: its statement, as for other tiles (`register_tile.py`). Its arrays are "partial" (one
result per lane), "half_n" (of n lanes, where the reduction runs along them: half of the lanes and the other half, down
to one) and "out_i".

A product of heads, or of a matrix state, is such a group. As in a GEMM a tile then has several vectors of the result,
and several rows or elements of another axis: a vector of the parameter serves all of these, one of their numbers all
vectors, and no sum waits for another.

Source: the register-blocked micro-kernel of Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix
Multiplication".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx

from tvm_rnn.graph.graph import Node, reduced_axes
from tvm_rnn.graph.scalar import let, where
from tvm_rnn.graph.tensor_expressions import Index, element, reduced_value
from tvm_rnn.schedule.schedule_template import Config, Template
from tvm_rnn.tir.expr import Expr, Stmt, TirExpr
from tvm_rnn.tir.statements import variable

from .register_tile import Tile, added
from .register_tile_stages import Stage, Sum, in_registers


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
    *sizes, last = (size for _, size in reduced_axes(root))
    lanes = tile.lanes
    extents = [*sizes, -(-last // lanes) if along else last]
    axes = {variable(f"k{i}"): extent for i, extent in enumerate(extents)}
    *ks, k = axes
    own = _sum(root, axes, tile.unit.dtype)
    if not along:
        each = partial(_inlined, tile, root, ks=[*ks, k])
        return _of_vectors(tile, template, config, index, tall, own=own, value=each)

    def value(v: Expr) -> Expr:
        place = k * lanes + v
        found = _inlined(tile, root, 0, index, [*ks, place])
        return found if last % lanes == 0 else where(place < last, found, own.first)

    total = in_registers("partial", (lanes,), tile.unit.dtype, value, own)
    tile.sums.append(total)
    while lanes > 1:
        total, lanes = _halved(root, total, lanes)
        tile.halves.append(total)
    for array in tile.places.write(root):
        tile.store(array, (1,), total, lambda r: index)
    return tile.statement(template, config)


def _of_vectors(
    tile: Tile,
    template: Template,
    config: Config,
    index: Index,
    tall: int | None,
    *,
    own: Sum,
    value: Callable[[Expr, Index], Expr],
) -> Stmt:
    """A tile of whole vectors of the result. value: what is summed in one row, at one index."""

    def place(r: Expr, p: Expr, v: Expr) -> Index:
        own = [i + r if axis == tall else i for axis, i in enumerate(index)]
        return (*own[:-1], tile.unit_of(p, v))

    batch, rows = (tile.rows, 1) if tall is None else (1, tile.rows)
    shape = (batch, rows, tile.panels, tile.lanes)
    tile.sums.append(in_registers("partial", shape, tile.unit.dtype, lambda b, r, p, v: value(b, place(r, p, v)), own))
    root = tile.group.root
    assert root is not None
    for array in tile.places.write(root):
        tile.store(array, shape, tile.sums[0], lambda b, r, p, v: place(r, p, v))
    return tile.statement(template, config)


def _halved(root: Node, wide: Stage, lanes: int) -> tuple[Stage, int]:
    """Results of so many lanes, put together two by two: for 16 lanes four vector operations in place of 15 of one
    number each, which wait for each other."""
    half = lanes // 2

    def both(v: Expr) -> Expr:
        one, other = wide(v), wide(v + half)
        return _larger(one, other) if root.op == "max" else one + other

    return in_registers(f"half_{half}", (half,), str(wide.buffer.dtype), both), half


def _sum(root: Node, axes: dict[tirx.Var, int], dtype: str) -> Sum:
    if root.op == "max":
        return Sum(axes, tirx.const(float("-inf"), dtype), _larger)
    return added(axes, dtype)


def _larger(a: TirExpr, b: Expr) -> TirExpr:
    """The larger number, or NaN where there is one. What is reduced is put in the place of b: once, for it may have
    variables of its own."""
    value = tirx.Var("value", str(a.ty))
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
