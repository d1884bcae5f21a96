"""Recurrences of vectors over all time: a group of kind "scan" whose rows are `scan`, `scan_max` or `delay`.

In: the group, and where its values lie. Out: a `VectorScan`, its kernels and their launches. A block has 32 elements,
side by side in memory, and all or a part of the time, which it takes in rounds: its warps have the same elements, and
some steps each, one behind the other. A warp finds what its steps do to any state that enters them: a matrix of the
component's states and a vector (of `scan_max` a sum and a maximum). In shared memory each sees what those before it do,
always in the same order, and walks its steps, of which the operands were loaded once. While a round is worked on, the
operands of the next one are on their way.

Where there are too few elements for the GPU, time is cut into chunks, and another kernel, `ends`, finds first what each
chunk does: `apply` begins with those before its own. How many there are follows, in each call, from T, B and the GPU.
Calls of few steps have `few`, whose warps have other elements each.

Rewrite: for t: h = a h + b  -->  each part: (P, v);  each part: for those before: h = P h + v; for t: h = a h + b

A reset cuts a part off from what enters it: no product with a state of infinity is made. Where an infinity enters a
part whose factors multiply to 0, composition gives NaN and one step after the other may give infinity; the same holds
of `scan_max` where terms of both infinities are added.

Source: Blelloch 1990, "Prefix sums and their applications".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.pointers import Argument, Place, address, arithmetic, dense
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.row_kernels import WARP, Job, Values, unravel
from tvm_rnn.cuda.rowwise.state_moves import Tile
from tvm_rnn.graph import scalar
from tvm_rnn.graph.graph import Node, recurrence_states
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.graph.tensor_expressions import Index, fit
from tvm_rnn.schedule.schedule_template import DEFAULT, Unit, best
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

SCALARS = (("steps", "int32"), ("reverse", "int32"), ("batch", "int32"), ("chunks", "int32"), ("span", "int32"))
LEAST_SPAN = 64  # steps of a chunk: fewer take less time than another kernel takes to begin
LEAST_CHUNKS = 3  # fewer are no faster than one: operands are read twice
EARLIER = 4  # steps that take as long as to compose the effect of an earlier chunk
COMPOSED = 8  # chunks whose effects are loaded at once
FEW_WARPS = 4  # of a block that has few steps


@dataclass(frozen=True, eq=False)
class VectorScan:
    """The kernels of one group.

    job: the group and its places. replaced: of each row the state whose new value it is. initial: of states that do not
    begin at 0. zeroed: values that are 0 at the steps of rows that have ended. warps: of a block; ahead: steps of a
    warp in a round; resident: blocks that all chunks together have on each multiprocessor.
    """

    job: Job
    replaced: Mapping[Node, Node]
    initial: Mapping[str, float] = field(default_factory=dict)
    zeroed: frozenset[Node] = frozenset()
    warps: int = 8
    ahead: int = 8
    resident: int = 3
    record: str = DEFAULT  # where the knobs are from

    @cached_property
    def rows(self) -> list[Node]:
        """The new values of the states."""
        return [n for n in self.job.group.nodes if n.op in ("scan", "scan_max", "delay")]

    @cached_property
    def states(self) -> list[Node]:
        """The states, in the order of their rows."""
        return [self.replaced[row] for row in self.rows]

    @property
    def stored(self) -> tuple[Node, ...]:
        return self.job.group.stored

    @property
    def width(self) -> int:
        return prod(self.rows[0].shape)

    @property
    def is_max(self) -> bool:
        return self.rows[0].op == "scan_max"

    @property
    def words(self) -> int:
        """Numbers that say what a chunk does to the states of an element: whether it was cut, matrix, vector."""
        return 1 + len(self.rows) * (len(self.rows) + 1)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """What `apply` reads and writes of the group's values; `ends` reads all, and writes none."""
        return tuple(a for a in self.job.arguments(self.job.group.nodes) if a.node.op != "state")

    @property
    def knobs(self) -> dict[str, int]:
        return {"warps": self.warps, "ahead": self.ahead, "resident": self.resident}

    @property
    def fact(self) -> dict[str, object]:
        """A row of the manifest's templates."""
        ops = " ".join(dict.fromkeys(row.op for row in self.rows))
        shape = "x".join(map(str, self.rows[0].shape)) or "1"
        unit = f"before {ops} {shape}, all of T in chunks, any B"
        return {"unit": unit, "template": "vector_scan_cuda", "knobs": self.knobs, "record": self.record}

    def ends_size(self, rows: HostExpr) -> str:
        """Numbers, at most, that say what the chunks of so many rows of steps do."""
        most = f"sms * {self.resident * WARP}, {rows} * {self.width} / {LEAST_SPAN}"
        return f"std::min<int64_t>({most}) * {self.words}"

    def launch(
        self,
        host: Host,
        values: Sequence[Pointer],
        states: Sequence[tuple[Pointer, Pointer]],
        ends: Pointer,
        tile: Tile,
        lean: bool = False,
    ) -> None:
        """All steps of a tile. values: of `arguments`; states: each before and after; ends: memory for `ends_size`;
        lean: there are never lengths or resets."""
        tiles = f"(B * {self.width} + {WARP - 1}) / {WARP}"
        most = f"std::min<int64_t>(sms * {self.resident} / ({tiles}), {tile.count} / {LEAST_SPAN})"
        most = f"std::min<int64_t>({most}, static_cast<int64_t>(std::sqrt({tile.count} / {EARLIER})))"
        most = host.let("most", f"std::max<int64_t>({most}, 1)")
        span = f"(({tile.count} + {most} - 1) / {most} + {LEAST_SPAN - 1}) / {LEAST_SPAN} * {LEAST_SPAN}"
        span = host.let("span", f"{most} < {LEAST_CHUNKS} ? {tile.count} : {span}")
        chunks = host.let("chunks", f"({tile.count} + {span} - 1) / {span}")
        pointers = {a.name: p for a, p in zip(self.arguments, values, strict=True)} | {"chunk_ends": ends}
        for n, (old, new) in enumerate(states):
            pointers |= {f"old_{n}": old, f"new_{n}": new}
        pointers |= {"lengths": host.program.lengths, "reset": host.program.reset}
        scalars: dict[str, HostExpr] = {"steps": tile.count, "reverse": int(tile.reverse), "batch": "B", "span": span}
        scalars |= {"start": tile.start, "total": "T", "has_lengths": "has_lengths", "has_reset": "has_reset"}
        cases = {False: "!has_lengths && !has_reset", True: "has_lengths || has_reset"}
        for masked in (False,) if lean else (False, True):
            with nullcontext() if lean else host.when(cases[masked]):
                with host.when(f"{tile.count} <= {self.ahead}"):
                    self._launch(host, self.kernels["few", masked], pointers, {**scalars, "chunks": 1})
                with host.otherwise():
                    with host.when(f"{chunks} > 1"):  # nobody asks for the last one's
                        less = {**scalars, "chunks": f"{chunks} - 1"}
                        self._launch(host, self.kernels["ends", masked], pointers, less)
                    self._launch(host, self.kernels["apply", masked], pointers, {**scalars, "chunks": chunks})

    @staticmethod
    def _launch(host: Host, kernel: Kernel, pointers: Mapping[str, Pointer], scalars: Mapping[str, HostExpr]) -> None:
        own = {name: pointers[name] for name, _ in kernel.pointers}
        host.launch(kernel, own, {name: scalars[name] for name, _ in kernel.scalars})

    @cached_property
    def kernels(self) -> dict[tuple[str, bool], Kernel]:
        """By kind, and by whether they know lengths and resets."""
        return {(kind, masked): self.kernel(kind, masked) for kind in KINDS for masked in (False, True)}

    def kernel(self, kind: str, masked: bool) -> Kernel:
        """kind: one of KINDS. masked: with lengths and resets."""
        body, whole = KINDS[kind], kind != "ends"
        dtype, numbers = arithmetic(self.job.precision), range(len(self.rows))
        given = [a for a in self.arguments if whole or a.role == "read"]
        pointers = [(a.name, self.job.dtype(a)) for a in given] + [("chunk_ends", dtype)]
        states = [(f"{side}_{n}", dtype) for side in ("old", "new") for n in numbers]
        pointers += states if whole else []
        pointers += MASK_POINTERS if masked else ()
        scalars = (*SCALARS, *(MASK_SCALARS if masked else ()))
        name = f"{self.job.name}_{kind}{'_masked' if masked else ''}"
        with flavour(self.job.precision):
            what = name, pointers, scalars, lambda w: body(w, self, masked).emit()
            return write(*what, threads=self.threads(kind), early=self.job.early)

    def threads(self, kind: str) -> int:
        """Of a block."""
        return WARP * (FEW_WARPS if kind == "few" else self.warps)


