"""Recurrences of vectors over all time: a group of kind "scan" whose rows are `scan`, `scan_max` or `delay`.

In: the group, and where its values lie. Out: a `VectorScan`, its kernels and their launches. A thread has an element or
two, side by side in memory, a block 32 times as many, and all or a part of the time, which it takes in rounds: warps
have the same elements, and some steps each, one behind the other. A warp finds what its steps do to any state that
enters them: a matrix of the component's states and a vector (of `scan_max` a sum and a maximum). In shared memory each
sees what those before it do, always in the same order, and walks its steps, of which the operands were loaded once.
While a round is worked on, the operands of the next one are on their way.

Where there are too few elements for the GPU, time is cut into chunks, and another kernel, `ends`, finds first what each
chunk does: `apply` begins with those before its own, of which each warp joins some. How many there are follows, in each
call, from T, B and the GPU. Where it takes longer to read operands twice than to wait for other blocks, chunks have a
round each, and a block of `once` keeps the operands of one in registers. It publishes what the chunk does
(`published.py`), and joins what those before it in a group of chunks do; the last one of the group publishes the states
behind it, so the order is that of every call. Calls of few steps have `few`, whose warps have other elements each.

Rewrite: for t: h = a h + b  -->  each part: (P, v);  each part: for those before: h = P h + v; for t: h = a h + b

A reset cuts a part off from what enters it: no product with a state of infinity is made. Where an infinity enters a
part whose factors multiply to 0, composition gives NaN and one step after the other may give infinity; the same holds
of `scan_max` where terms of both infinities are added.

Source: Blelloch 1990, "Prefix sums and their applications"; Merrill and Garland 2016, "Single-pass parallel prefix scan
with decoupled look-back".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf, prod

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as I
from tvm.sym import Analyzer

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.codegen.vector_access import DTYPES, LoadedLanes, aligned, store_lanes
from tvm_rnn.cuda.layer.pointers import Argument, Place, address, arithmetic, dense
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.row_kernels import WARP, Job, Values, unravel
from tvm_rnn.cuda.rowwise.set_words import set_bytes
from tvm_rnn.cuda.rowwise.state_moves import Tile
from tvm_rnn.graph import scalar
from tvm_rnn.graph.graph import Node, recurrence_states
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.graph.tensor_expressions import Index, fit
from tvm_rnn.schedule.schedule_template import DEFAULT, Unit, best
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

from .published import Awaited, publish, wait

SCALARS = (("steps", "int32"), ("reverse", "int32"), ("batch", "int32"), ("chunks", "int32"), ("span", "int32"))
GROUP = ("group", "int32")
LEAST_SPAN = 64  # steps of a chunk: fewer take less time than another kernel takes to begin
LEAST_CHUNKS = 3  # fewer are no faster than one: operands are read twice
EARLIER = 4  # steps that take as long as to compose the effect of an earlier chunk
COMPOSED = 8  # chunks whose effects a warp loads at once
AWAITED = 4  # chunks whose effects a warp waits for at once
ONCE_BYTES = 16  # of an element and step, operands read twice: with fewer, that is as fast as blocks that wait
FEW_WARPS = 4  # of a block that has few steps


@dataclass(frozen=True, eq=False)
class VectorScan:
    """The kernels of one group.

    job: the group and its places. replaced: of each row the state whose new value it is. initial: of states that do not
    begin at 0. zeroed: values that are 0 at the steps of rows that have ended. warps: of a block; ahead: steps of a
    warp in a round; resident: blocks that all chunks together have on each multiprocessor; side: elements of a thread.
    """

    job: Job
    replaced: Mapping[Node, Node]
    initial: Mapping[str, float] = field(default_factory=dict)
    zeroed: frozenset[Node] = frozenset()
    warps: int = 8
    ahead: int = 8
    resident: int = 3
    side: int = 1
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
    def tile(self) -> int:
        """Elements of a block that has all steps."""
        return WARP * self.side

    @property
    def words(self) -> int:
        """Numbers that say what a chunk does to the states of an element: whether it was cut, matrix, vector."""
        return 1 + len(self.rows) * (len(self.rows) + 1)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """What `apply` reads and writes of the group's values; `ends` reads all, and writes none."""
        return tuple(a for a in self.job.arguments(self.job.group.nodes) if a.node.op != "state")

    @cached_property
    def once(self) -> bool:
        """Whether chunks may be read once: to wait for other blocks must cost less than to read operands twice, and
        what is published is a matrix and a vector, no cut."""
        moved = 0.0
        for argument in self.arguments:
            place = self.place(argument)
            size = ITEM_BYTES[place.dtype] * (2 if argument.role == "read" else 1)
            moved += prod(argument.node.shape) * size / self.width if place.row_stride else 0
        return moved >= ONCE_BYTES and self.rows[0].op != "delay"

    @property
    def round(self) -> int:
        """Steps of a block in a round."""
        return self.warps * self.ahead

    @property
    def knobs(self) -> dict[str, int]:
        return {"warps": self.warps, "ahead": self.ahead, "resident": self.resident, "side": self.side}

    @property
    def fact(self) -> dict[str, object]:
        """A row of the manifest's templates."""
        ops = " ".join(dict.fromkeys(row.op for row in self.rows))
        shape = "x".join(map(str, self.rows[0].shape)) or "1"
        unit = f"before {ops} {shape}, all of T in chunks, any B"
        return {"unit": unit, "template": "vector_scan_cuda", "knobs": self.knobs, "record": self.record}

    def place(self, argument: Argument) -> Place:
        """Where the value of a pointer lies."""
        job, node = self.job, argument.node
        place = job.writes(node)[argument.number] if argument.role == "write" else job.reads(node)
        assert place is not None
        return place

    def is_aligned(self, place: Place) -> bool:
        """Whether a thread's elements lie there at a multiple of their bytes, or are not accessed at once."""
        each = self.side * ITEM_BYTES[place.dtype]
        return not self.in_words(place) or place.align % each == 0

    def in_words(self, place: Place) -> bool:
        """Whether a thread's elements may be accessed at once there, in every row."""
        return self.side > 1 and place.dtype in DTYPES and place.row_stride % self.side == 0

    def ends_size(self, rows: HostExpr) -> str:
        """Numbers, at most, that say what the chunks of so many rows of steps do."""
        most = f"sms * {self.resident * self.tile}, {rows} * {self.width} / {LEAST_SPAN}"
        size = f"std::min<int64_t>({most}) * {self.words}"
        if not self.once:
            return size
        return f"std::max<int64_t>({size}, {rows} * {2 * self.width} / {self.round} * {self.words + len(self.rows)})"

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
        tiles = host.let("tiles", f"(B * {self.width} + {self.tile - 1}) / {self.tile}")
        most = f"std::min<int64_t>(sms * {self.resident} / {tiles}, {tile.count} / {LEAST_SPAN})"
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
        # Without lengths and resets users' values are taken for aligned; other kernels take them as they are.
        near = [pointers[a.name] for a in self.arguments if not self.is_aligned(self.place(a))]
        apart = f"!({aligned(near, self.side)})" if near else "false"
        cases = {False: f"!has_lengths && !has_reset && !{apart}", True: f"has_lengths || has_reset || {apart}"}
        for masked in (False,) if lean else (False, True):
            with nullcontext() if lean else host.when(cases[masked]):
                with host.when(f"{tile.count} <= {self.ahead}"):
                    self._launch(host, self.kernels["few", masked], pointers, {**scalars, "chunks": 1})
                with host.otherwise():
                    once = self.once and not masked
                    done = self._launch_once(host, pointers, scalars, tiles, tile.count) if once else ""
                    with host.when(f"!{done}") if once else nullcontext():
                        with host.when(f"{chunks} > 1"):  # nobody asks for the last one's
                            less = {**scalars, "chunks": f"{chunks} - 1"}
                            self._launch(host, self.kernels["ends", masked], pointers, less)
                        self._launch(host, self.kernels["apply", masked], pointers, {**scalars, "chunks": chunks})

    def _launch_once(
        self, host: Host, pointers: Mapping[str, Pointer], scalars: Mapping[str, HostExpr], tiles: str, steps: HostExpr
    ) -> str:
        """All steps in chunks that are read once. Returns a C++ condition: it was done. That is not where there are few
        chunks, or so many of a group that a warp would wait for several one behind the other."""
        group, words = host.let("group", f"sms * {self.resident} / {tiles}"), self.words - 1
        chunks = host.let("chunks", f"({steps} + {self.round - 1}) / {self.round}")
        fit = f"{group} >= {LEAST_CHUNKS} && {group} <= {AWAITED * self.warps + 1} && {chunks} >= {LEAST_CHUNKS}"
        done = host.let("once", fit)
        with host.when(done):
            numbers = f"({chunks} * {words} + {chunks} / {group} * {len(self.rows)}) * (B * {self.width})"
            ends = pointers["chunk_ends"]
            set_bytes(host, ends, f"{numbers} * {ITEM_BYTES[ends.dtype]}", 0xFF)
            own = {**scalars, "chunks": chunks, "span": self.round, "group": group}
            self._launch(host, self.kernels["once", False], pointers, own)
        return done

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
        scalars = (*SCALARS, *([GROUP] if kind == "once" else ()), *(MASK_SCALARS if masked else ()))
        name = f"{self.job.name}_{kind}{'_masked' if masked else ''}"

        def emit(w: Writer) -> None:
            # As many blocks as the launch counts with: else registers may leave room for fewer.
            blocks = {"tirx.launch_bounds_min_blocks_per_sm": self.resident}
            with I.attr(blocks) if self.side > 1 and kind != "few" else nullcontext():
                body(w, self, masked).emit()

        with flavour(self.job.precision):
            what = name, pointers, scalars, emit
            return write(*what, threads=self.threads(kind), early=self.job.early)

    def threads(self, kind: str) -> int:
        """Of a block."""
        return WARP * (FEW_WARPS if kind == "few" else self.warps)


