"""Loops around tiles of reductions whose vectors run along the result's last axis.

In: a reduce group, the number of rows, where its values live. Out: a statement. A product of a parameter with what rows
have is tiled as a GEMM is: along the last axis, and along an axis that the parameter does not have: another one of the
result (rows of a matrix state), else the batch. Then the parameter of a head stays in cache while all rows pass; heads
are what threads share.

Rewrite: for row, n, vector a: for k: z[row, n, a] += R[n, k, a] h[row, n, k]
         -->  parallel for n, "broad" vectors: for "tall" rows: for k: (unrolled row, vector): z += ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import numpy as np
from tvm import tirx

from tvm_rnn.graph.graph import Group, Node, reduced_axes
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.schedule.schedule_template import Config, Template, Unit
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, floordiv, floormod, loop, sequence

from . import register_tile_reductions
from .head_loops import Heads
from .register_tile import CACHE_LINE, EVERY_LEVEL, SECOND_LEVEL, Places, Tile, prefetch, with_prefetches
from .row_loops import each_row, leftovers
from .workspace import Array, dense

HEIGHTS, BROAD = (8, 6, 4, 3, 2, 1), (4, 3, 2, 1)
FEWEST = 8  # sums at a time, where there is room: two pipes with a latency of four cycles


def parameter_of(root: Node, places: Places) -> tuple[str, Array] | None:
    """The operand that is a parameter and has the result's last axis, where the other one has not: its letters, and
    where it is."""
    if root.op != "einsum":
        return None
    inputs, out = root.attrs["spec"].split("->")
    wide = [(text, arg) for text, arg in zip(inputs.split(","), root.args, strict=True) if out[-1] in text]
    if len(wide) != 1:
        return None
    ((text, arg),) = wide
    array = places.read(arg)
    return (text, array) if array is not None and not array.row_stride else None


@dataclass(frozen=True)
class Shape:
    """Of a tile: `tall` elements of an axis of the result (None: of the batch) by `broad` vectors."""

    axis: int | None
    tall: int
    broad: int


def tile_shape(root: Node, places: Places, lanes: int, accumulators: int, batch: int | None) -> Shape:
    """The tile that does most with what it loads. batch: the most rows that are expected; None: any."""
    vectors = -(-root.shape[-1] // lanes)
    parameter = parameter_of(root, places)
    axis, sizes = None, [1]
    if parameter is not None:
        letters, out = parameter[0], root.attrs["spec"].split("->")[1]
        free = [a for a, t in enumerate(out[:-1]) if t not in letters]
        axis = max(free, key=lambda a: root.shape[a], default=None)
        powers = [h for h in HEIGHTS if h & (h - 1) == 0 and (batch is None or h < 2 * batch)]
        sizes = powers if axis is None else [h for h in HEIGHTS if root.shape[axis] % h == 0]
    able = [
        (h, b) for h, b in product(sizes, BROAD) if vectors % b == 0 and (h * b <= accumulators or (h, b) == (1, 1))
    ]
    tall, broad = max(able, key=lambda s: (min(FEWEST, s[0] * s[1]), s[0] * s[1] / (s[0] + s[1])))
    return Shape(axis, tall, broad)


@dataclass(frozen=True)
class ReductionTiles:
    """One reduce group. most: elements of work that a thread is worth."""

    group: Group
    unit: Unit
    rows: Expr
    places: Places
    lanes: int
    template: Template
    config: Config
    shape: Shape
    most: int

    @property
    def root(self) -> Node:
        assert self.group.root is not None
        return self.group.root

    @property
    def vectors(self) -> int:
        return -(-self.root.shape[-1] // self.lanes)

    @property
    def parameter(self) -> tuple[str, Array]:
        """Of tiles that have several rows of the batch."""
        found = parameter_of(self.root, self.places)
        assert found is not None
        return found

    def statement(self) -> Stmt:
        """The whole group."""
        shape, outer = self.shape, self.root.shape[:-1]
        if shape.axis is not None:
            counts = [size // shape.tall if a == shape.axis else size for a, size in enumerate(outer)]
            return self._rows_outside(counts)
        return self._rows_outside(outer) if shape.tall == 1 else self._rows_inside(outer)

    def _rows_outside(self, counts: list[int] | tuple[int, ...]) -> Stmt:
        """for rows, outer axes, vectors: tile."""
        shape = self.shape

        def vectors(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            own = [n * int64(shape.tall) if a == shape.axis else n for a, n in enumerate(index)]
            return loop(
                "c",
                self.vectors // shape.broad,
                lambda c: self._tile(shape.tall, row, (*own, c * int64(shape.broad))),
            )

        return each_row(self.rows, counts, self.is_worth_threads, vectors, self.places.within)

    def _rows_inside(self, outer: tuple[int, ...]) -> Stmt:
        """for outer axes, vectors: for rows: tile; then what full tiles of rows leave."""
        full, broad, within = self.shape.tall, self.shape.broad, self.places.within
        counts = [*outer, self.vectors // broad]
        weights = self.places.buffers[self.parameter[1].buffer]
        first = int64(counts[0]) if within is None else within.count
        last = first * int64(prod(counts[1:])) - int64(1)

        def body(i: tirx.Var) -> list[Block]:
            index, sets = self._split(i, counts)
            if within is not None:
                index[0] = within.begin + index[0]
            place = (*index[:-1], index[-1] * int64(broad))
            asked = partial(self._ask, dense(counts, index), prod(counts))
            next_index, set_next = self._split(tirx.min(i + int64(1), last), counts, "next")
            if within is not None:
                next_index[0] = within.begin + next_index[0]

            def tile(r: tirx.Var) -> list[Block]:
                own, coming = self._tile(full, r * int64(full), place), partial(self._coming, next_index, r)
                return [asked(r * int64(full)), with_prefetches(own, weights, EVERY_LEVEL, coming)]

            whole = loop("r", floordiv(self.rows, full), tile)
            rest = leftovers(self.rows, full, full // 2, lambda height, start: self._tile(height, start, place))
            return [*sets, *set_next, whole, rest]

        shared = self.is_worth_threads and within is None and prod(counts) > 1
        return loop("i", last + int64(1), body, parallel=shared)

    def _coming(self, index: Sequence[Expr], tile: Expr, k: tirx.Var) -> list[Expr]:
        """What tile number `tile` of rows asks for in the loop over k: one line of the parameter's row k of the vectors
        that come next, at `index`. Caches ask for what follows only while it is read, and then only the first tile
        would wait for it (12 heads of 64 x 64 by 4 gates, B = 16: 0.92 of a product's time)."""
        letters, array = self.parameter
        reduced = dict(reduced_axes(self.root))
        if k.name != "k0" or len(reduced) != 1:
            return []
        known = dict(zip(self.root.attrs["spec"].split("->")[1], index, strict=True)) | dict.fromkeys(reduced, k)
        line = CACHE_LINE // np.dtype(self.unit.dtype).itemsize
        width = self.shape.broad * self.lanes
        turn = tirx.min(tile, int64(-(-width // line) - 1))
        place = [known[letter] for letter in letters]
        place[letters.index(self.root.attrs["spec"][-1])] = index[-1] * int64(width) + turn * int64(line)
        return [array.address(int64(0), place)]

    def _ask(self, part: Expr, parts: int, row0: Expr) -> list[Stmt]:
        """Asks for a part of what is wanted, in a tile's rows."""
        if (wanted := self.places.wanted) is None:
            return []
        line, found = CACHE_LINE // np.dtype(self.unit.dtype).itemsize, list[Stmt]()
        for array in wanted.arrays:
            lines = -(-array.row_stride // line)
            each = -(-lines // (parts * wanted.groups))
            first = (part + int64(wanted.number * parts)) * int64(each)
            for row, i in product(range(self.shape.tall), range(each)):
                at = tirx.min(first + int64(i), int64(lines - 1)) * int64(line)
                place = array.base + (row0 + int64(row)) * int64(array.row_stride) + at
                found.append(prefetch(self.places.buffers[array.buffer], place, SECOND_LEVEL))
        return found

    @property
    def heads(self) -> Heads | None:
        """How it shares a loop over its first axis."""
        first, *others = self.root.shape
        if not others or self.shape.axis == 0:
            return None
        tall = self.shape.axis is None and self.shape.tall > 1
        return Heads(first, tall, prod(self.root.shape[:-1]) * self.vectors // self.shape.broad)

    @staticmethod
    def _split(i: Expr, counts: list[int], name: str = "i") -> tuple[list[Expr], list[Stmt]]:
        """A flat number as one of each axis."""
        index, sets, rest = list[Expr](), list[Stmt](), i
        for a in reversed(range(len(counts))):
            own, set_own = bind(f"{name}{a}", floormod(rest, counts[a]) if a else rest)
            index.insert(0, own)
            sets.append(set_own)
            rest = floordiv(rest, counts[a])
        return index, sets

    @property
    def is_worth_threads(self) -> bool:
        """Whether threads share it."""
        work = prod(size for _, size in reduced_axes(self.root))
        return bool(work * prod(self.root.shape[:-1]) >= self.most)

    def _tile(self, tall: int, row0: Expr, index: Index) -> Stmt:
        """index: the last entry is the first vector's number."""
        row, set_row = bind("row0", row0)
        panel, set_panel = bind("panel", index[-1])
        own = Tile(
            self.group, self.places, self.unit, self.lanes, rows=tall, panels=self.shape.broad, row0=row, panel0=panel
        )
        place = (*index[:-1], panel)
        done = register_tile_reductions.reduction(own, self.template, self.config, place, False, self.shape.axis)
        return sequence(set_row, set_panel, done)
