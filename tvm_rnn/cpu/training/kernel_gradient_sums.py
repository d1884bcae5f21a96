"""Sums over all rows of a tile of time and all places of an image: the gradient of a convolution's kernel.

In: an einsum_rows node of a gradient with the windows of an operand, how many rows there are, and where operands and
the sum live. Out: a statement that adds to the sum in place. Vectors run along the image's rows; a register tile has
several results by the taps of the window, or of one of its rows where that is too many. Some channels belong to one
thread: it copies the operand's images of those channels with their zeros to a buffer in the L2 cache, as many rows of
the batch at once as fit; then all results pass over it, a few at a time, which stay in the L1 cache for all channels.

Rewrite: k[e, f, c, u, v] += sum over rows, y, x of g[e, f, y, x] a[c, y + u, x + v]
         -->  parallel for some c: for rows: (buffer) a[c]; for e, f: for c: (registers) for y, x: acc[f, u, v] += g a;
              k += acc
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from tvm import tirx

from tvm_rnn.cpu.lower_group import PARALLEL_ELEMENTS
from tvm_rnn.cpu.register_tile import Places
from tvm_rnn.cpu.tir_pipeline import STACK_BYTES
from tvm_rnn.cpu.workspace import Array, pad
from tvm_rnn.cpu.zero_padding import columns, padded
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, load, loop, store, vector, when

CACHED_BYTES = 1 << 15  # of the L1 cache: a channel of the operand, and some results' gradients
MOST_BYTES = STACK_BYTES  # of all channels that a thread has at once, on its stack
SHARES = 8  # of the channels, for threads; of the results, at most half as many
MOST_PARTS = 8  # of the leading axes, each of which has code of its own


@dataclass(frozen=True)
class KernelGradient:
    """The sum of one node. registers: of the target, of `lanes` elements each."""

    node: Node
    rows: Expr
    places: Places
    into: Array
    lanes: int
    registers: int

    @property
    def fits(self) -> bool:
        """Whether the node is such a sum, and an image's rows fit into the buffer."""
        if self.node.op != "einsum_rows" or self.node.args[1].op != "windows":
            return False
        (left, right), rank = self.node.attrs["spec"].partition("->")[0].split(","), len(self.taps)
        lead = left[: len(left) - rank]
        wanted = f"{lead}{right[: 1 + rank]}"
        whole = left[len(lead) :] == right[-rank:] and self.node.attrs["spec"].partition("->")[2] == wanted
        return whole and bool(lead) and rank <= 2 and self.held[1] > 0 and prod(self.lead[:-1]) <= MOST_PARTS

    @property
    def taps(self) -> Shape:
        found: Shape = self.node.args[1].attrs["taps"]
        return found

    @property
    def lead(self) -> Shape:
        """The axes of results."""
        return self.node.shape[: len(self.node.shape) - 1 - len(self.taps)]

    @cached_property
    def image(self) -> tuple[int, int]:
        """Rows and columns of the gradient; a line is an image of one row."""
        places = self.node.args[0].shape[len(self.lead) :]
        return (places[0] if len(places) == 2 else 1), places[-1]

    @cached_property
    def window(self) -> tuple[int, int, int, int]:
        """Taps of both axes, and from one to the next."""
        steps = self.node.args[1].attrs["dilation"]
        if len(self.taps) == 1:
            return 1, self.taps[0], 1, steps[0]
        return (*self.taps, *steps)

    @property
    def dtype(self) -> str:
        return str(self.places.buffers[self.into.buffer].dtype)

    @cached_property
    def pitch(self) -> int:
        """From one row of the buffer to the next."""
        _, taps, _, step = self.window
        return pad(pad(self.image[1], self.lanes) + step * (taps - 1), self.lanes)

    @cached_property
    def held(self) -> tuple[int, int]:
        """How many rows of the batch the buffer holds at once, and how many rows of the gradient of each."""
        taps, _, step, _ = self.window
        line = (self.pitch + self.tile[0] * pad(self.image[1], self.lanes)) * np.dtype(self.dtype).itemsize
        lines, reach = CACHED_BYTES // line, step * (taps - 1)
        strip = min(self.image[0], lines - reach)
        if 0 < strip < self.image[0]:  # strips of one height, as far as that goes
            strip = -(-self.image[0] // -(-self.image[0] // strip))
        return (max(1, lines // (strip + reach)) if strip == self.image[0] else 1), strip

    @property
    def reach(self) -> int:
        """Rows of the operand for one strip."""
        taps, _, step, _ = self.window
        return self.held[1] + step * (taps - 1)

    @cached_property
    def images(self) -> int:
        """How many channels one thread has at once."""
        channels, size = self.node.args[1].shape[0], np.dtype(self.dtype).itemsize
        most = max(1, min(channels // SHARES, MOST_BYTES // (self.image_elements * size)))
        return next(n for n in range(most, 0, -1) if channels % n == 0)

    @property
    def image_elements(self) -> int:
        """Of the buffer, for one channel."""
        return self.held[0] * self.reach * self.pitch

    def statement(self) -> Stmt:
        work = prod(self.node.shape) * prod(self.image)
        jobs = self.node.args[1].shape[0] // self.images * self.ranges

        def job(i: tirx.Var) -> list[Block]:
            share, set_share = bind("share", tirx.floordiv(i, int64(self.ranges)))
            results, set_results = bind("results", tirx.floormod(i, int64(self.ranges)))
            return [set_share, set_results, *self._channels(share, results)]

        return loop("c", jobs, job, parallel=work >= PARALLEL_ELEMENTS)

    def _channels(self, share: Expr, results: Expr) -> list[Block]:
        (many, strip), height = self.held, self.image[0]
        held = tirx.decl_buffer((self.images * self.image_elements,), self.dtype, name="held", scope="local")

        def chunk(i: tirx.Var) -> list[Block]:
            first, set_first = bind("first", i * int64(many))
            count, set_count = bind("count", tirx.min(int64(many), self.rows - first))

            def part(s: tirx.Var) -> list[Block]:
                top, set_top = bind("top", tirx.min(s * int64(strip), int64(height - strip)))
                done, set_done = bind("done", s * int64(strip) - top)  # by the strip before
                place = _Place(held, share * int64(self.images), results, first, count, top, done)

                def copy(c: Expr) -> Stmt:
                    return loop("r", count, lambda r: loop("h", self.reach, lambda h: self._copied(place, c, r, h)))

                return [
                    *(set_top, set_done, loop("n", self.images, copy)),
                    [self._results(place, own) for own in self._parts()],
                ]

            return [set_first, set_count, loop("s", -(-height // strip), part)]

        return [tirx.AllocBuffer(held), loop("i", tirx.floordiv(self.rows + int64(many - 1), int64(many)), chunk)]

    def _line(self, c: Expr, r: Expr, h: Expr) -> Expr:
        """Where a row of the buffer begins. c: of the channels that this thread has."""
        return ((c * int64(self.held[0]) + r) * int64(self.reach) + h) * int64(self.pitch)

    def _copied(self, place: _Place, c: Expr, r: Expr, h: Expr) -> list[Block]:
        """A row of the operand to the buffer, padded; zeros up to where vectors read."""
        operand = self.node.args[1].args[0]
        image, width = padded(operand, self.dtype), operand.shape[-1]
        at, channel = self._line(c, r, h), place.channel + c
        lead, y = ((channel,), place.top + h) if len(self.taps) == 2 else ((), channel)

        def put(x: Expr, value: Expr) -> Stmt:
            return store(place.held, at + x, value)

        zero = tirx.const(0.0, self.dtype)
        rest = columns(self.pitch - width, lambda x: put(int64(width) + x, zero), self.lanes)
        return [image.row(lead, y, self._reader(image.image, place.first + r), put, self.lanes), rest]

    def _reader(self, node: Node, row: Expr) -> Callable[[Index], Expr]:
        def read(n: Node, index: Index) -> Expr | None:
            array = self.places.read(n)
            return None if array is None else load(self.places.buffers[array.buffer], array.address(row, index))

        return lambda index: element(node, index, read, self.dtype)

    def _parts(self) -> list[Index]:
        """The places of the leading axes but the last: each has code of its own, for gates are joined of parts."""
        return list(product(*map(range, self.lead[:-1])))

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Results and rows of the window in one tile of registers."""
        (taps, across, _, _), most = self.window, self.registers * 3 // 4
        rows = taps if taps * across * 2 <= most else 1
        count = self.lead[-1]
        return -(-count // -(-count // max(1, most // (rows * across)))), rows

    @cached_property
    def ranges(self) -> int:
        """Of tiles of results, each a thread's own."""
        whole = self.lead[-1] // self.tile[0]
        return next(n for n in range(SHARES // 2, 0, -1) if whole % n == 0)

    def _results(self, place: _Place, own: Index) -> list[Block]:
        """All results of one place of the leading axes, several at once, which all channels read."""
        (deep, rows), taps = self.tile, self.window[0]
        whole, rest = divmod(self.lead[-1], deep)

        def tile(f: Expr, size: int) -> Stmt:
            def channel(c: tirx.Var) -> Stmt:
                return loop("u", taps // rows, lambda u: self._tile(place, c, (*own, f), size, u * int64(rows)))

            return loop("n", self.images, channel)

        own_tiles = whole // self.ranges
        full = loop("f", own_tiles, lambda f: tile((place.results * int64(own_tiles) + f) * int64(deep), deep))
        last = when(tirx.EQ(place.results, int64(self.ranges - 1)), [tile(int64(whole * deep), rest)]) if rest else None
        return [full, last]

    def _tile(self, place: _Place, c: Expr, own: Index, deep: int, u: Expr) -> list[Block]:
        """Sums of some results by the taps of some rows of the window, from u on."""
        (_, across, step_y, step_x), rows = self.window, self.tile[1]
        (_, strip), width, lanes = self.held, self.image[1], self.lanes
        window = list(product(range(rows), range(across)))
        sums, grads, total = (
            tirx.decl_buffer((n * lanes,), self.dtype, name=name, scope="local")
            for name, n in (("sums", deep * len(window)), ("grads", deep), ("total", 1))
        )
        zero = tirx.const(0.0, self.dtype)

        def at(address: Expr, count: int = lanes) -> Expr:
            return tirx.Ramp(address, int64(1), count)

        def gradient(row: Expr, y: Expr, x: Expr, o: int) -> Stmt:
            value = self._reader(self.node.args[0], row)

            def one(v: tirx.Var) -> Stmt:
                column = x * int64(lanes) + v
                image = (y, column) if len(self.taps) == 2 else (column,)
                found = value((*own[:-1], own[-1] + int64(o), *image))
                kept = found if width % lanes == 0 else tirx.Select(column < int64(width), found, zero)
                return store(grads, int64(o * lanes) + v, kept)

            return vector("v", lanes, one)

        def products(r: Expr, y: Expr, x: Expr) -> list[Block]:
            line = self._line(c, r, y + u * int64(step_y)) + x * int64(lanes)
            parts: list[Block] = [gradient(place.first + r, place.top + y, x, o) for o in range(deep)]
            for n, (w, v) in enumerate(window):
                seen = load(place.held, at(line + int64(w * step_y * self.pitch + v * step_x)))
                for o in range(deep):
                    sum_at = at(int64((o * len(window) + n) * lanes))
                    value = load(sums, sum_at) + load(grads, at(int64(o * lanes))) * seen
                    parts.append(tirx.BufferStore(sums, value, [sum_at]))
            return parts

        def lines(r: tirx.Var) -> Stmt:
            def line(i: tirx.Var) -> list[Block]:
                y, set_y = bind("y", place.done + i)
                return [set_y, loop("x", -(-width // lanes), lambda x: products(r, y, x))]

            return loop("y", int64(strip) - place.done, line)

        blank = tirx.Broadcast(zero, lanes)
        begin = [tirx.BufferStore(sums, blank, [at(int64(n * lanes))]) for n in range(deep * len(window))]
        ends: list[Block] = []
        for o, (n, (w, v)) in product(range(deep), enumerate(window)):
            ends.append(tirx.BufferStore(total, load(sums, at(int64((o * len(window) + n) * lanes))), [at(int64(0))]))
            half = lanes // 2
            while half > 1:
                both = load(total, at(int64(0), half)) + load(total, at(int64(half), half))
                ends.append(tirx.BufferStore(total, both, [at(int64(0), half)]))
                half //= 2
            tap = (u + int64(w), v) if len(self.taps) == 2 else (v,)
            address = self.into.address(0, (*own[:-1], own[-1] + int64(o), place.channel + c, *tap))
            into = self.places.buffers[self.into.buffer]
            last = load(total, int64(0)) + load(total, int64(1)) if lanes > 1 else load(total, int64(0))
            ends.append(store(into, address, load(into, address) + last))
        return [*(tirx.AllocBuffer(b) for b in (sums, grads, total)), begin, loop("r", place.count, lines), ends]


@dataclass(frozen=True)
class _Place:
    """What the buffer holds: of `count` rows of the batch from `first` on the operand of channels from `channel` on for
    the gradient's rows from `top` on, of which `done` are added up already. results: the range that is asked for."""

    held: Buffer
    channel: Expr
    results: Expr
    first: Expr
    count: Expr
    top: Expr
    done: Expr
