"""How a block walks over the steps of a recurrence of vectors.

In: the group. Out: statements of a kernel, but for what its kind does with a round: a thread's place, rounds of steps,
some for each warp, whose operands were loaded while those before were worked on, and what the steps of all warps do,
handed on through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I
from tvm.sym import Analyzer

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.regime import FOREVER
from tvm_rnn.cuda.layer.row_kernels import WARP, Values, unravel
from tvm_rnn.graph.graph import recurrence_states
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.tensor_expressions import Index, fit
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import wide

from .vector_effects import Effect, Rows
from .vector_group import VectorGroup
from .vector_loads import Loaded, Loads, Row, Step

FEW_WARPS = 4  # of a block that has few steps


class Walk(Rows):
    """What all kernels do: a thread's place, and its steps in rounds, some for each warp. few: warps have other
    elements, and all steps, in their place; each: steps of a round."""

    few = False

    def __init__(self, writer: Writer, scan: VectorGroup, masked: bool) -> None:
        super().__init__(writer, scan, masked)
        self.side = 1 if self.few else scan.side
        self.elements = range(self.side)  # of a thread
        self.analyzer = Analyzer()
        self.warps = 1 if self.few else scan.warps
        self.each = self.scan.ahead * self.warps

    def emit(self) -> None:
        w, scan = self.w, self.scan
        self.lanes = wide(w["batch"]) * scan.width
        each = WARP * (FEW_WARPS if self.few else 1)
        tile = each * self.side
        tiles = tirx.truncdiv(self.lanes + (tile - 1), tirx.const(tile, "int64"))
        block = wide(I.cta_id([tirx.Cast("int32", tiles * wide(w["chunks"]))]))
        thread = w.keep(I.thread_id([each * self.warps]))
        self.chunk = w.keep(tirx.Cast("int32", tirx.truncdiv(block, tiles)))
        self.part = w.keep(tirx.truncdiv(thread, each))
        self.column = w.keep(tirx.truncmod(thread, each))
        flat = w.keep(tirx.truncmod(block, tiles) * tile + wide(self.column) * self.side)
        self.first = w.keep(self.chunk * w["span"])
        self.stop = w.keep(tirx.Min(self.first + w["span"], w["steps"]))
        self.there = tirx.NE(w.keep(tirx.Cast("int32", flat < self.lanes)), tirx.const(0, "int32"))  # any
        self.flat = w.keep(tirx.Min(flat, self.lanes - self.side))
        self.batch_row = w.keep(tirx.truncdiv(self.flat, tirx.const(scan.width, "int64")))
        element = w.keep(tirx.Cast("int32", tirx.truncmod(self.flat, tirx.const(scan.width, "int64"))))
        self.indices = self._indices(element, scan.rows[0].shape)
        if self.warps > 1:
            size = 2 * self.warps * self.side * scan.words * WARP
            self.shared = I.alloc_buffer((size,), self.dtype, scope="shared")
        self._lengths()
        backwards = tirx.NE(w["reverse"], tirx.const(0, "int32"))
        batch = wide(w["batch"])
        between = w.keep(tirx.Select(backwards, -batch, batch))  # rows from a step to the next
        strides = {place.row_stride for place in map(scan.place, scan.arguments) if place.row_stride}
        self.apart = {stride: w.keep(between * stride) for stride in sorted(strides)}
        self._rounds()
        with w.when(tirx.And(tirx.EQ(self.part, 0), self.there)):
            self.finish()

    def _indices(self, element: Expr, shape: Shape) -> list[Index]:
        """Of a thread's elements, the first of which has that number."""
        w, side = self.w, self.side
        if side == 1:
            return [unravel(w, element, shape)]
        outer = unravel(w, w.keep(tirx.truncdiv(element, shape[-1])), shape[:-1])
        self.unit = w.bind(w.keep(tirx.truncdiv(tirx.truncmod(element, shape[-1]), side)))
        return [(*outer, self.unit * side + e) for e in self.elements]

    def word(self, place: Place, at: Expr) -> tuple[int, Expr, int]:
        """Of an element of a row: how many a thread accesses at once there, the first one, and which of them it is."""
        side, alone = self.side, (1, at, 0)
        if side == 1 or not self.scan.in_words(place) or (self.masked and not self.scan.is_aligned(place)):
            return alone
        rest = self.analyzer.simplify(at - self.unit * side)
        number = self.analyzer.simplify(tirx.floormod(rest, side))
        if not isinstance(number, tirx.IntImm) or any(v.same_as(self.unit) for v in tirx.analysis.undefined_vars(rest)):
            return alone
        return side, self.analyzer.simplify(at - number), int(number.value)

    def begin(self) -> None:
        raise NotImplementedError

    def round(self, number: Expr, steps: Sequence[Step]) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """By one thread for each element."""
        raise NotImplementedError

    def _lengths(self) -> None:
        w = self.w
        self.end = w.local(1, "int32")
        w.store(self.end, tirx.const(FOREVER, "int32"), 0)
        if self.masked:
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                most = tirx.Min(w["lengths"][self.batch_row], tirx.const(FOREVER, "int64"))
                w.store(self.end, tirx.Cast("int32", most), 0)

    def _rounds(self) -> None:
        """The chunk's steps: while some are done, the operands of the next ones are on their way. Whole rounds ask of
        no step whether there is one; the last one may have fewer steps."""
        mine = self.w.keep(self.first + self.part * self.scan.ahead)
        if self.few:  # not worth a loop
            self.begin()
            self._rest(0, mine)
            return
        whole = self.w.keep(tirx.truncdiv(self.stop - self.first, self.each))
        loads = self._loads(mine, last=True)
        self.begin()
        self._whole_rounds(whole, mine, loads)
        self._rest(whole, mine)

    def _rest(self, whole: Expr, mine: Expr) -> None:
        """The steps behind so many whole rounds."""
        w, each = self.w, self.each
        at = w.keep(mine + whole * each)
        with w.when(self.first + whole * each < self.stop):
            loads = self._loads(at, last=True)
            for own in loads:
                own.take()
            self._round(whole, at, loads, last=True)

    def _whole_rounds(self, count: Expr, mine: Expr, loads: Sequence[Loads]) -> None:
        """loads: of the round that comes first."""
        w, each = self.w, self.each
        with w.loop(count) as i:
            at = w.keep(mine + i * each)
            for own in loads:
                own.take()
            with w.when(i + 1 < count):
                for own, row in zip(loads, self._rows(at + each, last=False), strict=True):
                    own.ask(row)
            self._round(i, at, loads, last=False)

    def _loads(self, at: Expr, last: bool) -> list[Loads]:
        """What a warp's steps of a round read, from step `at` on, on its way."""
        loads = [Loads(self.w, self.dtype, self.word) for _ in range(self.scan.ahead)]
        for own, row in zip(loads, self._rows(at, last), strict=True):  # what is made of them here is not used
            self._operands(self._values(row, own))
        return loads

    def _round(self, number: Expr, at: Expr, loads: Sequence[Loads], last: bool) -> None:
        rows = self._rows(at, last)
        each = enumerate(zip(rows, loads, strict=True))
        self.round(number, [self._load(at + s, row, own, last) for s, (row, own) in each])

    def _rows(self, at: Expr, last: bool) -> list[Row]:
        """Of all steps of a warp in a round, the first of which is `at`. last: as of `_local`."""
        w, ahead = self.w, self.scan.ahead

        def row(t: Expr) -> TirExpr:
            return w.keep(wide(self._local(t, last)) * wide(w["batch"]) + self.batch_row)

        if last:
            return [Row(w, row(at + s), 0, self.apart, {}) for s in range(ahead)]
        first, known = row(at), dict[object, tuple[int, TirExpr]]()
        return [Row(w, first, s, self.apart, known) for s in range(ahead)]

    def _local(self, t: Expr, last: bool) -> Expr:
        """The place in time of the t-th step. last: there may be fewer, and the last one takes its place."""
        w, end = self.w, self.w["steps"] - 1
        t = tirx.Min(t, end) if last else t
        backwards = tirx.NE(w["reverse"], tirx.const(0, "int32"))
        return w.keep(tirx.Select(backwards, end - t, t))

    def _values(self, row: Row, loads: Loads) -> Loaded:
        return Loaded(**vars(self.scan.job.values(self.w, row.first, self.scan.arguments)), loads=loads, step=row)

    def _operands(self, values: Values) -> None:
        for row in self.scan.rows:
            for operand in row.args[len(recurrence_states(row)) :]:
                for index in self.indices:
                    values.at(operand, fit(operand.shape, index))

    def _load(self, t: Expr, row: Row, loads: Loads, last: bool) -> Step:
        """The t-th step, whose operands are there. last: as of `_local`."""
        w = self.w
        values = self._values(row, loads)
        self._operands(values)
        none = tirx.const(0, "int32")
        inside = tirx.NE(w.keep(tirx.Cast("int32", t < self.stop)), none) if last else None
        if not self.masked:
            return Step(values, inside, inside, None)
        local = self._local(t, last)
        active = w["start"] + local < self.end[0]
        active = active if inside is None else tirx.And(inside, active)
        # Backwards, a flag at t + 1 separates t from what was just processed; flags past a row's end mean nothing.
        flag = w.keep(w["start"] + local + w["reverse"])
        known = tirx.And(flag < w["total"], flag < self.end[0])
        known = known if inside is None else tirx.And(inside, known)
        restart = w.local(1, "int32")
        w.store(restart, none, 0)
        with w.when(tirx.And(tirx.NE(w["has_reset"], none), known)):
            w.store(restart, tirx.Cast("int32", w["reset"][wide(flag) * wide(w["batch"]) + self.batch_row]), 0)
        held = w.keep(tirx.Cast("int32", active))
        return Step(values, inside, tirx.NE(held, none), tirx.NE(w.keep(restart[0]), none))

    def effects(self, number: Expr, steps: Sequence[Step]) -> Sequence[Sequence[Sequence[Expr]]]:
        """What the steps of each warp do in a round to each element, in order of time."""
        return self.exchanged(number, self.own_effects(steps))

    def own_effects(self, steps: Sequence[Step]) -> list[Effect]:
        """What this warp's steps do to each element."""
        own = [Effect(self, e) for e in self.elements]
        for step in steps:
            for effect in own:
                effect.step(step)
        return own

    def exchanged(self, number: Expr, own: Sequence[Effect]) -> Sequence[Sequence[Sequence[Expr]]]:
        """What each warp has of each element. number: of the exchange, of which one may begin while others read."""
        w = self.w
        if self.warps == 1:
            return [[effect.words() for effect in own]]
        size = self.scan.words * WARP * self.side
        half = w.keep(number % 2 * (self.warps * size))  # of two in turn: one barrier is enough

        def at(warp: Expr, element: int, n: int) -> Expr:
            return half + warp * size + (n * self.side + element) * WARP + self.column

        for e, effect in enumerate(own):
            for n, word in enumerate(effect.words()):
                if n or self.cuts:
                    w.store(self.shared, word, at(self.part, e, n))
        w.do(I.cuda.cta_sync())
        never = [] if self.cuts else [tirx.const(0.0, self.dtype)]
        numbers = range(len(never), self.scan.words)
        # Loaded where they are used: registers may have the operands of a round meanwhile.
        return [
            [[*never, *(self.shared[at(p, e, n)] for n in numbers)] for e in self.elements] for p in range(self.warps)
        ]
