"""A kernel of tiles: a product of matrices, or a convolution, whose rows are positions and whose columns are filters.

In: a nest that adds up products of two factors, one of which differs along rows alone, the other along columns alone.
Out: a launch; None where a nest is no such thing. A block brings a piece of both factors to shared memory, wherever
their elements lie (a convolution's picture is read as if its patches stood in rows), while it multiplies the piece
before; a thread adds up some rows and columns in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.surroundings.nest import mentions
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .nest_kernel import Frame, Launch, NestKernel
from .statements import loads_of
from .warp_sum import terms_of

PADDING = 4  # elements between rows of shared memory, so that what lies below each other is in other banks
FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Factor:
    """One of both, [lines, terms]. loops: over its lines, which are rows or columns. run: its neighbours in memory are
    terms."""

    value: Expr
    loops: list[tirx.Var]
    run: bool


@dataclass(frozen=True)
class Product:
    """rows, columns: the factors. each: loops over products that are apart."""

    rows: Factor
    columns: Factor
    each: list[tirx.Var]


@dataclass(frozen=True)
class Tile:
    """Of a block, and of a thread: rows and columns; terms of a piece."""

    rows: int
    columns: int
    high: int
    broad: int
    deep: int = 32

    @property
    def threads(self) -> int:
        return self.rows // self.high * (self.columns // self.broad)


# The first whose columns are at most twice as many as there are.
TILES = (Tile(64, 64, 4, 4), Tile(64, 32, 4, 2), Tile(64, 16, 2, 2), Tile(64, 8, 2, 1))


def product_of(nest: NestKernel) -> Product | None:
    """The nest as a product."""
    terms = terms_of(nest.nest)
    if terms is None or not isinstance(nest.nest.store.value, tirx.Add) or not isinstance(terms.term, tirx.Mul):
        return None
    a, b = terms.term.a, terms.term.b
    if str(nest.nest.store.buffer.dtype) not in FLOATS:
        return None
    in_a, in_b = ([mentions(part, own) for own in nest.own] for part in (a, b))
    loops = [*enumerate(zip(nest.own, in_a, in_b, strict=True))]
    only_a = {i: own for i, (own, left, right) in loops if left and not right}
    only_b = {i: own for i, (own, left, right) in loops if right and not left}
    if not only_a or not only_b:
        return None
    if max(only_a) > max(only_b):  # columns are neighbours in memory
        a, b, only_a, only_b = b, a, only_b, only_a
    each = [own for i, (own, _, _) in loops if i not in only_a and i not in only_b]
    pairs = ((a, [*only_a.values()]), (b, [*only_b.values()]))
    rows, columns = (Factor(part, own, _run(part, own, nest.summed)) for part, own in pairs)
    return Product(rows, columns, each)


def _run(value: Expr, lines: Sequence[tirx.Var], terms: Sequence[tirx.Var]) -> bool:
    """Whether elements that are neighbours in memory are terms of one line."""
    ends = [load.indices[-1] for load in loads_of(value) if len(load.indices)]
    found = [i for end in ends for i in reversed(terms) if mentions(end, i)]
    return bool(found) and not any(mentions(end, own) for end in ends for own in lines[-1:])


def product_tile(nest: NestKernel, product: Product, where: Expr | None) -> Launch:
    """The kernel of a product."""
    width = nest.known(product.columns.loops)
    tile = next((own for own in TILES if width is None or own.columns <= 2 * width - 1), TILES[-1])
    terms = nest.known(nest.summed)
    tile = replace(tile, deep=tile.deep // 2) if terms is not None and terms <= tile.deep // 2 else tile
    return nest.launch(lambda frame: _Body(frame, product, tile).write(), tile.threads, where)


class _Copy:
    """What a thread brings of a factor to shared memory: `count` elements of each piece, through registers."""

    def __init__(self, body: _Body, factor: Factor, lines: int, first: TirExpr, total: TirExpr) -> None:
        self.body, self.factor, self.lines, self.total = body, factor, lines, total
        w, threads, deep = body.w, body.tile.threads, body.tile.deep
        self.elements, self.count = lines * deep, -(-lines * deep // threads)
        self.whole = self.elements % threads == 0
        self.shared = I.alloc_buffer((deep * (lines + PADDING),), body.dtype, scope="shared", align=16)
        self.registers = w.local(self.count, body.dtype)
        self.places = list[tuple[TirExpr, TirExpr, TirExpr]]()
        self.variables = list[dict[tirx.Var, TirExpr]]()
        for i in range(self.count):
            number = w.keep(body.thread + i * threads)
            line, term = (number // deep, number % deep) if factor.run else (number % lines, number // lines)
            line, term = w.keep(line), w.keep(term)
            at = w.keep(first + line)
            self.places.append((line, term, at))
            self.variables.append(body.frame.split(at, factor.loops))

    def load(self, begin: TirExpr) -> None:
        """The elements of a piece that begins with this term."""
        w, body, zero = self.body.w, self.body, tirx.const(0.0, self.body.dtype)
        for i, ((_, term, at), variables) in enumerate(zip(self.places, self.variables, strict=True)):
            k = w.keep(begin + term)
            w.store(self.registers, zero, i)
            inside = tirx.And(at < self.total, k < body.terms)
            if not self.whole:
                inside = tirx.And(inside, body.thread + i * body.tile.threads < self.elements)
            with w.when(inside):
                own = {**body.each, **variables, **body.frame.split(k, body.nest.summed)}
                w.store(self.registers, body.frame.narrow(own).value(self.factor.value), i)

    def put(self) -> None:
        """What was loaded, to shared memory."""
        w, body = self.body.w, self.body
        for i, (line, term, _) in enumerate(self.places):
            with w.when(body.thread + i * body.tile.threads < self.elements):
                w.store(self.shared, self.registers[i], term * (self.lines + PADDING) + line)

    def at(self, term: TirExpr | int, line: TirExpr) -> TirExpr:
        """An element of the piece."""
        return self.shared[term * (self.lines + PADDING) + line]


class _Body:
    """The kernel's body while it is written."""

    def __init__(self, frame: Frame, product: Product, tile: Tile) -> None:
        self.frame, self.w, self.nest, self.product, self.tile = frame, frame.w, frame.of, product, tile
        self.dtype = str(frame.of.nest.store.buffer.dtype)

    def write(self) -> None:
        w, frame, tile, product = self.w, self.frame, self.tile, self.product
        rows, columns = frame.count(product.rows.loops), frame.count(product.columns.loops)
        down, across = (rows + (tile.rows - 1)) // tile.rows, (columns + (tile.columns - 1)) // tile.columns
        block, thread = I.cta_id([down * across * frame.count(product.each)]), I.thread_id([tile.threads])
        self.thread = w.keep(thread)
        self.terms = w.keep(frame.count(self.nest.summed))
        rows, columns, down, across = (w.keep(own) for own in (rows, columns, down, across))
        row0 = w.keep(tirx.Mod(block // across, down) * tile.rows)
        column0 = w.keep(tirx.Mod(block, across) * tile.columns)
        self.each = frame.split(w.keep(tirx.Div(block, down * across)), product.each)
        left = _Copy(self, product.rows, tile.rows, row0, rows)
        right = _Copy(self, product.columns, tile.columns, column0, columns)
        side = tile.columns // tile.broad
        row, column = w.keep(self.thread // side * tile.high), w.keep(self.thread % side * tile.broad)
        sums = w.local(tile.high * tile.broad, self.dtype)
        for i in range(tile.high * tile.broad):
            w.store(sums, tirx.const(0.0, self.dtype), i)
        left.load(tirx.const(0, "int32"))
        right.load(tirx.const(0, "int32"))
        with w.loop((self.terms + (tile.deep - 1)) // tile.deep) as piece:
            w.do(I.cuda.cta_sync())
            left.put()
            right.put()
            w.do(I.cuda.cta_sync())
            following = w.keep(piece * tile.deep + tile.deep)
            with w.when(following < self.terms):
                left.load(following)
                right.load(following)
            self._multiply(left, right, (row, column), sums)
        self._finish(w, (w.keep(row0 + row), w.keep(column0 + column)), (rows, columns), sums)

    def _multiply(self, left: _Copy, right: _Copy, first: tuple[TirExpr, TirExpr], sums: Buffer) -> None:
        w, tile, (row, column) = self.w, self.tile, first
        with I.unroll(0, tile.deep) as k:
            a, b = w.local(tile.high, self.dtype), w.local(tile.broad, self.dtype)
            for i in range(tile.high):
                w.store(a, left.at(k, row + i), i)
            for j in range(tile.broad):
                w.store(b, right.at(k, column + j), j)
            for i in range(tile.high):
                for j in range(tile.broad):
                    at = i * tile.broad + j
                    w.store(sums, sums[at] + a[i] * b[j], at)

    def _finish(self, w: Writer, first: tuple[TirExpr, TirExpr], ends: tuple[TirExpr, TirExpr], sums: Buffer) -> None:
        """Store a thread's elements."""
        (row, column), (rows, columns), frame = first, ends, self.frame
        for i in range(self.tile.high):
            with w.when(row + i < rows):
                down = frame.split(w.keep(row + i), self.product.rows.loops)
                for j in range(self.tile.broad):
                    with w.when(column + j < columns):
                        across = frame.split(w.keep(column + j), self.product.columns.loops)
                        own = {**self.each, **down, **across}
                        value = sums[i * self.tile.broad + j]
                        frame.store(own, {self.nest.nest.store.buffer: value})
