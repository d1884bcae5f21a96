"""Products of 8-bit integers on CPUs that have them: operands are quantised row by row as they come, sums are exact.

In: a gemm group whose matrices are stored as int8 in words of four, or two (`weight_packing.py`), rows of operands in
the workspace. Out: statements: `quantise`, which leaves each operand's rows as words of as many levels with a scale,
and `product`, which leaves a tile's sums in "gates" as `tiles.product` does.

A row of an operand is x = scale * level, level in -M..M, scale = max |x| / M; M is 127 but where the instruction takes
fewer bits (`dot_product.py`). Where it multiplies unsigned by signed bytes, levels are stored plus an offset, and a sum
begins at -offset times the sum of its row of weights. Word w of a row of K has the levels of w, w + Q, w + 2 Q and
w + 3 Q, Q = ceil(K / 4), so that all of them are vectors in memory; of two, w and w + Q, Q = ceil(K / 2).

Where the equations made bytes of both factors (`to_int8(W) @ to_uint8(x)`) levels are these, without scales.

Rewrite: acc[r, unit] += a[r, k] * w[unit, k]
         -->  scale_a[r] * scale_w[unit] * (dot products of words of (levels + offset, w) - offset * sum of w)
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.scalar import let, where
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import Block, bind, load, loop, sequence, store, vector

from .dot_product import DotProduct
from .register_tile import Places, Tile
from .saturating_pairs import Words
from .weight_storage import MOST_DEPTH, larger, nearest
from .workspace import Array, pad

PARALLEL_ELEMENTS = 16384  # of all rows: a launch costs about 1 us


def row_elements(depth: int, lanes: int, dot: DotProduct) -> int:
    """Elements of the workspace that one quantised row of an operand takes: a vector for its scale, then its words.

    Raises ConfigError where a sum over so many could exceed 32 bits.
    """
    if depth > MOST_DEPTH:
        expected, do = f"at most {MOST_DEPTH}", 'weights="int8", whose sums are in float32'
        raise ConfigError(message("a product of integers is too deep", got=depth, expected=expected, do=do))
    return lanes + pad(dot.words_of(depth), lanes)


def _root(group: Group) -> Node:
    assert group.root is not None  # of a gemm group
    return group.root


def _dot(places: Places) -> DotProduct:
    assert places.storage is not None and places.storage.dot is not None  # of products of integers
    return places.storage.dot


def _scales(places: Places) -> bool:
    """Whether levels have scales."""
    return places.storage is not None and places.storage.scaled


def quantise(group: Group, rows: Expr, places: Places, lanes: int, many: int) -> list[Stmt]:
    """Every operand of the group's product, row by row, to its levels. many: rows that are surely there, which decide
    whether threads share them."""
    root, parts = _root(group), list[Stmt]()
    for operand, levels in zip(root.args[1::2], places.levels[root], strict=True):
        body = _row_of(operand, levels, places, lanes)
        parts.append(loop("q", rows, body, parallel=many * operand.shape[0] >= PARALLEL_ELEMENTS))
    return parts


def _row_of(operand: Node, levels: Array, places: Places, lanes: int) -> Callable[[tirx.Var], list[Block]]:
    depth, dot = operand.shape[0], _dot(places)
    count = dot.words_of(depth)
    workspace, words = places.buffers["workspace"], places.buffers["levels"]

    def row(r: tirx.Var) -> list[Block]:
        peak = tirx.decl_buffer((lanes,), "float32", name="peak", scope="local")
        factors = tirx.decl_buffer((2,), "float32", name="factors", scope="local")
        whole = not _scales(places)
        zero, one, largest = (tirx.const(v, "float32") for v in (0.0, 1.0, dot.largest))
        at, set_at = bind("at", levels.address(r, (int64(0),)))

        def read(node: Node, index: Index) -> Expr | None:
            array = places.read(node)
            return None if array is None else load(places.buffers[array.buffer], array.address(r, index))

        def value(k: Expr) -> Expr:
            return element(operand, (k,), read, "float32")

        def raised(into: Buffer, place: Expr, found: TirExpr) -> Stmt:
            """A NaN stays: it is the row's scale then."""
            return store(into, place, larger(found, load(into, place)))

        def peaks(c: Expr, count: int) -> Stmt:
            return vector("v", count, lambda v: raised(peak, v, tirx.abs(value(c * int64(lanes) + v))))

        def word(v: tirx.Var, c: Expr) -> Stmt:
            w = c * int64(lanes) + v
            total = None
            for j in range(-(-depth // count)):
                k = w + int64(j * count)
                scaled = value(k) if whole else value(k) * load(factors, int64(1))
                level = tirx.Cast("int32", scaled if whole else let(scaled, lambda x: nearest(x, zero)))
                if (j + 1) * count > depth or count % lanes:  # what lies behind the row is anything
                    level = tirx.Select(k < int64(depth), level, tirx.const(0, "int32"))
                bits = tirx.Cast("uint32", level + tirx.const(more, "int32")) & tirx.const(mask, "uint32")
                bits = bits << tirx.const(dot.level_bits * j, "uint32")
                total = bits if total is None else total | bits
            return store(words, at + int64(lanes) + w, tirx.reinterpret("int32", total))

        more, mask = -dot.shift if whole else dot.offset, (1 << dot.level_bits) - 1
        words_of_row = loop("c", -(-count // lanes), lambda c: vector("v", lanes, lambda v: word(v, c)))
        if whole:
            return [set_at, words_of_row]
        full, rest = divmod(depth, lanes)
        blank = vector("v", lanes, lambda v: store(peak, v, zero))
        parts: list[Block] = [set_at, tirx.AllocBuffer(peak), tirx.AllocBuffer(factors), blank]
        parts.append(loop("c", full, lambda c: peaks(c, lanes)))
        parts += [peaks(int64(full), rest)] if rest else []
        parts.append(store(factors, int64(0), zero))
        parts.append(loop("v", lanes, lambda v: raised(factors, int64(0), load(peak, v))))
        found = load(factors, int64(0))
        parts.append(store(factors, int64(1), where(tirx.EQ(found, zero), one, largest / found)))
        parts.append(store(workspace, at, where(tirx.EQ(found, zero), one, found / largest)))
        return [*parts, words_of_row]

    return row


def product(tile: Tile) -> Stmt:
    """A tile's sums over all operands, scaled, in "gates" [row, panel, gate, lane]."""
    root, lanes = _root(tile.group), tile.lanes
    places = [(r, p, g) for r in range(tile.rows) for p in range(tile.panels) for g in range(tile.gates)]
    size = len(places) * lanes
    sums = tirx.decl_buffer((size,), "int32", name="sums", scope="local")
    parts: list[Block] = [tirx.AllocBuffer(sums)]
    for number, operand in enumerate(root.args[1::2]):
        parts += _sums(tile, number, operand, places, sums)
        parts += [_scaled(tile, number, place, at, sums) for at, place in enumerate(places)]
    return sequence(parts)


def _sums(tile: Tile, number: int, operand: Node, places: list[tuple[int, int, int]], sums: Buffer) -> list[Stmt]:
    root, own, lanes = _root(tile.group), tile.places, tile.lanes
    words, levels, dot = own.buffers["words"], own.levels[root][number], _dot(own)
    count = dot.words_of(operand.shape[0])
    matrix = Words(own.products[root][number], -(-root.shape[-1] // lanes), count, tile.gates, lanes)

    def begin(at: int, p: int, g: int) -> Stmt:
        place = own.sums[root][number] + _row(tile, p, g)
        return tirx.BufferStore(
            sums, load(own.buffers["sums"], tile.vector_at(place)), [tile.vector_at(int64(at * lanes))]
        )

    def add(at: int, r: int, k: Expr, weight: Expr) -> Stmt:
        level = load(own.buffers["levels"], levels.address(tile.row0 + int64(r), (int64(0),)) + int64(lanes) + k)
        mine = tile.vector_at(int64(at * lanes))
        factors = tirx.Broadcast(level, lanes), load(words, tile.vector_at(weight))
        return tirx.BufferStore(sums, dot.add(load(sums, mine), *factors), [mine])

    def step(k: tirx.Var) -> list[Stmt]:
        return [
            add(at, r, k, matrix.kept(tile.panel0 + int64(p), k, int64(g), int64(0)))
            for at, (r, p, g) in enumerate(places)
        ]

    def moved(p: int) -> Stmt:
        def multiply(k: Expr, weight: Callable[[int], Expr]) -> list[Stmt]:
            return [add(at, r, k, weight(g)) for at, (r, own_p, g) in enumerate(places) if own_p == p]

        return matrix.again(words, tile.panel0 + int64(p), multiply)

    begins = [begin(at, p, g) for at, (_, p, g) in enumerate(places)]
    more = [moved(p) for p in range(tile.panels)] if dot.saturates else []
    return [*begins, loop("k", count, step), *more]


def _row(tile: Tile, p: int, g: int) -> Expr:
    """Where a vector of rows of weights is in their scales and sums."""
    return ((tile.panel0 + int64(p)) * int64(tile.gates) + int64(g)) * int64(tile.lanes)


def _scaled(tile: Tile, number: int, place: tuple[int, int, int], at: int, sums: Buffer) -> Stmt:
    (r, p, g), root, own = place, _root(tile.group), tile.places
    mine, gates = tile.vector_at(int64(at * tile.lanes)), own.buffers["gates"]
    if not _scales(own):
        whole = tirx.Cast(f"float32x{tile.lanes}", load(sums, mine))
        return tirx.BufferStore(gates, whole if number == 0 else load(gates, mine) + whole, [mine])
    scale = load(own.buffers["packed"], tile.vector_at(own.scales[root][number] + _row(tile, p, g)))
    row = load(own.buffers["workspace"], own.levels[root][number].address(wide(tile.row0) + int64(r), (int64(0),)))
    total = tirx.Cast(f"float32x{tile.lanes}", load(sums, mine)) * (scale * tirx.Broadcast(row, tile.lanes))
    return tirx.BufferStore(gates, total if number == 0 else load(gates, mine) + total, [mine])
