"""Sums over all rows of a tile of time: the GEMM of a weight's gradient, and sums of single values.

In: a `sum_rows` or `einsum_rows` node, how many rows there are, and where operands and the sum live. Out: a statement
that adds to the sum in place. It is a product with exchanged roles: what is summed is rows (steps x batch), what are
rows in a forward product are here the elements of one operand. Each element of the sum belongs to one thread and is
added up in the order of the rows: results do not depend on the number of threads. A vector is made once for all
elements that are multiplied with it: it may be a choice among arrays, as that of a moved picture is. Sums that are
alike, as those of gates are, have one loop around one such nest.

Rewrite: for m, n, row: sum[m, n] += a[row, m] b[row, n]
         -->  parallel for tile of m: for vectors of n: (registers) for row: v = b;  acc += a v;  sum += acc
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.lower_group import PARALLEL_ELEMENTS, Emitter, Used
from tvm_rnn.cpu.register_tile import Places, Tile, added
from tvm_rnn.cpu.register_tile_stages import in_registers
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.graph.tensor_expressions import Index, Reader, element
from tvm_rnn.schedule.schedule_template import Config, Template, Unit, best
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, Named, load, loop, sequence, store, variable, vector, when

from .kernel_gradient_sums import KernelGradient

ROW_SUMS = "totals"  # the buffer's name in compiled code: what users' tools read there stays


@dataclass(frozen=True)
class Axes:
    """The letters of a sum. outer: looped over outside; tall: rows of the register tile, or ""; last: the vectors'
    letter, or "" for a scalar; summed: besides the rows. operands: the letters of each."""

    out: str
    outer: str
    tall: str
    last: str
    summed: str
    operands: tuple[str, ...]
    sizes: Mapping[str, int]

    def extent(self, letter: str) -> int:
        return self.sizes[letter] if letter else 1


def vector_axes(node: Node) -> Axes:
    """How a sum is cut: vectors run along its last axis, and a second letter of the other operand makes the tile two
    values deep, so that each loaded vector is used several times."""
    if node.op == "sum_rows":
        out = "abcdefgh"[: len(node.shape)]
        operands: tuple[str, ...] = (out,)
    else:
        inputs, out = node.attrs["spec"].split("->")
        operands = tuple(inputs.split(","))
    sizes = {t: s for text, a in zip(operands, node.args, strict=True) for t, s in zip(text, a.shape, strict=True)}
    last = out[-1:]
    single = [t for t in out[:-1] if any(t in text and last not in text for text in operands)]
    tall = single[-1] if single else ""
    outer = "".join(t for t in out[:-1] if t != tall)
    return Axes(out, outer, tall, last, "".join(t for t in sizes if t not in out), operands, sizes)


def accumulate(
    emitter: Emitter, nodes: Sequence[Node], rows: Expr, places: Places, into: Callable[[Node], Array]
) -> list[Stmt]:
    """into(node) += the sum of each node over rows 0 to `rows` of its operands. Those that differ only in where they
    lie, as gates do, share their code."""
    alike: dict[Hashable, list[Node]] = {}
    for node in nodes:
        operands = tuple(_kind(a, places.read(a)) for a in node.args)
        alike.setdefault((node.op, *sorted(node.attrs.items()), operands), []).append(node)
    return [_together(emitter, family, rows, places, [into(n) for n in family]) for family in alike.values()]


def _kind(operand: Node, array: Array | None) -> Hashable:
    """What two operands have in common whose sums share their code: in memory, all but the place."""
    return operand if array is None else (array.buffer, array.row_stride, array.strides, array.shape)


def _together(emitter: Emitter, nodes: Sequence[Node], rows: Expr, places: Places, into: Sequence[Array]) -> Stmt:
    """Sums that are alike: one loop around the code of one."""
    node, *others = nodes
    if not others:
        return _accumulate(emitter, node, rows, places, *into)
    found = [[places.read(n.args[i]) for n in nodes] for i in range(len(node.args))]
    lying = {i: [a for a in arrays if a is not None] for i, arrays in enumerate(found) if arrays[0] is not None}
    leaf = {i: Node("input", shape=node.args[i].shape, name=f"operand_{i}") for i in lying}
    one = make(node.op, *(leaf.get(i, a) for i, a in enumerate(node.args)), **node.attrs)

    def body(number: Expr) -> list[Block]:
        named = Named()

        def chosen(arrays: Sequence[Array]) -> Array:
            base = arrays[0].base
            for i, array in enumerate(arrays[1:], 1):
                base = tirx.Select(number < int64(i), base, array.base)
            return replace(arrays[0], base=named("base", base))

        own, place = {leaf[i]: chosen(arrays) for i, arrays in lying.items()}, chosen(into)
        reads = replace(places, read=lambda n: own[n] if n in own else places.read(n))
        return [*named.sets, _accumulate(emitter, one, rows, reads, place)]

    return loop("alike", len(nodes), body)


def _accumulate(emitter: Emitter, node: Node, rows: Expr, places: Places, into: Array) -> Stmt:
    kernel = KernelGradient(node, rows, places, into, emitter.lanes, emitter.target.vector_registers)
    if kernel.fits:
        return kernel.statement()
    axes = vector_axes(node)
    height, width = axes.extent(axes.tall), axes.extent(axes.last)
    unit = Unit("sum_rows", "after", emitter.dtype, 1, width, (height,), 0, emitter.batches)
    chosen = best(unit, emitter.target)
    emitter.used.append(Used(unit, *chosen))
    own = replace(places, write=lambda n: [into])
    work = _Sum(node, axes, rows, own, into, unit, chosen.template, chosen.knobs, emitter.lanes)
    return work.statement()


@dataclass(frozen=True)
class _Sum:
    node: Node
    axes: Axes
    rows: Expr
    places: Places
    into: Array
    unit: Unit
    template: Template
    config: Config
    lanes: int

    def statement(self) -> Stmt:
        """Loops over outer indices and over tiles; the leftover of a tall axis is a tile of its own."""
        axes = self.axes
        height, vectors = axes.extent(axes.tall), -(-axes.extent(axes.last) // self.lanes)
        whole, rest = divmod(height, self.config["rows"])
        total = height * vectors * self.lanes * prod(axes.sizes[letter] for letter in axes.outer)

        def nest(known: dict[str, Expr]) -> Stmt:
            letters = axes.outer[len(known) :]
            if letters:
                return loop(letters[0], axes.sizes[letters[0]], lambda i: nest({**known, letters[0]: i}))
            count = whole + (rest > 0)
            return loop("m", count, lambda m: self._tall(m, whole, rest, vectors, known), total >= PARALLEL_ELEMENTS)

        return nest({})

    def _tall(self, m: Expr, whole: int, rest: int, vectors: int, known: dict[str, Expr]) -> Stmt:
        first = m * int64(self.config["rows"])
        full = self._wide(self.config["rows"], first, vectors, known) if whole else None
        short = self._wide(rest, first, vectors, known) if rest else None
        if full is None or short is None:
            return sequence(full, short)
        return when(m < int64(whole), full, short)

    def _wide(self, height: int, first: Expr, vectors: int, known: dict[str, Expr]) -> Stmt:
        across = min(self.config["panels"], vectors)
        whole, rest = divmod(vectors, across)

        def tile(count: int, at: Expr) -> Stmt:
            return self._tile(height, count, first, at, known)

        parts = [loop("p", whole, lambda p: tile(across, p * int64(across)))] if whole else []
        return sequence(parts, tile(rest, int64(whole * across)) if rest else None)

    def _tile(self, height: int, across: int, first: Expr, panel0: Expr, known: dict[str, Expr]) -> Stmt:
        """One register tile: its sum over all rows, added to what is there."""
        axes, group = self.axes, Group("sum_rows", "after", 0, self.node, (self.node,), (self.node,))
        made = self._made_once(across) if height > 1 else {}
        local = {_vectors(number): buffer for number, buffer in made.items()}
        places = replace(self.places, buffers={**self.places.buffers, **local})
        tile = Tile(group, places, self.unit, self.lanes, rows=height, panels=across, panel0=panel0)
        row, inner = variable("row"), {t: variable(f"summed_{t}") for t in axes.summed}

        def product(m: Expr, p: Expr, v: Expr) -> Expr:
            place = {**known, axes.tall: first + m, axes.last: tile.unit_of(p, v), **inner}
            value: Expr | None = None
            for number, (text, operand) in enumerate(zip(axes.operands, self.node.args, strict=True)):
                if number in made:
                    one: Expr = tile.at(_vectors(number), p * self.lanes + v)
                else:
                    one = self._operand(operand, text, place, lambda n, i: tile.load(n, row, i))
                value = one if value is None else value * one
            assert value is not None
            return value

        shape = (height, across, self.lanes)
        summed = {row: self.rows, **{k: axes.sizes[t] for t, k in inner.items()}}
        sums = in_registers("product_0", shape, self.unit.dtype, product, added(summed, self.unit.dtype))
        tile.sums.append(sums)
        array = self.into if self.node.shape else replace(self.into, strides=(1,))

        def at(m: Expr, p: Expr, v: Expr) -> Index:
            unit = tile.unit_of(p, v)
            place = {**known, axes.tall: first + m, axes.last: unit}
            return tuple(place[t] for t in axes.out) if axes.out else (unit,)

        def with_earlier(m: Expr, p: Expr, v: Expr) -> Expr:
            return sums(m, p, v) + tile.at(ROW_SUMS, array.address(0, at(m, p, v)))

        tile.store(array, shape, with_earlier, at)
        done = tile.statement(self.template, self.config)
        return self._with_vectors(done, made, across, panel0, known) if made else done

    def _made_once(self, across: int) -> dict[int, Buffer]:
        """Registers for vectors of the operands that are the same for all rows of a tile, by the operand's number."""
        found = {}
        for number, text in enumerate(self.axes.operands):
            if self.axes.last in text and self.axes.tall not in text:
                size = (across * self.lanes,)
                found[number] = tirx.decl_buffer(size, self.unit.dtype, name=_vectors(number), scope="local")
        return found

    def _with_vectors(
        self, tile: Stmt, made: Mapping[int, Buffer], across: int, panel0: Expr, known: Mapping[str, Expr]
    ) -> Stmt:
        """The tile, in whose innermost loop over what is summed vectors are made before they are multiplied."""
        names = {"row": "row", **{f"summed_{t}": t for t in self.axes.summed}}
        loops: dict[str, tirx.Var] = {}

        def note(own: tirx.For) -> None:
            if own.loop_var.name in names:
                loops[names[own.loop_var.name]] = own.loop_var

        tvm_ffi.structural_walk(tile, (tirx.For, note))
        innermost = next(loops[t] for t in (*reversed(self.axes.summed), "row") if t in loops)

        def read(node: Node, index: Index) -> Expr | None:
            array = self.places.read(node)
            if array is None:
                return None
            return load(self.places.buffers[array.buffer], array.address(loops["row"], index))

        def make(number: int, p: int) -> Stmt:
            text, operand = self.axes.operands[number], self.node.args[number]
            sums: dict[str, Expr] = {t: loops.get(t, int64(0)) for t in self.axes.summed}

            def one(v: tirx.Var) -> Stmt:
                place = {**known, **sums, self.axes.last: (panel0 + int64(p)) * int64(self.lanes) + v}
                return store(made[number], int64(p * self.lanes) + v, self._operand(operand, text, place, read))

            return vector("v", self.lanes, one)

        def first(own: tirx.For) -> tirx.For:
            if not own.loop_var.same_as(innermost):
                return own
            body = sequence([make(number, p) for number in made for p in range(across)], own.body)
            return tirx.For(own.loop_var, own.min, own.extent, own.kind, body)

        return sequence([tirx.AllocBuffer(b) for b in made.values()], tvm_ffi.structural_map(tile, (tirx.For, first)))

    def _operand(self, node: Node, text: str, place: Mapping[str, Expr], read: Reader) -> Expr:
        index = []
        for letter in text:
            i = place[letter]
            # Lanes past the end read padding only along an operand's own last axis.
            beyond = letter == self.axes.last and letter != text[-1] and self.axes.sizes[letter] % self.lanes
            index.append(tirx.min(i, int64(self.axes.sizes[letter] - 1)) if beyond else i)
        return element(node, tuple(index), read, self.unit.dtype)


def _vectors(number: int) -> str:
    """The name of the registers for vectors of that operand."""
    return f"vectors_{number}"