@dataclass
class _Word:
    """Elements that a thread loads at once. first: of them, in a row."""

    registers: LoadedLanes
    pointer: str
    place: Place
    first: Expr


class _Loads:
    """What is loaded for one step, as it is in memory, in the order in which it is read; of values that change with
    time. asked: of each that is read, its word and which of its elements it is."""

    def __init__(self, walk: _Walk) -> None:
        self.walk, self.w = walk, walk.w
        self.words: list[_Word] = []
        self.asked: list[tuple[int, int]] = []
        self.taken: list[list[Expr]] | None = None  # None: the first time, when places become known

    def take(self) -> None:
        """What is there is used from here on, and its places may be loaded to."""
        w, dtype = self.w, self.walk.dtype
        self.taken = [[w.keep(converted(v, dtype)) for v in word.registers.values()] for word in self.words]

    def ask(self, row: _Row) -> None:
        """Load the same of another step."""
        for number, word in enumerate(self.words):
            word.registers.load(word.pointer, row.at(number, word.place, word.first))

    def prefetch(self, row: _Row) -> None:
        """Bring the same of another step to the L2 cache."""
        for number, word in enumerate(self.words):
            place = self.w[word.pointer].ptr_to([row.at(number, word.place, word.first)])
            self.w.do(I.ptx["prefetch.global.L2"](place))

    def value(self, number: int, row: _Row, pointer: str, place: Place, at: Expr) -> Expr:
        """The one with that number; at: where in a row it is."""
        if self.taken is None:
            self.asked.append(self._find(row, pointer, place, at))
            word, element = self.asked[-1]
            return converted(self.words[word].registers.values()[element], self.walk.dtype)
        if number < len(self.asked):
            word, element = self.asked[number]
            return self.taken[word][element]
        return converted(self.w[pointer][row.at(None, place, at)], self.walk.dtype)

    def _find(self, row: _Row, pointer: str, place: Place, at: Expr) -> tuple[int, int]:
        """The word that has an element, loaded where it is new, and which one it is."""
        lanes, first, element = self.walk.word(place, at)
        for number, word in enumerate(self.words):
            if word.pointer == pointer and word.registers.lanes == lanes and same(word.first, first):
                return number, element
        self.words.append(_Word(LoadedLanes(self.w, place.dtype, lanes), pointer, place, first))
        self.words[-1].registers.load(pointer, row.at(len(self.words) - 1, place, first))
        return len(self.words) - 1, element


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

    def load(self, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        if not place.row_stride or self.loads is None:
            return super().load(pointer, place, node, index)
        assert self.step is not None
        self.number += 1
        return self.loads.value(self.number - 1, self.step, pointer, place, dense(node.shape, index))


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
    elements, and all steps, in their place; behind: warps have parts of the chunk, which follow each other, instead of
    parts of each round; from_the_end: the last round comes first."""

    few, behind, from_the_end = False, False, False

    def __init__(self, writer: Writer, scan: VectorScan, masked: bool) -> None:
        self.w, self.scan, self.masked = writer, scan, masked
        self.dtype = arithmetic(scan.job.precision)
        self.side = 1 if self.few else scan.side
        self.elements = range(self.side)  # of a thread
        self.analyzer = Analyzer()
        self.warps = 1 if self.few else scan.warps
        self.each = self.scan.ahead * (1 if self.behind else self.warps)  # steps of a round
        self.cuts = masked or scan.rows[0].op == "delay"  # whether steps may cut states off

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
        if self.behind:
            self._own_steps()
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

    def _own_steps(self) -> None:
        """Of a warp: whole rounds, as long as there are steps."""
        w, ahead = self.w, self.scan.ahead
        rounds = tirx.truncdiv(self.stop - self.first + (self.warps * ahead - 1), self.warps * ahead)
        each = w.keep(rounds * ahead)
        self.first = w.keep(tirx.Min(self.first + self.part * each, self.stop))
        self.stop = w.keep(tirx.Min(self.first + each, self.stop))

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

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
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
        each = self.each
        mine = self.first if self.behind else self.w.keep(self.first + self.part * self.scan.ahead)
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
        w, each = self.w, self.each
        at = w.keep(mine + whole * each)
        with w.when(self.first + whole * each < self.stop):
            loads = self._loads(at, last=True)
            for own in loads:
                own.take()
            self._round(whole, at, loads, last=True)

    def _whole_rounds(self, count: Expr, mine: Expr, loads: Sequence[_Loads]) -> None:
        """loads: of the round that comes first."""
        w, each = self.w, self.each
        with w.loop(count) as i:
            number = w.keep(count - 1 - i) if self.from_the_end else i
            at = w.keep(mine + number * each)
            for own in loads:
                own.take()
            with w.when(i + 1 < count):
                after = at - each if self.from_the_end else at + each
                for own, row in zip(loads, self._rows(after, last=False), strict=True):
                    own.ask(row)
            self._round(number, at, loads, last=False)

    def _loads(self, at: Expr, last: bool) -> list[_Loads]:
        """What a warp's steps of a round read, from step `at` on, on its way."""
        loads = [_Loads(self) for _ in range(self.scan.ahead)]
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
                for index in self.indices:
                    values.at(operand, fit(operand.shape, index))

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

    def terms(self, row: Node, values: Values, element: int) -> list[TirExpr]:
        """What a row is made of beside states, for one of the thread's elements."""
        index = self.indices[element]
        return [values.at(a, fit(a.shape, index)) for a in row.args[len(recurrence_states(row)) :]]

    def fresh(self, row: Node, values: Values, old: Mapping[Node, TirExpr], element: int) -> TirExpr:
        """A row's value of old ones."""
        states, terms = recurrence_states(row), self.terms(row, values, element)
        if row.op == "scan_max":
            return scalar.maximum(scalar.add(old[states[0]], terms[0]), terms[1])
        if row.op == "delay":
            return terms[0]
        total = terms[-1]
        for state, factor in zip(states, terms[:-1], strict=True):
            total = scalar.add(scalar.mul(factor, old[state]), total)
        return total

    def end_at(self, chunk: Expr, number: int) -> Expr:
        """Where a chunk's number lies, of the first element."""
        return (wide(chunk) * self.scan.words + number) * self.lanes + self.flat

    def effects(self, number: Expr, steps: Sequence[_Step]) -> Sequence[Sequence[Sequence[Expr]]]:
        """What the steps of each warp do in a round to each element, in order of time."""
        return self.exchanged(number, self.own_effects(steps))

    def own_effects(self, steps: Sequence[_Step]) -> list[_Effect]:
        """What this warp's steps do to each element."""
        own = [_Effect(self, e) for e in self.elements]
        for step in steps:
            for effect in own:
                effect.step(step)
        return own

    def exchanged(self, number: Expr, own: Sequence[_Effect]) -> Sequence[Sequence[Sequence[Expr]]]:
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

    def act(self, held: Sequence[Buffer], words: Sequence[Expr]) -> None:
        """Let steps act on states, in registers. words: what they do."""
        w, n = self.w, len(self.scan.rows)
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
    """What steps do to any states of one of a thread's elements that enter them, in registers: nothing at first."""

    def __init__(self, walk: _Walk, element: int) -> None:
        self.walk, self.w, self.scan, self.dtype = walk, walk.w, walk.scan, walk.dtype
        self.element = element
        states = self.scan.states
        self.cut = self.w.local(1, self.dtype)
        self.matrix = [[self.w.local(1, self.dtype) for _ in states] for _ in states]
        self.vector = [self.w.local(1, self.dtype) for _ in states]
        self.become(self.nothing())

    def nothing(self) -> list[TirExpr]:
        """The words of no steps."""
        states, is_max = range(len(self.vector)), self.scan.is_max
        matrix = [float(i == j and not is_max) for i in states for j in states]
        return [tirx.const(word, self.dtype) for word in (0.0, *matrix, *(-inf if is_max else 0.0 for _ in states))]

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
        new = [(i, w.keep(walk.fresh(row, step.values, old, self.element))) for i, row in enumerate(scan.rows)]
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
        if not self.walk.cuts:
            return
        cut = tirx.NE(words[0], tirx.const(0.0, self.dtype))
        w.store(self.cut, tirx.Select(cut, tirx.const(1.0, self.dtype), self.cut[0]), 0)

    def become(self, words: Sequence[Expr]) -> None:
        """Other steps in their place, of which it is known what they do."""
        for register, word in zip(self._registers(), words, strict=True):
            self.w.store(register, word, 0)

    def come_behind(self, words: Sequence[Expr]) -> None:
        """Steps before them, of which it is known what they do."""
        own = [self.w.keep(word) for word in self.words()]
        self.become(words)
        self.join(own)

    def _kept(self, register: Buffer, value: TirExpr, active: Expr | None) -> None:
        self.w.store(register, value if active is None else tirx.Select(active, value, register[0]), 0)

    def _column(self, row: Node, values: Values, column: Sequence[TirExpr]) -> TirExpr:
        """One number of the matrix after a row; of `scan_max` the sum so far."""
        states, terms = recurrence_states(row), self.walk.terms(row, values, self.element)
        if row.op == "scan_max":
            return scalar.add(column[0], terms[0])
        total: TirExpr = tirx.const(0.0, self.dtype)
        for state, factor in zip(states, terms[:-1], strict=row.op != "delay"):
            total = scalar.add(scalar.mul(factor, column[self.scan.states.index(state)]), total)
        return total


class _Ends(_Walk):
    """What a chunk does to any states that enter it. It is read from its end: what `apply` begins with is what the
    level-2 cache has had last."""

    behind, from_the_end = True, True

    def begin(self) -> None:
        self.total = [_Effect(self, e) for e in self.elements]

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
        for total, own in zip(self.total, self.own_effects(steps), strict=True):
            total.come_behind(own.words())

    def _rounds(self) -> None:
        super()._rounds()
        if self.warps > 1:
            parts = self.exchanged(0, self.total)
            self.total = [_Effect(self, e) for e in self.elements]
            for part in parts:
                for total, words in zip(self.total, part, strict=True):
                    total.join(words)

    def finish(self) -> None:
        for number, words in enumerate(zip(*(total.words() for total in self.total), strict=True)):
            store_lanes(self.w, "chunk_ends", self.dtype, self.end_at(self.chunk, number), words)


class _Apply(_Walk):
    """The steps themselves, from what the chunks before leave. composed: chunks whose effects a warp loads at once."""

    composed = COMPOSED

    def _old_states(self) -> None:
        w = self.w
        self.held = [[w.local(1, self.dtype) for _ in self.scan.states] for _ in self.elements]
        for e, registers in enumerate(self.held):
            for n, register in enumerate(registers):
                w.store(register, w[f"old_{n}"][self.flat + e], 0)

    def begin(self) -> None:
        w = self.w
        self._old_states()
        if not self.few:
            with w.when(self.chunk > 0):
                for warp in self.exchanged(1, self._before(self.chunk)):
                    self._act(warp)

    def _before(self, count: Expr) -> list[_Effect]:
        """What this warp's share of so many chunks before its own does, one behind the other."""
        w, own = self.w, [_Effect(self, e) for e in self.elements]
        share = w.keep(tirx.truncdiv(count + (self.warps - 1), self.warps))
        first = w.keep(self.chunk - count + self.part * share)
        stop = w.keep(tirx.Min(first + share, self.chunk))
        with w.loop(tirx.truncdiv(share + (self.composed - 1), self.composed)) as i:
            chunks = [w.keep(first + i * self.composed + k) for k in range(self.composed)]
            # Where there are no more, what the last one does.
            found = self._ends([w.keep(tirx.Min(chunk, self.chunk - 1)) for chunk in chunks])
            for chunk, elements in zip(chunks, found, strict=True):
                for effect, words in zip(own, elements, strict=True):
                    kept = zip(words, effect.nothing(), strict=True)
                    effect.join([w.keep(tirx.Select(chunk < stop, word, none)) for word, none in kept])
        return own

    def _ends(self, chunks: Sequence[Expr]) -> list[list[list[Expr]]]:
        """What each chunk does to each element."""
        loaded = [[LoadedLanes(self.w, self.dtype, self.side) for _ in range(self.scan.words)] for _ in chunks]
        for chunk, words in zip(chunks, loaded, strict=True):
            for number, lanes in enumerate(words):
                lanes.load("chunk_ends", self.end_at(chunk, number))
        return [[[lanes.values()[e] for lanes in words] for e in self.elements] for words in loaded]

    def _act(self, warp: Sequence[Sequence[Expr]]) -> None:
        for held, words in zip(self.held, warp, strict=True):
            self.act(held, words)

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
        held = self._reached(self.effects(number, steps)) if self.warps > 1 else self.held
        for step in steps:
            self._step(held, step)

    def _reached(self, parts: Sequence[Sequence[Sequence[Expr]]]) -> list[list[Buffer]]:
        """The states that this warp's steps begin with; `held` are those behind the round. parts: what each warp
        does."""
        w, held = self.w, [[self.w.local(1, self.dtype) for _ in own] for own in self.held]
        for p, warp in enumerate(parts):
            for own, registers in zip(self.held, held, strict=True):
                for register, state in zip(registers, own, strict=True):
                    here = tirx.Select(tirx.EQ(self.part, p), state[0], register[0]) if p else state[0]
                    w.store(register, here, 0)
            self._act(warp)
        return held

    def _step(self, held: Sequence[Sequence[Buffer]], step: _Step) -> None:
        """The states after a step in place of those before it; what it stores."""
        w, values = self.w, step.values
        made = [self._made(registers, step, e) for e, registers in enumerate(held)]
        places = self._written(values)
        with w.when(self.there if step.inside is None else tirx.And(step.inside, self.there)):
            inner = values.inner()
            for node in self.scan.job.group.stored:
                self._store(inner, node, step.active, places)
        for registers, fresh in zip(held, made, strict=True):
            for value, register in zip(fresh, registers, strict=True):
                w.store(register, value if step.active is None else tirx.Select(step.active, value, register[0]), 0)

    def _made(self, held: Sequence[Buffer], step: _Step, element: int) -> list[TirExpr]:
        """The new states of one of the thread's elements, known from here on as are the old ones."""
        w, scan, values = self.w, self.scan, step.values
        if step.restart is not None:
            for state, register in zip(scan.states, held, strict=True):
                w.store(register, tirx.Select(step.restart, self.initial(state), register[0]), 0)
        old = {state: w.keep(register[0]) for state, register in zip(scan.states, held, strict=True)}
        made = {row: w.keep(self.fresh(row, values, old, element)) for row in scan.rows}
        carried = {n: old[n.args[1]] for n in scan.job.group.nodes if n.op == "carried"}
        for node, known in {**made, **carried}.items():
            values.known[(node, self.indices[element])] = known
        return list(made.values())

    def _written(self, values: _Loaded) -> dict[Argument, list[Expr]]:
        """Where what a step stores goes: a place of each element, or one of all."""
        assert values.step is not None
        found = {}
        for a in self.scan.arguments:
            if a.role == "write":
                place = self.scan.place(a)
                offsets = [dense(a.node.shape, index if a.node.shape else ()) for index in self.indices]
                lanes, first, _ = self.word(place, offsets[0])
                apart = [first] if lanes == self.side else offsets
                found[a] = [values.step.at((a, n), place, offset) for n, offset in enumerate(apart)]
        return found

    def _store(self, values: Values, node: Node, active: Expr | None, places: Mapping[Argument, list[Expr]]) -> None:
        found = [values.at(node, index if node.shape else ()) for index in self.indices]
        if self.masked and active is not None and node in self.scan.zeroed:
            found = [tirx.Select(active, value, tirx.const(0.0, self.dtype)) for value in found]
        for argument, each in places.items():
            if argument.node is node:
                count = len(found) // len(each)
                for n, at in enumerate(each):
                    own = found[n * count : (n + 1) * count]
                    store_lanes(self.w, argument.name, self.scan.place(argument).dtype, at, own)

    def finish(self) -> None:
        w = self.w
        with w.when(tirx.EQ(self.chunk, w["chunks"] - 1)):
            for e, registers in enumerate(self.held):
                for n, register in enumerate(registers):
                    w.store(w[f"new_{n}"], register[0], self.flat + e)


class _Few(_Apply):
    """No more steps than a round of one warp has."""

    few = True


class _Once(_Apply):
    """A chunk of one round: what it does is published before it is known what comes before it."""

    composed = AWAITED

    def _rounds(self) -> None:
        w = self.w
        mine = w.keep(self.first + self.part * self.scan.ahead)
        self._old_states()
        whole = w.keep(tirx.Cast("int32", self.first + self.each <= self.stop))
        for last in (False, True):
            with w.when(tirx.EQ(whole, int(not last))):
                loads = self._loads(mine, last)
                if not last:
                    self._prefetch(loads, w.keep(mine + w["group"] * self.each))
                for own in loads:
                    own.take()
                self._round(0, mine, loads, last)

    def _prefetch(self, loads: Sequence[_Loads], after: Expr) -> None:
        """Operands of a block that begins when this one ends reach the L2 cache while blocks wait for each other."""
        with self.w.when(after + self.scan.ahead <= self.w["steps"]):
            for own, row in zip(loads, self._rows(after, last=False), strict=True):
                own.prefetch(row)

    def round(self, number: Expr, steps: Sequence[_Step]) -> None:
        w, group = self.w, self.w["group"]
        self.group = w.keep(tirx.truncdiv(self.chunk, group))
        behind = w.keep(self.chunk + 1 - self.group * group)  # chunks of the group up to this one
        asked = tirx.And(tirx.EQ(self.part, 0), tirx.And(self.there, self.chunk + 1 < w["chunks"]))
        parts = self.effects(number, steps)
        with w.when(tirx.And(asked, behind < group)):
            self._publish([own.words()[1:] for own in self._joined(parts)], partial(self._effect_at, self.chunk))
        self._enter(w.keep(behind - 1))
        held = self._reached(parts)
        with w.when(tirx.And(asked, tirx.EQ(behind, group))):
            states = [[register[0] for register in registers] for registers in self.held]
            self._publish(states, partial(self._state_at, self.group))
        for step in steps:
            self._step(held, step)

    def _effect_at(self, chunk: Expr, number: int) -> Expr:
        """Where a number of what a chunk does lies, of the first element."""
        return (wide(chunk) * (self.scan.words - 1) + number) * self.lanes + self.flat

    def _state_at(self, group: Expr, number: int) -> Expr:
        """Where a state behind a group lies, of the first element."""
        before = wide(self.w["chunks"]) * (self.scan.words - 1)
        return (before + wide(group) * len(self.scan.states) + number) * self.lanes + self.flat

    def _publish(self, elements: Sequence[Sequence[Expr]], place: Callable[[int], Expr]) -> None:
        """elements: the numbers of each."""
        for number, words in enumerate(zip(*elements, strict=True)):
            publish(self.w, "chunk_ends", self.dtype, place(number), words)

    def _joined(self, parts: Sequence[Sequence[Sequence[Expr]]]) -> list[_Effect]:
        """What the parts do, one behind the other, to each element."""
        total = [_Effect(self, e) for e in self.elements]
        for part in parts:
            for own, words in zip(total, part, strict=True):
                own.join(words)
        return total

    def _enter(self, before: Expr) -> None:
        """The states that the chunk begins with. before: chunks of the group before it."""
        w, total = self.w, [_Effect(self, e) for e in self.elements]
        with w.when(before > 0):
            for own, found in zip(total, self._joined(self.exchanged(1, self._before(before))), strict=True):
                own.become(found.words())
        with w.when(self.group > 0):
            states = [self._awaited(self._state_at(self.group - 1, n)) for n in range(len(self.scan.states))]
            wait(states)
            for n, state in enumerate(states):
                for registers, value in zip(self.held, state.values(), strict=True):
                    w.store(registers[n], value, 0)
        with w.when(before > 0):
            self._act([own.words() for own in total])

    def _ends(self, chunks: Sequence[Expr]) -> list[list[list[Expr]]]:
        numbers, never = range(self.scan.words - 1), tirx.const(0.0, self.dtype)
        found = [[self._awaited(self._effect_at(chunk, n)) for n in numbers] for chunk in chunks]
        wait([word for words in found for word in words])
        values = [[word.values() for word in words] for words in found]
        return [[[never, *(word[e] for word in words)] for e in self.elements] for words in values]

    def _awaited(self, at: Expr) -> Awaited:
        return Awaited(self.w, "chunk_ends", self.dtype, at, self.side)


KINDS: Mapping[str, type[_Walk]] = {"ends": _Ends, "apply": _Apply, "once": _Once, "few": _Few}


def same(one: Expr, other: Expr) -> bool:
    """Whether two places in a row are the same, as they are written."""
    if isinstance(one, int) or isinstance(other, int):
        return isinstance(one, int) and isinstance(other, int) and one == other
    return bool(tvm_ffi.structural_equal(one, other))


def vector_scan(
    job: Job, replaced: Mapping[Node, Node], initial: Mapping[str, float], zeroed: frozenset[Node], target: Target
) -> VectorScan:
    """The kernels of a group, as fast as the target's records and the template know. The arguments are the fields."""
    plain = VectorScan(job, replaced, initial, zeroed)
    reads = sum(a.role == "read" for a in plain.arguments)
    unit = Unit("recurrence", "before", job.precision, gates=len(plain.rows), width=plain.width, stages=reads)
    _, knobs, record = best(unit, target)
    if plain.rows[0].shape[-1:] and plain.rows[0].shape[-1] % knobs["side"]:
        knobs = {**knobs, "side": 1}
    return VectorScan(job, replaced, initial, zeroed, record=record, **knobs)