class _Loads:
    """What is loaded for one step, as it is in memory, in the order in which it is read; of values that change with
    time."""

    def __init__(self, writer: Writer, dtype: str) -> None:
        self.w, self.dtype = writer, dtype
        self.places: list[tuple[Buffer, tuple[str, Place, Node, Index]]] = []
        self.taken: list[Expr] | None = None  # None: the first time, when places become known

    def take(self) -> None:
        """What is there is used from here on, and its places may be loaded to."""
        self.taken = [self.w.keep(converted(register[0], self.dtype)) for register, _ in self.places]

    def ask(self, values: _Loaded) -> None:
        """Load the same of another step."""
        for number, (register, what) in enumerate(self.places):
            self.w.store(register, values.raw(number, *what), 0)

    def value(self, number: int, values: _Loaded, what: tuple[str, Place, Node, Index]) -> Expr:
        """The one with that number; what: how it is loaded."""
        if self.taken is not None:
            return self.taken[number] if number < len(self.taken) else converted(values.raw(None, *what), self.dtype)
        self.places.append((self.w.local(1, what[1].dtype), what))
        self.w.store(self.places[-1][0], values.raw(number, *what), 0)
        return converted(self.places[-1][0][0], self.dtype)


@dataclass(frozen=True)
class _Row:
    """The row of a step: so many steps behind one whose row is known. apart: by strides, elements from a step to the
    next; known: of what these steps read and write, how far it has come, and where that is: where the next step's lies
    is one addition."""

    w: Writer
    first: Expr
    behind: int
    apart: Mapping[int, Expr]
    known: dict[object, tuple[int, TirExpr]]

    def at(self, what: object, place: Place, offset: Expr) -> Expr:
        """The element of an array at an offset in the row; what: of which value, None: of none that each step has."""
        if not place.row_stride:
            return address(place, self.first, offset)
        if what is None:
            return address(place, self.first, offset) + self.behind * self.apart[place.row_stride]
        behind, at = self.known.get(what, (0, None))
        at = self.w.keep(address(place, self.first, offset)) if at is None else at
        if self.behind > behind:
            at = self.w.keep(at + (self.behind - behind) * self.apart[place.row_stride])
        self.known[what] = self.behind, at
        return at


