"""Convolutions on CPUs: vectors run along an image's rows, and a register tile of several results keeps its sums while
all channels and taps pass.

In: a reduce group whose root is the einsum of a kernel made of parameters with the windows of an array (what `conv`
becomes in `passes/normalise.py`): the kernel in memory as [C, *taps, *results], the operand [C, *S] padded with its
zeros. Out: a statement. No matrix of windows is written: each tap reads the operand at its own distance.

Rewrite: y[e, f, y, x] = sum of k[c, u, v, e, f] * a[c, y + u, x + v]
         -->  parallel for row, y: for e, f, x: (registers) for c, u, v: acc += k[c, u, v, e, f] a[c, y + u, x + v]

Source: Georganas et al. 2018, "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.graph.ops import Shape
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, floordiv, floormod, load, loop

from .register_tile import Places
from .workspace import Array

MOST_VECTORS = 4  # of an image's row in one tile
FEW_ROWS = 4  # of an image: threads share its channels too


@dataclass(frozen=True)
class Form:
    """A kernel [C, *taps, *lead] over an operand [C, *S]: results [*lead, *places]."""

    kernel: Node
    operand: Node
    channels: int
    taps: Shape
    dilation: Shape
    lead: Shape
    places: Shape

    @property
    def steps(self) -> tuple[int, int]:
        """From one tap to the next, of the last two axes; a line is an image of one row."""
        return (self.dilation[0] if len(self.taps) == 2 else 1), self.dilation[-1]

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of results."""
        return (self.places[0] if len(self.places) == 2 else 1), self.places[-1]

    @property
    def window(self) -> tuple[int, int]:
        """Taps of both axes."""
        return (self.taps[0] if len(self.taps) == 2 else 1), self.taps[-1]


def form(node: Node) -> Form | None:
    """What convolution an einsum is; None where it is none."""
    if node.op != "einsum" or node.args[1].op != "windows":
        return None
    kernel, seen = node.args
    rank = len(seen.attrs["taps"])
    inputs, out = node.attrs["spec"].split("->")
    left, right = inputs.split(",")
    lead = out[:-rank]
    if left != right[:-rank] + lead or out != lead + right[-rank:] or not lead or rank > 2:
        return None
    shape, how = kernel.shape, seen.attrs
    return Form(kernel, seen.args[0], shape[0], how["taps"], how["dilation"], shape[1 + rank :], node.shape[-rank:])


