"""One step of a matrix as its owner laid it out, each row with all of its keys: vectors run along the key axis.

In: a part of a matrix (`matrix_part.py`) whose key axis is the last one, and the copies that are read and written. Out:
a statement. For a few steps that is less than to turn the matrix around and back, which other steps need.

Rewrite: for value: z = sum(r * S[value]);  S'[value] = d S[value] + k v + p z;  y[value] = sum(q * S'[value])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, load, loop, store, vector

from .matrix_part import Numbers, Part, across, total
from .workspace import Array


class Rows:
    """A part's rows."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.count = tirx.min(int64(part.panels * part.lanes), int64(part.root.shape[-2]) - part.first)

    def copy(self, source: Array, into: Array) -> Stmt:
        return self._put_all(into, lambda v, key: self._get(source, v, key))

    def fill(self, into: Array, value: Expr) -> Stmt:
        return self._put_all(into, lambda v, key: value)

    def step(self, source: Array, into: Array, row: Expr) -> Stmt:
        """row: of the step, among those of the tile."""
        return loop("value", self.count, lambda v: self._one(source, into, row, v))

    def _one(self, source: Array, into: Array, row: Expr, v: Expr) -> list[Block]:
        """One row: what its products sum up, what they and known values write, and what is read of it."""
        part, update = self.part, self.part.update
        old, new = self._lanes("old"), self._lanes("new")
        sums = [self._lanes("z") for _ in update.products]
        reads = [self._lanes("sum") for _ in part.reads]
        zeros = [self._set(b, lambda j: tirx.const(0.0, part.dtype)) for b in (*sums, *reads)]
        take = partial(self._set_keys, old, lambda key: self._get(source, v, key))

        def multiply(first: Expr) -> list[Block]:
            return [take(first), [self._add(z, r, row, old, first) for z, r in zip(sums, update.products, strict=True)]]

        first_pass = self._vectors(multiply) if sums else None
        summed, made = self._totals(sums, "z")
        numbers = Numbers(part.dtype)
        added = [numbers("u", part.added(a, row, lambda i, j: made[i], v)) for _, a in update.columns]

        def renew(first: Expr) -> list[Block]:
            def value(j: Expr) -> Expr:
                parts = [part.number(k, row, first + j) * u for (k, _), u in zip(update.columns, added, strict=True)]
                return total([*parts, part.number(update.decay, row, first + j) * load(old, j)])

            put = vector("j", part.lanes, lambda j: self._put(into, v, first + j, load(new, j)))
            asked = [
                (b, n.args[1], new if n.args[0] is part.root else old) for b, n in zip(reads, part.reads, strict=True)
            ]
            return [take(first), self._set(new, value), put, [self._add(b, q, row, s, first) for b, q, s in asked]]

        second_pass = self._vectors(renew)
        read, values = self._totals(reads, "y")
        left = [part.leave(n, row, v, value) for n, value in zip(part.reads, values, strict=True)]
        allocated = [tirx.AllocBuffer(b) for b in (old, new, *sums, *reads)]
        return [allocated, zeros, first_pass, summed, numbers.sets, second_pass, read, left]

    def _add(self, into: Buffer, node: Node, row: Expr, values: Buffer, first: Expr) -> Stmt:
        """A vector's products with the values of a row, beginning with key `first`."""

        def one(j: Expr) -> Expr:
            return self.part.until_end(self.part.number(node, row, first + j) * load(values, j), first + j, 0.0)

        return self._set(into, lambda j: load(into, j) + one(j))

    def _totals(self, sums: Sequence[Buffer], name: str) -> tuple[list[Block], list[Expr]]:
        found, values = list[Block](), list[Expr]()
        for wide in sums:
            numbers = Numbers(self.part.dtype)
            halves, value = across(wide, self.part.lanes, self.part.dtype)
            values.append(numbers(name, value))
            found += [halves, numbers.sets]
        return found, values

    # --- vectors of the key axis -------------------------------------------------------------------------------------

    def _lanes(self, name: str) -> Buffer:
        return tirx.decl_buffer((self.part.lanes,), self.part.dtype, name=name, scope="local")

    def _set(self, into: Buffer, value: Callable[[Expr], Expr]) -> Stmt:
        return vector("j", self.part.lanes, lambda j: store(into, j, value(j)))

    def _set_keys(self, into: Buffer, value: Callable[[Expr], Expr], first: Expr) -> Stmt:
        return self._set(into, lambda j: value(first + j))

    def _vectors(self, body: Callable[[Expr], Block]) -> Stmt:
        """body(first key) for each vector. The last one may go past the end, into padding."""
        lanes = self.part.lanes
        return loop("part", -(-self.part.keys // lanes), lambda i: body(i * int64(lanes)))

    def _put_all(self, into: Array, value: Callable[[Expr, Expr], Expr]) -> Stmt:
        def some(v: Expr, first: Expr) -> Stmt:
            return vector("j", self.part.lanes, lambda j: self._put(into, v, first + j, value(v, first + j)))

        return loop("value", self.count, lambda v: self._vectors(partial(some, v)))

    def _get(self, array: Array, v: Expr, key: Expr) -> Expr:
        return load(self.part.work.places.buffers[array.buffer], self._address(array, v, key))

    def _put(self, array: Array, v: Expr, key: Expr, value: Expr) -> Stmt:
        return store(self.part.work.places.buffers[array.buffer], self._address(array, v, key), value)

    def _address(self, array: Array, v: Expr, key: Expr) -> Expr:
        return array.address(self.part.row, self.part.index(key, self.part.first + v))