@dataclass
class _Loaded(Values):
    """Values whose operands were loaded before. step: whose they are."""

    loads: _Loads | None = None
    number: int = 0  # of those that were read
    step: _Row | None = None

    def raw(self, number: int | None, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        """The one of that number, as it is in memory; None: one that is read where others are not."""
        assert self.step is not None
        return self.writer[pointer][self.step.at(number, place, dense(node.shape, index))]

    def load(self, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        if not place.row_stride or self.loads is None:
            return super().load(pointer, place, node, index)
        self.number += 1
        return self.loads.value(self.number - 1, self, (pointer, place, node, index))


@dataclass(frozen=True)
class _Step:
    """Its values; whether the chunk has it, whether it counts (the row has not ended either), and whether the row
    begins anew; None: yes, yes, no."""

    values: _Loaded
    inside: Expr | None
    active: Expr | None
    restart: Expr | None


class _Walk:
    """What all kernels do: a thread's place, and its steps in rounds, some for each warp. few: warps have other
    elements, and all steps, in their place; from_the_end: the last round comes first."""

    few, from_the_end = False, False

    def __init__(self, writer: Writer, scan: VectorScan, masked: bool) -> None:
        self.w, self.scan, self.masked = writer, scan, masked
        self.dtype = arithmetic(scan.job.precision)
        self.count = len(scan.rows)
        self.warps = 1 if self.few else scan.warps
        self.cuts = masked or scan.rows[0].op == "delay"  # whether steps may cut states off

    def emit(self) -> None:
        w, scan = self.w, self.scan
        self.lanes = wide(w["batch"]) * scan.width
        each = WARP * (FEW_WARPS if self.few else 1)
        tiles = tirx.truncdiv(self.lanes + (each - 1), tirx.const(each, "int64"))
        block = wide(I.cta_id([tirx.Cast("int32", tiles * wide(w["chunks"]))]))
        thread = w.keep(I.thread_id([each * self.warps]))
        self.chunk = w.keep(tirx.Cast("int32", tirx.truncdiv(block, tiles)))
        self.part = w.keep(tirx.truncdiv(thread, each))
        self.column = w.keep(tirx.truncmod(thread, each))
        flat = w.keep(tirx.truncmod(block, tiles) * each + wide(self.column))
        self.first = w.keep(self.chunk * w["span"])
        self.stop = w.keep(tirx.Min(self.first + w["span"], w["steps"]))
        self.there = tirx.NE(w.keep(tirx.Cast("int32", flat < self.lanes)), tirx.const(0, "int32"))  # an element
        self.flat = w.keep(tirx.Min(flat, self.lanes - 1))
        self.batch_row = w.keep(tirx.truncdiv(self.flat, tirx.const(scan.width, "int64")))
        element = w.keep(tirx.Cast("int32", tirx.truncmod(self.flat, tirx.const(scan.width, "int64"))))
        self.index = unravel(w, element, scan.rows[0].shape)
        if self.warps > 1:
            self.shared = I.alloc_buffer((2 * self.warps * scan.words * WARP,), self.dtype, scope="shared")
        self._lengths()
        backwards = tirx.NE(w["reverse"], tirx.const(0, "int32"))
        batch = wide(w["batch"])
        between = w.keep(tirx.Select(backwards, -batch, batch))  # rows from a step to the next
        strides = {place.row_stride for place in map(self.place, scan.arguments) if place.row_stride}
        self.apart = {stride: w.keep(between * stride) for stride in sorted(strides)}
        self._rounds()
        with w.when(tirx.And(tirx.EQ(self.part, 0), self.there)):
            self.finish()

    def begin(self) -> None:
        raise NotImplementedError

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """By one thread for each element."""
        raise NotImplementedError

    def place(self, argument: Argument) -> Place:
        """Where the value of a pointer lies."""
        job, node = self.scan.job, argument.node
        place = job.writes(node)[argument.number] if argument.role == "write" else job.reads(node)
        assert place is not None
        return place

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
        each = self.warps * self.scan.ahead
        mine = self.w.keep(self.first + self.part * self.scan.ahead)
        if self.few:  # not worth a loop
            self.begin()
            self._rest(0, mine)
            return
        whole = self.w.keep(tirx.truncdiv(self.stop - self.first, each))
        if self.from_the_end:
            self.begin()
            self._rest(whole, mine)
        first = tirx.Max(whole - 1, tirx.const(0, "int32")) if self.from_the_end else tirx.const(0, "int32")
        # While it is found what comes before, the first round's operands are on their way.
        loads = self._loads(mine + first * each, last=True)
        if not self.from_the_end:
            self.begin()
        self._whole_rounds(whole, mine, loads)
        if not self.from_the_end:
            self._rest(whole, mine)

    def _rest(self, whole: Expr, mine: Expr) -> None:
        """The steps behind so many whole rounds."""
        w, each = self.w, self.warps * self.scan.ahead
        at = w.keep(mine + whole * each)
        with w.when(self.first + whole * each < self.stop):
            loads = self._loads(at, last=True)
            for own in loads:
                own.take()
            self._round(whole, at, loads, last=True)

    def _whole_rounds(self, count: Expr, mine: Expr, loads: Sequence[_Loads]) -> None:
        """loads: of the round that comes first."""
        w, each = self.w, self.warps * self.scan.ahead
        with w.loop(count) as i:
            number = w.keep(count - 1 - i) if self.from_the_end else i
            at = w.keep(mine + number * each)
            for own in loads:
                own.take()
            with w.when(i + 1 < count):
                after = at - each if self.from_the_end else at + each
                for own, row in zip(loads, self._rows(after, last=False), strict=True):
                    own.ask(self._values(row, own))
            self._round(number, at, loads, last=False)

    def _loads(self, at: Expr, last: bool) -> list[_Loads]:
        """What a warp's steps of a round read, from step `at` on, on its way."""
        loads = [_Loads(self.w, self.dtype) for _ in range(self.scan.ahead)]
        for own, row in zip(loads, self._rows(at, last), strict=True):  # what is made of them here is not used
            self._operands(self._values(row, own))
        return loads

    def _round(self, number: Expr, at: Expr, loads: Sequence[_Loads], last: bool) -> None:
        rows = self._rows(at, last)
        each = enumerate(zip(rows, loads, strict=True))
        self.round(number, [self._load(at + s, row, own, last) for s, (row, own) in each])

    def _rows(self, at: Expr, last: bool) -> list[_Row]:
        """Of all steps of a warp in a round, the first of which is `at`. last: as of `_local`."""
        w, ahead = self.w, self.scan.ahead

        def row(t: Expr) -> TirExpr:
            return w.keep(wide(self._local(t, last)) * wide(w["batch"]) + self.batch_row)

        if last:
            return [_Row(w, row(at + s), 0, self.apart, {}) for s in range(ahead)]
        first, known = row(at), dict[object, tuple[int, TirExpr]]()
        return [_Row(w, first, s, self.apart, known) for s in range(ahead)]

    def _local(self, t: Expr, last: bool) -> Expr:
        """The place in time of the t-th step. last: there may be fewer, and the last one takes its place."""
        w, end = self.w, self.w["steps"] - 1
        t = tirx.Min(t, end) if last else t
        backwards = tirx.NE(w["reverse"], tirx.const(0, "int32"))
        return w.keep(tirx.Select(backwards, end - t, t))

    def _values(self, row: _Row, loads: _Loads) -> _Loaded:
        return _Loaded(**vars(self.scan.job.values(self.w, row.first, self.scan.arguments)), loads=loads, step=row)

    def _operands(self, values: Values) -> None:
        for row in self.scan.rows:
            for operand in row.args[len(recurrence_states(row)) :]:
                values.at(operand, fit(operand.shape, self.index))

    def _load(self, t: Expr, row: _Row, loads: _Loads, last: bool) -> _Step:
        """The t-th step, whose operands are there. last: as of `_local`."""
        w = self.w
        values = self._values(row, loads)
        self._operands(values)
        none = tirx.const(0, "int32")
        inside = tirx.NE(w.keep(tirx.Cast("int32", t < self.stop)), none) if last else None
        if not self.masked:
            return _Step(values, inside, inside, None)
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
        return _Step(values, inside, tirx.NE(held, none), tirx.NE(w.keep(restart[0]), none))

    def initial(self, state: Node) -> TirExpr:
        return tirx.const(self.scan.initial.get(state.name, 0.0), self.dtype)

    def fresh(self, row: Node, values: Values, old: Mapping[Node, TirExpr]) -> TirExpr:
        """A row's value of old ones."""
        states = recurrence_states(row)
        terms = [values.at(a, fit(a.shape, self.index)) for a in row.args[len(states) :]]
        if row.op == "scan_max":
            return scalar.maximum(scalar.add(old[states[0]], terms[0]), terms[1])
        if row.op == "delay":
            return terms[0]
        total = terms[-1]
        for state, factor in zip(states, terms[:-1], strict=True):
            total = scalar.add(scalar.mul(factor, old[state]), total)
        return total

    def word(self, chunk: Expr, number: int) -> Expr:
        """Where a chunk's number lies."""
        return (wide(chunk) * self.scan.words + number) * self.lanes + self.flat

    def effects(self, number: Expr, steps: Sequence[_Step]) -> Sequence[Sequence[Expr]]:
        """What the steps of each warp do in a round, in order of time."""
        w, words, own = self.w, self.scan.words, _Effect(self)
        for step in steps:
            own.step(step)
        if self.warps == 1:
            return [own.words()]
        half = w.keep(number % 2 * (self.warps * words * WARP))  # of two in turn: one barrier is enough
        for n, word in enumerate(own.words()):
            w.store(self.shared, word, half + (self.part * words + n) * WARP + self.column)
        w.do(I.cuda.cta_sync())
        places = [[half + (p * words + n) * WARP + self.column for n in range(words)] for p in range(self.warps)]
        return [[w.keep(self.shared[at]) for at in warp] for warp in places]

    def act(self, held: Sequence[Buffer], words: Sequence[Expr]) -> None:
        """Let steps act on states, in registers. words: what they do."""
        w, n = self.w, self.count
        old = [w.keep(register[0]) for register in held]
        for i, register in enumerate(held):
            constant = words[1 + n * n + i]
            total = constant
            for factor, state in zip(words[1 + i * n : 1 + (i + 1) * n], old, strict=True):
                both = scalar.add if self.scan.is_max else scalar.mul
                joined = scalar.maximum if self.scan.is_max else scalar.add
                total = joined(both(factor, state), total)
            cut = tirx.NE(words[0], tirx.const(0.0, self.dtype))
            w.store(register, tirx.Select(cut, constant, total) if self.cuts else total, 0)


class _Effect:
    """What steps do to any states that enter them, in registers: nothing at first."""

    def __init__(self, walk: _Walk) -> None:
        self.walk, self.w, self.scan, self.dtype = walk, walk.w, walk.scan, walk.dtype
        w, few = self.w, self.scan.is_max
        self.cut = w.local(1, self.dtype)
        w.store(self.cut, tirx.const(0.0, self.dtype), 0)
        self.matrix = [[w.local(1, self.dtype) for _ in self.scan.states] for _ in self.scan.states]
        self.vector = [w.local(1, self.dtype) for _ in self.scan.states]
        for i, row in enumerate(self.matrix):
            w.store(self.vector[i], tirx.const(-inf if few else 0.0, self.dtype), 0)
            for j, register in enumerate(row):
                w.store(register, tirx.const(float(i == j and not few), self.dtype), 0)

    def words(self) -> list[TirExpr]:
        return [register[0] for register in self._registers()]

    def _registers(self) -> list[Buffer]:
        return [self.cut, *(register for row in self.matrix for register in row), *self.vector]

    def step(self, step: _Step) -> None:
        """Another step behind them."""
        w, scan, walk = self.w, self.scan, self.walk
        if step.restart is not None:
            w.store(self.cut, tirx.Select(step.restart, tirx.const(1.0, self.dtype), self.cut[0]), 0)
            for state, register in zip(scan.states, self.vector, strict=True):
                w.store(register, tirx.Select(step.restart, walk.initial(state), register[0]), 0)
        old = {state: w.keep(v[0]) for state, v in zip(scan.states, self.vector, strict=True)}
        matrix = [[w.keep(register[0]) for register in row] for row in self.matrix]
        new = [(i, w.keep(walk.fresh(row, step.values, old))) for i, row in enumerate(scan.rows)]
        for i, value in new:
            self._kept(self.vector[i], value, step.active)
        for i, row in enumerate(scan.rows):
            for j, register in enumerate(self.matrix[i]):
                self._kept(register, self._column(row, step.values, [line[j] for line in matrix]), step.active)
        if scan.rows[0].op == "delay":
            self._kept(self.cut, tirx.const(1.0, self.dtype), step.active)

    def join(self, words: Sequence[Expr]) -> None:
        """Steps behind them, of which it is known what they do."""
        w, n = self.w, len(self.vector)
        self.walk.act(self.vector, words)
        matrix = [[w.keep(register[0]) for register in row] for row in self.matrix]
        for i, row in enumerate(self.matrix):
            for j, register in enumerate(row):
                factors = words[1 + i * n : 1 + (i + 1) * n]
                if self.scan.is_max:
                    w.store(register, scalar.add(factors[j], matrix[i][j]), 0)
                    continue
                total: TirExpr = tirx.const(0.0, self.dtype)
                for k, factor in enumerate(factors):
                    total = scalar.add(scalar.mul(factor, matrix[k][j]), total)
                w.store(register, total, 0)
        cut = tirx.NE(words[0], tirx.const(0.0, self.dtype))
        w.store(self.cut, tirx.Select(cut, tirx.const(1.0, self.dtype), self.cut[0]), 0)

    def come_behind(self, words: Sequence[Expr]) -> None:
        """Steps before them, of which it is known what they do."""
        own = [self.w.keep(word) for word in self.words()]
        for register, word in zip(self._registers(), words, strict=True):
            self.w.store(register, word, 0)
        self.join(own)

    def _kept(self, register: Buffer, value: TirExpr, active: Expr | None) -> None:
        self.w.store(register, value if active is None else tirx.Select(active, value, register[0]), 0)

    def _column(self, row: Node, values: Values, column: Sequence[TirExpr]) -> TirExpr:
        """One number of the matrix after a row; of `scan_max` the sum so far."""
        states = recurrence_states(row)
        terms = [values.at(a, fit(a.shape, self.walk.index)) for a in row.args[len(states) :]]
        if row.op == "scan_max":
            return scalar.add(column[0], terms[0])
        total: TirExpr = tirx.const(0.0, self.dtype)
        for state, factor in zip(states, terms[:-1], strict=row.op != "delay"):
            total = scalar.add(scalar.mul(factor, column[self.scan.states.index(state)]), total)
        return total


class _Ends(_Walk):
    """What a chunk does to any states that enter it. It is read from its end: what `apply` begins with is what the
    level-2 cache has had last."""

    from_the_end = True

    def begin(self) -> None:
        self.total = _Effect(self)

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
        for words in reversed(self.effects(number, steps)):
            self.total.come_behind(words)

    def finish(self) -> None:
        for number, word in enumerate(self.total.words()):
            self.w.store(self.w["chunk_ends"], word, self.word(self.chunk, number))


class _Apply(_Walk):
    """The steps themselves, from what the chunks before leave."""

    def begin(self) -> None:
        w = self.w
        self.held = [w.local(1, self.dtype) for _ in self.scan.states]
        for n, register in enumerate(self.held):
            w.store(register, w[f"old_{n}"][self.flat], 0)
        rounds = w.keep(tirx.truncdiv(self.chunk, COMPOSED))
        with w.loop(rounds) as i:
            self._compose([i * COMPOSED + k for k in range(COMPOSED)])
        with w.loop(self.chunk - rounds * COMPOSED) as i:
            self._compose([rounds * COMPOSED + i])

    def _compose(self, chunks: Sequence[Expr]) -> None:
        """Let chunks act on the states, one after the other."""
        w = self.w
        loaded = [[w.keep(w["chunk_ends"][self.word(c, i)]) for i in range(self.scan.words)] for c in chunks]
        for words in loaded:
            self.act(self.held, words)

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
        w, held = self.w, self.held
        if self.warps > 1:
            held = [w.local(1, self.dtype) for _ in self.held]
            for p, words in enumerate(self.effects(number, steps)):
                for register, state in zip(held, self.held, strict=True):
                    own = tirx.Select(tirx.EQ(self.part, p), state[0], register[0]) if p else state[0]
                    w.store(register, own, 0)
                self.act(self.held, words)
        for step in steps:
            self._step(held, step)

    def _step(self, held: Sequence[Buffer], step: _Step) -> None:
        """The states after a step in place of those before it; what it stores."""
        w, scan, job, values = self.w, self.scan, self.scan.job, step.values
        if step.restart is not None:
            for state, register in zip(scan.states, held, strict=True):
                w.store(register, tirx.Select(step.restart, self.initial(state), register[0]), 0)
        old = {state: w.keep(register[0]) for state, register in zip(scan.states, held, strict=True)}
        made = {row: w.keep(self.fresh(row, values, old)) for row in scan.rows}
        carried = {n: old[n.args[1]] for n in job.group.nodes if n.op == "carried"}
        for node, known in {**made, **carried}.items():
            values.known[(node, self.index)] = known
        places = self._written(values)
        with w.when(self.there if step.inside is None else tirx.And(step.inside, self.there)):
            inner = values.inner()
            for node in job.group.stored:
                self._store(inner, node, step.active, places)
        for row, register in zip(scan.rows, held, strict=True):
            new = made[row] if step.active is None else tirx.Select(step.active, made[row], register[0])
            w.store(register, new, 0)

    def _written(self, values: _Loaded) -> dict[Argument, Expr]:
        """Where what a step stores goes."""
        assert values.step is not None
        found = {}
        for a in self.scan.arguments:
            if a.role == "write":
                offset = dense(a.node.shape, self.index if a.node.shape else ())
                found[a] = values.step.at(a, self.place(a), offset)
        return found

    def _store(self, values: Values, node: Node, active: Expr | None, places: Mapping[Argument, Expr]) -> None:
        found = values.at(node, self.index if node.shape else ())
        if self.masked and active is not None and node in self.scan.zeroed:
            found = tirx.Select(active, found, tirx.const(0.0, self.dtype))
        for argument, at in places.items():
            if argument.node is node:
                self.w.store(self.w[argument.name], converted(found, self.place(argument).dtype), at)

    def finish(self) -> None:
        w = self.w
        with w.when(tirx.EQ(self.chunk, w["chunks"] - 1)):
            for n, register in enumerate(self.held):
                w.store(w[f"new_{n}"], register[0], self.flat)


class _Few(_Apply):
    """No more steps than a round of one warp has."""

    few = True


KINDS: Mapping[str, type[_Walk]] = {"ends": _Ends, "apply": _Apply, "few": _Few}


def vector_scan(
    job: Job, replaced: Mapping[Node, Node], initial: Mapping[str, float], zeroed: frozenset[Node], target: Target
) -> VectorScan:
    """The kernels of a group, as fast as the target's records and the template know. The arguments are the fields."""
    plain = VectorScan(job, replaced, initial, zeroed)
    reads = sum(a.role == "read" for a in plain.arguments)
    unit = Unit("recurrence", "before", job.precision, gates=len(plain.rows), width=plain.width, stages=reads)
    _, knobs, record = best(unit, target)
    return VectorScan(job, replaced, initial, zeroed, record=record, **knobs)