@dataclass(frozen=True)
class Convolution:
    """One group on some rows. registers: of the target, of `lanes` elements each."""

    group: Group
    form: Form
    places: Places
    lanes: int
    registers: int

    def statement(self, rows: Expr, parallel: int) -> Stmt | None:
        """The whole group, or None where its operands are no arrays. parallel: elements of work that threads share."""
        kernel, operand = self.places.read(self.form.kernel), self.places.read(self.form.operand)
        if kernel is None or operand is None:
            return None
        arrays, (height, _) = (kernel, operand), self.form.image
        tall, wide, deep = self._tile()
        shared = [height // tall]
        inner = [-(-self.form.lead[-1] // deep), *self.form.lead[:-1]]
        if shared[0] < FEW_ROWS:
            shared, inner = [*shared, *inner], []
        total = prod(self.form.taps) * self.form.channels * prod(self.form.lead) * prod(self.form.places)

        def job(i: tirx.Var) -> list[Block]:
            sets, index = _split(i, shared)
            row, set_row = bind("row", floordiv(i, prod(shared)))

            def nest(known: Sequence[Expr]) -> Block:
                if len(known) < 1 + len(self.form.lead):
                    return loop("o", inner[len(known) - len(shared)], lambda o: nest([*known, o]))
                return self._results(arrays, row, known, (tall, wide, deep))

            return [*sets, set_row, nest(index)]

        return loop("i", rows * int64(prod(shared)), job, parallel=total >= parallel)

    def _tile(self) -> tuple[int, int, int]:
        """Rows of the image, vectors of each, and results: as many sums as leave registers for what is loaded."""
        height, width = self.form.image
        vectors = -(-width // self.lanes)
        wide = -(-vectors // -(-vectors // MOST_VECTORS))
        tall = next(n for n in range(max(1, MOST_VECTORS // wide), 0, -1) if height % n == 0)
        most = max(1, self.registers * 3 // 4 // (tall * wide))
        return tall, wide, -(-self.form.lead[-1] // -(-self.form.lead[-1] // most))

    def _results(
        self, arrays: tuple[Array, Array], row: Expr, known: Sequence[Expr], tile: tuple[int, int, int]
    ) -> list[Block]:
        """All vectors of the tile's rows. Where tiles do not divide an axis, the last one goes over some places
        again."""
        tall, wide, deep = tile
        y, set_y = bind("y", known[0] * int64(tall))
        f, set_f = bind("f", _within(known[1], deep, self.form.lead[-1]))
        vectors = -(-self.form.image[1] // self.lanes)

        def one(x: tirx.Var) -> list[Block]:
            p, set_p = bind("p", _within(x, wide, vectors) * int64(self.lanes))
            return [set_p, _Tile(self, arrays, row, (*known[2:], f), (y, p), tile).statement()]

        return [set_y, set_f, loop("x", -(-vectors // wide), one)]


def _within(i: Expr, size: int, extent: int) -> Expr:
    """Where part i of an axis begins, so that it ends inside."""
    return i * int64(size) if extent % size == 0 else tirx.min(i * int64(size), int64(extent - size))


def _split(i: Expr, sizes: Sequence[int]) -> tuple[list[Stmt], list[Expr]]:
    """The place along each of some axes, first axis outermost."""
    sets, found, rest = list[Stmt](), list[Expr](), prod(sizes)
    for size in sizes:
        rest //= size
        var, set_var = bind("j", floormod(floordiv(i, rest), size))
        sets.append(set_var)
        found.append(var)
    return sets, found


@dataclass(frozen=True)
class _Tile:
    """Sums of `deep` results from `lead` on, at `tall` rows of `wide` vectors from `at` = (y, x) on."""

    own: Convolution
    arrays: tuple[Array, Array]
    row: Expr
    lead: Sequence[Expr]
    at: tuple[Expr, Expr]
    size: tuple[int, int, int]

    def statement(self) -> list[Block]:
        tall, wide, deep = self.size
        lanes, form = self.own.lanes, self.own.form
        kernel, operand = self.arrays
        dtype = self.own.places.buffers[operand.buffer].dtype
        count = tall * wide
        sums, seen = (
            tirx.decl_buffer((n * lanes,), dtype, name=name, scope="local")
            for name, n in (("sums", deep * count), ("seen", count))
        )
        zero = tirx.Broadcast(tirx.const(0.0, dtype), lanes)

        def tap(c: Expr, u: Expr, v: Expr) -> list[Block]:
            first = (c, u, v) if len(form.taps) == 2 else (c, v)
            base, set_base = bind("k", kernel.address(0, (*first, *self.lead)))
            parts: list[Block] = [set_base]
            weights, source = (self.own.places.buffers[a.buffer] for a in (kernel, operand))
            for n, (r, w) in enumerate((r, w) for r in range(tall) for w in range(wide)):
                parts.append(self._put(seen, n, load(source, self._vector(self._read(c, u, v, r, w)))))
            for o in range(deep):
                weight = tirx.Broadcast(load(weights, base + int64(o)), lanes)
                for n in range(count):
                    place = self._vector(int64((o * count + n) * lanes))
                    value = load(sums, place) + weight * load(seen, self._vector(int64(n * lanes)))
                    parts.append(tirx.BufferStore(sums, value, [place]))
            return parts

        taps_y, taps_x = form.window
        body = loop(
            "c",
            form.channels,
            lambda c: loop("u", taps_y, lambda u: [tap(c, u, int64(v)) for v in range(taps_x)]),
        )
        begin = [self._put(sums, n, zero) for n in range(deep * count)]
        return [tirx.AllocBuffer(sums), tirx.AllocBuffer(seen), *begin, body, self._results(sums)]

    def _vector(self, address: Expr) -> Expr:
        return tirx.Ramp(address, int64(1), self.own.lanes)

    def _put(self, into: Buffer, number: int, value: Expr) -> Stmt:
        return tirx.BufferStore(into, value, [self._vector(int64(number * self.own.lanes))])

    def _read(self, c: Expr, u: Expr, v: Expr, r: int, w: int) -> Expr:
        (y, x), (step_y, step_x) = self.at, self.own.form.steps
        column = x + int64(w * self.own.lanes) + v * int64(step_x)
        index = (c, y + int64(r) + u * int64(step_y), column) if len(self.own.form.taps) == 2 else (c, column)
        return self.arrays[1].address(self.row, index)

    def _results(self, sums: Buffer) -> list[Stmt]:
        """The sums to where the group's value goes; lanes past the end of a row are padding there."""
        (tall, wide, deep), (y, x), root = self.size, self.at, self.own.group.root
        assert root is not None
        parts = []
        for array in self.own.places.write(root):
            for o, r, w in ((o, r, w) for o in range(deep) for r in range(tall) for w in range(wide)):
                column = x + int64(w * self.own.lanes)
                place = (y + int64(r), column) if len(self.own.form.taps) == 2 else (column,)
                address = array.address(self.row, (*self.lead[:-1], self.lead[-1] + int64(o), *place))
                value = load(sums, self._vector(int64(((o * tall + r) * wide + w) * self.own.lanes)))
                parts.append(tirx.BufferStore(self.own.places.buffers[array.buffer], value, [self._vector(address)]))
        return parts
