"""A matrix and its gradient made again, for what backward reads of them along the axis of the keys.

In: a `Pair`. Out: `StepsAgain`, whose kernel has a warp for each part of the time, batch row, head and a few keys.
Before each part the tape has the matrix, and behind it the backward recurrence left the gradient; what a step makes of
either is known. So all parts of the time run at once, and no step waits for a product. A warp goes forward through its
part and keeps the matrix before every 8th step; then, from the last of these on, before each of the 8 steps, and back
through these with the gradient. What it keeps is each thread's own, in shared memory: nobody waits for anybody.

    S = decay * S + sum over writes of column * row           forward, or decay * (S + ...)
    output = sum over values of (vector * S before the step)  or of G after it
    G = decay * G + sum over writes of column * row           backward, likewise
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import DTYPES, LoadedLanes, pack, unpack
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

from .lane_sums import reduce_scatter
from .pair import BOTH, EVERY, GRADIENT, STATE, Pair, marks_name
from .part_place import Place

FEW = 8  # steps that the matrix is kept before, all of them, at a time
VALUES, KEYS = 8, 2  # of a lane: the values side by side in memory, the keys likewise
LANES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class StepsAgain:
    """Its kernels take the pair's pointers, then steps and batch; `reset` has flags of all steps, the first too."""

    name: str
    pair: Pair

    @property
    def across(self) -> int:
        """Lanes that share the values: the others have other keys, if there are as many."""
        own = self.pair
        return next(n for n in LANES if n == 32 or (n * VALUES >= own.values and 32 // n * KEYS <= own.keys))

    @property
    def each(self) -> int:
        """Values of a lane."""
        return ceil_div(self.pair.values, self.across)

    @property
    def deep(self) -> int:
        """Keys of a lane."""
        return KEYS if self.pair.keys >= KEYS and self.each <= VALUES else 1

    @property
    def keys(self) -> int:
        """Of a warp."""
        return 32 // self.across * self.deep

    @property
    def packed(self) -> bool:
        """Whether what is kept is rounded to 16 bits, as products of 16 bits would read it: a block is a warp, of which
        a multiprocessor has twice as many then. Nothing is rounded twice."""
        return SIZES[self.pair.precision] == 2 and self.each % 2 == 0

    @property
    def tiles(self) -> int:
        return ceil_div(self.pair.keys, self.keys)

    @property
    def threads(self) -> int:
        """Of a block: a warp."""
        return 32

    def blocks(self, batch: int, steps: int) -> int:
        """Of a launch."""
        return self.tiles * self.pair.heads * batch * ceil_div(steps, EVERY)

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        def run(w: Writer) -> None:
            with flavour(self.pair.precision):
                _Body(w, self, masked).run()

        pointers = (*self.pair.pointers, *(MASK_POINTERS if masked else ()))
        scalars = (("steps", "int32"), ("batch", "int32"), *(MASK_SCALARS if masked else ()))
        name = f"{self.name}_masked" if masked else self.name
        return write(name, pointers, scalars, run, threads=self.threads)


class _Operands:
    """What steps read, in registers as it is in memory: a step's is asked for while the one before it is made."""

    def __init__(self, body: _Body, names: Sequence[str]) -> None:
        self.body, self.w, self.raw = body, body.w, dict[str, list[LoadedLanes]]()
        for name in names:
            lanes = body.together(name)
            count = len(body.within(name)) // lanes
            self.raw[name] = [LoadedLanes(self.w, body.pair.operands[name].dtype, lanes) for _ in range(count)]

    def ask(self, step: TirExpr) -> None:
        """Of a step of the part; what is behind a vector's end stays 0."""
        w, body = self.w, self.body
        row = w.bind((wide(body.first) + wide(step)) * wide(w["batch"]))
        for name, raw in self.raw.items():
            rows, whole = body.pair.operands[name], body.whole(name)
            at = w.bind(body.place.base[name] + row * rows.stride)
            for piece, within in zip(raw, body.within(name)[:: raw[0].lanes], strict=True):
                with nullcontext() if whole else w.when(within < rows.width):
                    piece.load(name, at + wide(within))

    def take(self) -> dict[str, list[TirExpr]]:
        """What was asked for, float32."""
        found = dict[str, list[TirExpr]]()
        for name, raw in self.raw.items():
            values, scale = [v for piece in raw for v in piece.values()], self.body.pair.operands[name].scale
            floats = [converted(v, "float32") for v in values]
            found[name] = [self.w.keep(v if scale == 1.0 else v * scale) for v in floats]
        return found


class _Body:
    """A lane has some values of some keys: tile[key, value] is a register."""

    def __init__(self, w: Writer, steps: StepsAgain, masked: bool) -> None:
        self.w, self.steps, self.pair, self.masked = w, steps, steps.pair, masked
        self.place = Place(w, steps, masked)
        self._elements()

    def _elements(self) -> None:
        """The keys and values of a lane, and memory for what is kept."""
        w, own, steps, place = self.w, self.pair, self.steps, self.place
        self.lane, self.first, self.count, self.limit = place.lane, place.first, place.count, place.limit
        key = w.bind(place.key0 + tirx.truncdiv(self.lane, steps.across) * steps.deep)
        self.keys = [w.bind(key + i) for i in range(steps.deep)]
        value = w.bind(tirx.truncmod(self.lane, steps.across) * steps.each)
        self.values = [w.bind(value + i) for i in range(steps.each)]
        self.kept: Buffer | None = None
        if own.state is not None:
            size = 2 * FEW * steps.deep * steps.each * 32
            kind = "uint32" if steps.packed else "float32"
            self.kept = I.alloc_buffer((size // 2 if steps.packed else size,), kind, scope="shared")

    def within(self, name: str) -> list[TirExpr]:
        """Where in an operand of a step this lane's elements are."""
        if name.endswith("_decay") and self.pair.operands[name].width == 1:
            return [tirx.const(0, "int32")]
        return self.keys if name.endswith("_decay") or "_column_" in name else self.values

    def together(self, name: str) -> int:
        """How many elements of an operand a lane loads at once: they lie side by side, at a multiple of as many."""
        rows, within = self.pair.operands[name], self.within(name)
        if not self.whole(name) or rows.dtype not in DTYPES:
            return 1
        return gcd(8, len(within), rows.width, rows.stride, rows.offset)

    def whole(self, name: str) -> bool:
        """Whether every lane's elements are there."""
        found = self.within(name)
        if found is self.keys:
            return self.pair.keys % self.steps.keys == 0
        return found is not self.values or self.pair.values % (self.steps.across * self.steps.each) == 0

    # --- the walk --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        w, own = self.w, self.pair
        self.tiles = {name: w.tile(self.steps.deep, self.steps.each, 1) for name in own.made}
        every = {name: _Operands(self, list(made.operands(name))) for name, made in own.made.items()}
        back = _Operands(self, [n for n in own.operands if not n.startswith("state_")])
        for name in own.made:
            self._load(name)
        last = w.keep(tirx.truncdiv(self.limit + (FEW - 1), FEW) - 1)
        if own.state is not None:
            self._forward(every[STATE], tirx.const(0, "int32"), w.keep(last * FEW), marks=True)
        with w.loop(last + 1) as turn:
            begin = w.keep((last - turn) * FEW)
            count = w.keep(tirx.min(self.limit - begin, FEW))
            if own.state is not None:
                self._keep(STATE, tirx.truncdiv(begin, FEW), put=False)
                self._forward(every[STATE], begin, count, marks=False)
            self._backward(back, begin, count)
        first = tirx.EQ(tirx.truncmod(self.lane, self.steps.across), 0)
        with w.loop(self.count - self.limit) as late, w.when(first):
            step = w.bind(self.limit + late)
            for i in range(len(own.reads)):
                for key in self.keys:
                    self._put(i, step, key, tirx.const(0.0, "float32"))

    def _forward(self, operands: _Operands, begin: TirExpr, count: TirExpr, marks: bool) -> None:
        """`count` steps of the matrix. marks: it is kept before every FEW steps from `begin` on, and behind; else
        before each."""
        w = self.w
        with w.when(count > 0):
            operands.ask(begin)
        if marks:
            self._keep(STATE, tirx.const(0, "int32"), put=True)
        with w.loop(count) as i:
            now = operands.take()
            step = w.keep(begin + i)
            with w.when(i + 1 < count):
                operands.ask(w.keep(step + 1))
            self._restart(STATE, step, 0)
            if not marks:
                self._keep(STATE, i + FEW, put=True)
            self._make(STATE, now)
            if marks:
                with w.when(tirx.EQ(tirx.truncmod(i + 1, FEW), 0)):
                    self._keep(STATE, tirx.truncdiv(i + 1, FEW), put=True)

    def _backward(self, operands: _Operands, begin: TirExpr, count: TirExpr) -> None:
        """Back through `count` steps: what is read, then the gradient before the step."""
        w, own = self.w, self.pair
        operands.ask(w.keep(begin + count - 1))
        with w.loop(count) as i:
            now = operands.take()
            place = w.keep(count - 1 - i)
            step = w.keep(begin + place)
            with w.when(place > 0):
                operands.ask(w.keep(step - 1))
            if own.gradient is not None:
                self._restart(GRADIENT, step, 1)
            if own.state is not None:
                self._keep(STATE, place + FEW, put=False)
            self._reads(step, now)
            if own.gradient is not None:
                self._make(GRADIENT, now)

    def _restart(self, name: str, step: TirExpr, back: int) -> None:
        """A matrix is 0 before a step that has a flag; its gradient behind the step before that."""
        if not self.masked:
            return
        w = self.w
        time = w.keep(w["start"] + self.first + step + back)
        known = tirx.And(time < w["total"], time < self.place.end)
        with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
            flag = w["reset"][wide(time) * wide(w["batch"]) + wide(self.place.row)]
            with w.when(tirx.NE(tirx.Cast("int32", flag), tirx.const(0, "int32"))):
                self.tiles[name].fill(tirx.const(0.0, "float32"))

    def _make(self, name: str, now: dict[str, list[TirExpr]]) -> None:
        """What a step makes of a matrix."""
        tile, made = self.tiles[name], self.pair.made[name]
        for k in range(self.steps.deep):
            for v in range(self.steps.each):
                total: Expr = tile[k, v][0]
                decay = now.get(f"{name}_decay", [])
                left = decay[k if len(decay) > 1 else 0] if decay else None
                if left is not None and not made.late:
                    total = total * left
                for i in range(len(made.writes)):
                    total = total + now[f"{name}_column_{i}"][k] * now[f"{name}_row_{i}"][v]
                tile.store(total * left if left is not None and made.late else total, k, v, 0)

    # --- what is read ----------------------------------------------------------------------------------------------

    def _reads(self, step: TirExpr, now: dict[str, list[TirExpr]]) -> None:
        """All results of a step: lanes add up those of several at once."""
        w, first, total, deep = self.w, 0, len(self.pair.reads), self.steps.deep
        turns = tuple(n for n in LANES if n < self.steps.across)[::-1]
        while first < total:
            most = min(total - first, max(1, self.steps.across // deep))
            count = 1 << (most.bit_length() - 1)
            parts = [part for i in range(first, first + count) for part in self._products(i, now)]
            left = [parts] if len(parts) <= self.steps.across else [[part] for part in parts]
            for which, own in enumerate(left):
                sums, number, same = reduce_scatter(w, self.lane, own, turns)
                place = number + which
                for i in range(count):
                    mine = tirx.EQ(tirx.truncdiv(place, deep), i)
                    with w.when(tirx.And(mine, tirx.EQ(self.lane & same, 0))):
                        self._put(first + i, step, w.bind(self.keys[0] + tirx.truncmod(place, deep)), sums)
            first += count

    def _products(self, i: int, now: dict[str, list[TirExpr]]) -> list[TirExpr]:
        """Of each key, over this lane's values."""
        of, found = self.pair.reads[i].of, []
        for k in range(self.steps.deep):
            rows = [self.tiles[name] for name in ((STATE, GRADIENT) if of == BOTH else (of,))]
            left = [rows[0][k, v][0] for v in range(self.steps.each)]
            right = [rows[1][k, v][0] for v in range(self.steps.each)] if of == BOTH else now[f"vector_{i}"]
            total = left[0] * right[0]
            for a, b in zip(left[1:], right[1:], strict=True):
                total = total + a * b
            found.append(self.w.keep(total))
        return found

    def _put(self, i: int, step: TirExpr, key: TirExpr, value: TirExpr) -> None:
        w, output, name = self.w, self.pair.reads[i].output, f"output_{i}"
        at = self.place.base[name] + (wide(self.first) + wide(step)) * wide(w["batch"]) * output.stride + wide(key)
        with w.when(key < output.width):
            w.store(w[name], converted(value, output.dtype), at)

    # --- memory ----------------------------------------------------------------------------------------------------

    def _load(self, name: str) -> None:
        """A matrix at the border of the part; 0 where there is none."""
        w, own, tile = self.w, self.pair, self.tiles[name]
        tile.fill(tirx.const(0.0, "float32"))
        for k, key in enumerate(self.keys):
            for v, value in enumerate(self.values):
                with w.when(tirx.And(key < own.keys, value < own.values)):
                    place = value * own.keys + key if own.keys_last else key * own.values + value
                    tile.store(converted(w[marks_name(name)][self.place.matrix + wide(place)], "float32"), k, v, 0)

    def _keep(self, name: str, number: TirExpr, *, put: bool) -> None:
        """Put a matrix to its place of that number in shared memory, or get it from there."""
        w, tile = self.w, self.tiles[name]
        assert self.kept is not None
        numbers, precision = list(self._numbers(tile)), self.pair.precision
        together = 2 if self.steps.packed else 1
        at = w.keep(number * (len(numbers) // together * 32) + self.lane)
        for i in range(0, len(numbers), together):
            place, own = at + 32 * (i // together), numbers[i : i + together]
            if together == 1 and put:
                w.store(self.kept, tile[own[0]][0], place)
            elif together == 1:
                tile.store(self.kept[place], *own[0], 0)
            elif put:
                word = w.local(1, "uint32")
                pack(w, precision, word[0], tile[own[0]][0], tile[own[1]][0])
                w.store(self.kept, word[0], place)
            else:
                for where, value in zip(own, unpack(precision, w.keep(self.kept[place])), strict=True):
                    tile.store(value, *where, 0)

    def _numbers(self, tile: RegisterTile) -> Iterator[tuple[int, int]]:
        yield from ((k, v) for k in range(tile.shape[0]) for v in range(tile.shape[1]))
