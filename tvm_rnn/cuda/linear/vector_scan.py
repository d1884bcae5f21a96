"""Recurrences of vectors over all time: a group of kind "scan" whose rows are `scan`, `scan_max` or `delay`.

In: the group, and where its values lie. Out: `VectorScan`, two kernels. Time is cut into chunks; a thread has one
element of one batch row in one chunk. `ends` finds what each chunk does to any state that enters it: a matrix of the
component's states and a vector (of `scan_max` a sum and a maximum). `apply` composes those of the chunks before its
own, always in the same order, walks its chunk, and stores. One chunk needs `apply` alone. How many there are follows,
in each call, from T, B and the GPU: so many that their threads fill it, but no shorter than what starting them takes.

Rewrite: for t: h = a h + b  -->  each chunk: (P, v);  each chunk: for those before: h = P h + v; for t: h = a h + b

A reset cuts a chunk off from what enters it: no product with a state of infinity is made. Where an infinity enters a
chunk whose factors multiply to 0, composition gives NaN and one step after the other may give infinity; the same holds
of `scan_max` where terms of both infinities are added.

Source: Blelloch 1990, "Prefix sums and their applications".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.pointers import Argument, Place, arithmetic
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.row_kernels import Job, Values, unravel
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
LEAST_SPAN = 32  # steps of a chunk: fewer take less time than another kernel takes to begin
LEAST_CHUNKS = 4  # fewer are no faster than one: operands are read twice
EARLIER = 0.25  # steps that take as long as to compose the effect of an earlier chunk
COMPOSED = 8  # chunks whose effects are loaded at once


@dataclass(frozen=True, eq=False)
class VectorScan:
    """The kernels of one group.

    job: the group and its places. replaced: of each row the state whose new value it is. initial: of states that do not
    begin at 0. zeroed: values that are 0 at the steps of rows that have ended. threads: of a block; ahead: steps whose
    operands are loaded at once; resident: threads that all chunks together have on each multiprocessor.
    """

    job: Job
    replaced: Mapping[Node, Node]
    initial: Mapping[str, float] = field(default_factory=dict)
    zeroed: frozenset[Node] = frozenset()
    threads: int = 128
    ahead: int = 8
    resident: int = 1024
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
        return {"threads": self.threads, "ahead": self.ahead, "resident": self.resident}

    @property
    def fact(self) -> dict[str, object]:
        """A row of the manifest's templates."""
        ops = " ".join(dict.fromkeys(row.op for row in self.rows))
        shape = "x".join(map(str, self.rows[0].shape)) or "1"
        unit = f"before {ops} {shape}, all of T in chunks, any B"
        return {"unit": unit, "template": "vector_scan_cuda", "knobs": self.knobs, "record": self.record}

    def ends_size(self, rows: HostExpr) -> str:
        """Numbers, at most, that say what the chunks of so many rows of steps do."""
        return f"std::min<int64_t>(sms * {self.resident}, {rows} * {self.width} / {LEAST_SPAN}) * {self.words}"

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
        room = f"sms * {self.resident} / (B * {self.width})"
        most = f"std::min<int64_t>({room}, {tile.count} / {LEAST_SPAN})"
        most = host.let("most", f"std::min<int64_t>({most}, static_cast<int64_t>(std::sqrt({tile.count} / {EARLIER})))")
        span = host.let("span", f"{most} < {LEAST_CHUNKS} ? {tile.count} : ({tile.count} + {most} - 1) / {most}")
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
                with host.when(f"{chunks} > 1"):  # nobody asks for the last one's
                    self._launch(host, self.kernels[False, masked], pointers, {**scalars, "chunks": f"{chunks} - 1"})
                self._launch(host, self.kernels[True, masked], pointers, {**scalars, "chunks": chunks})

    @staticmethod
    def _launch(host: Host, kernel: Kernel, pointers: Mapping[str, Pointer], scalars: Mapping[str, HostExpr]) -> None:
        own = {name: pointers[name] for name, _ in kernel.pointers}
        host.launch(kernel, own, {name: scalars[name] for name, _ in kernel.scalars})

    @cached_property
    def kernels(self) -> dict[tuple[bool, bool], Kernel]:
        """By whether it is `apply`, and whether it knows lengths and resets."""
        return {(whole, masked): self.kernel(whole, masked) for whole in (False, True) for masked in (False, True)}

    def kernel(self, whole: bool, masked: bool) -> Kernel:
        """whole: `apply`, else `ends`. masked: with lengths and resets."""
        dtype, numbers = arithmetic(self.job.precision), range(len(self.rows))
        given = [a for a in self.arguments if whole or a.role == "read"]
        pointers = [(a.name, self.job.dtype(a)) for a in given] + [("chunk_ends", dtype)]
        states = [(f"{kind}_{n}", dtype) for kind in ("old", "new") for n in numbers]
        pointers += states if whole else []
        pointers += MASK_POINTERS if masked else ()
        scalars = (*SCALARS, *(MASK_SCALARS if masked else ()))
        name = f"{self.job.name}_{'apply' if whole else 'ends'}{'_masked' if masked else ''}"
        body = _Apply if whole else _Ends
        with flavour(self.job.precision):
            return write(name, pointers, scalars, lambda w: body(w, self, masked).emit(), threads=self.threads)


class _Loads:
    """What is loaded for one step, in the order in which it is read; of values that change with time."""

    def __init__(self, writer: Writer, dtype: str) -> None:
        self.w, self.dtype = writer, dtype
        self.places: list[tuple[Buffer, tuple[str, Place, Node, Index]]] = []
        self.taken: list[Expr] | None = None  # None: the first time, when places become known

    def take(self) -> None:
        """What is there is used from here on, and its places may be loaded to."""
        self.taken = [self.w.keep(register[0]) for register, _ in self.places]

    def ask(self, values: Values) -> None:
        """Load the same of another step."""
        for register, what in self.places:
            self.w.store(register, values.load(*what), 0)

    def value(self, number: int, load: Callable[[], Expr], what: tuple[str, Place, Node, Index]) -> Expr:
        """The one with that number; what: how it is loaded."""
        if self.taken is not None and number < len(self.taken):
            return self.taken[number]
        if self.taken is not None:
            return load()
        found = load()
        self.places.append((self.w.local(1, self.dtype), what))
        self.w.store(self.places[-1][0], found, 0)
        return found


@dataclass
class _Loaded(Values):
    """Values whose operands were loaded before."""

    loads: _Loads | None = None
    number: int = 0  # of those that were read

    def load(self, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        plain = super().load
        if not place.row_stride or self.loads is None:
            return plain(pointer, place, node, index)
        self.number += 1
        what = (pointer, place, node, index)
        return self.loads.value(self.number - 1, lambda: plain(*what), what)


class _Walk:
    """What both kernels do: a thread's place, and its steps in order."""

    def __init__(self, writer: Writer, scan: VectorScan, masked: bool) -> None:
        self.w, self.scan, self.masked = writer, scan, masked
        self.dtype = arithmetic(scan.job.precision)
        self.count = len(scan.rows)

    def emit(self) -> None:
        w, scan = self.w, self.scan
        self.lanes = wide(w["batch"]) * scan.width
        tiles = tirx.truncdiv(self.lanes + (scan.threads - 1), tirx.const(scan.threads, "int64"))
        block = wide(I.cta_id([tirx.Cast("int32", tiles * wide(w["chunks"]))]))
        self.chunk = w.keep(tirx.Cast("int32", tirx.truncdiv(block, tiles)))
        self.flat = w.keep(tirx.truncmod(block, tiles) * scan.threads + wide(I.thread_id([scan.threads])))
        with w.when(self.flat < self.lanes):
            self.batch_row = w.keep(tirx.truncdiv(self.flat, tirx.const(scan.width, "int64")))
            element = w.keep(tirx.Cast("int32", tirx.truncmod(self.flat, tirx.const(scan.width, "int64"))))
            self.index = unravel(w, element, scan.rows[0].shape)
            self._lengths()
            self.begin()
            self._steps()
            self.finish()

    def begin(self) -> None:
        raise NotImplementedError

    def step(self, values: Values, active: Expr | None, restart: Expr | None) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def _lengths(self) -> None:
        w = self.w
        self.end = w.local(1, "int32")
        w.store(self.end, tirx.const(FOREVER, "int32"), 0)
        if self.masked:
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                most = tirx.Min(w["lengths"][self.batch_row], tirx.const(FOREVER, "int64"))
                w.store(self.end, tirx.Cast("int32", most), 0)

    def _steps(self) -> None:
        """The chunk's steps: while some are done, the operands of as many more are on their way."""
        w, ahead = self.w, self.scan.ahead
        first = w.keep(self.chunk * w["span"])
        count = w.keep(tirx.Max(tirx.Min(w["span"], w["steps"] - first), tirx.const(0, "int32")))
        rounds = w.keep(tirx.truncdiv(count, ahead))
        loads = [_Loads(w, self.dtype) for _ in range(ahead)]
        with w.when(rounds > 0):
            for s, own in enumerate(loads):  # what is made of them here is not used
                self._operands(self._values(self._local(first + s), own))
            with w.loop(rounds) as i:
                for own in loads:
                    own.take()
                begin = w.keep(first + tirx.Min(i + 1, rounds - 1) * ahead)
                for s, own in enumerate(loads):
                    own.ask(self._values(self._local(begin + s)))
                steps = [self._load(first + i * ahead + s, own) for s, own in enumerate(loads)]
                for found in steps:
                    self.step(*found)
        with w.loop(count - rounds * ahead) as i:
            self.step(*self._load(first + rounds * ahead + i))

    def _local(self, t: Expr) -> Expr:
        """The place in time of the t-th step."""
        backwards = tirx.NE(self.w["reverse"], tirx.const(0, "int32"))
        return self.w.keep(tirx.Select(backwards, self.w["steps"] - 1 - t, t))

    def _values(self, local: Expr, loads: _Loads | None = None) -> Values:
        w, scan = self.w, self.scan
        values = scan.job.values(w, w.keep(wide(local) * wide(w["batch"]) + self.batch_row), scan.arguments)
        return values if loads is None else _Loaded(**vars(values), loads=loads)

    def _operands(self, values: Values) -> None:
        for row in self.scan.rows:
            for operand in row.args[len(recurrence_states(row)) :]:
                values.at(operand, fit(operand.shape, self.index))

    def _load(self, t: Expr, loads: _Loads | None = None) -> tuple[Values, Expr | None, Expr | None]:
        """The operands of a step, whether the row has not ended, and whether it begins anew. loads: they are there."""
        w = self.w
        local = self._local(t)
        values = self._values(local, loads)
        self._operands(values)
        if not self.masked:
            return values, None, None
        active = w.keep(tirx.Cast("int32", w["start"] + local < self.end[0]))
        restart = w.local(1, "int32")
        w.store(restart, tirx.const(0, "int32"), 0)
        # Backwards, a flag at t + 1 separates t from what was just processed; flags past a row's end mean nothing.
        flag = w.keep(w["start"] + local + w["reverse"])
        known = tirx.And(flag < w["total"], flag < self.end[0])
        with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
            w.store(restart, tirx.Cast("int32", w["reset"][wide(flag) * wide(w["batch"]) + self.batch_row]), 0)
        none = tirx.const(0, "int32")
        return values, tirx.NE(active, none), tirx.NE(w.keep(restart[0]), none)

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


class _Ends(_Walk):
    """What a chunk does to any states that enter it."""

    def begin(self) -> None:
        w, few = self.w, self.scan.is_max
        self.cut = w.local(1, self.dtype)
        w.store(self.cut, tirx.const(0.0, self.dtype), 0)
        self.matrix = [[w.local(1, self.dtype) for _ in self.scan.states] for _ in self.scan.states]
        self.vector = [w.local(1, self.dtype) for _ in self.scan.states]
        for i, row in enumerate(self.matrix):
            w.store(self.vector[i], tirx.const(-inf if few else 0.0, self.dtype), 0)
            for j, register in enumerate(row):
                w.store(register, tirx.const(float(i == j and not few), self.dtype), 0)

    def step(self, values: Values, active: Expr | None, restart: Expr | None) -> None:
        w, scan = self.w, self.scan
        if restart is not None:
            w.store(self.cut, tirx.Select(restart, tirx.const(1.0, self.dtype), self.cut[0]), 0)
            for state, register in zip(scan.states, self.vector, strict=True):
                w.store(register, tirx.Select(restart, self.initial(state), register[0]), 0)
        old = {state: w.keep(v[0]) for state, v in zip(scan.states, self.vector, strict=True)}
        matrix = [[w.keep(register[0]) for register in row] for row in self.matrix]
        new = [(i, w.keep(self.fresh(row, values, old))) for i, row in enumerate(scan.rows)]
        for i, value in new:
            self._kept(self.vector[i], value, active)
        for i, row in enumerate(scan.rows):
            for j in range(self.count):
                self._kept(self.matrix[i][j], self._column(row, values, [line[j] for line in matrix]), active)
        if scan.rows[0].op == "delay":
            self._kept(self.cut, tirx.const(1.0, self.dtype), active)

    def _kept(self, register: Buffer, value: TirExpr, active: Expr | None) -> None:
        self.w.store(register, value if active is None else tirx.Select(active, value, register[0]), 0)

    def _column(self, row: Node, values: Values, column: Sequence[TirExpr]) -> TirExpr:
        """One number of the matrix after a row; of `scan_max` the sum so far."""
        states = recurrence_states(row)
        terms = [values.at(a, fit(a.shape, self.index)) for a in row.args[len(states) :]]
        if row.op == "scan_max":
            return scalar.add(column[0], terms[0])
        total: TirExpr = tirx.const(0.0, self.dtype)
        for state, factor in zip(states, terms[:-1], strict=row.op != "delay"):
            total = scalar.add(scalar.mul(factor, column[self.scan.states.index(state)]), total)
        return total

    def finish(self) -> None:
        registers = [self.cut, *(r for row in self.matrix for r in row), *self.vector]
        for number, register in enumerate(registers):
            self.w.store(self.w["chunk_ends"], register[0], self.word(self.chunk, number))


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
            self._act(words)

    def _act(self, words: Sequence[Expr]) -> None:
        w, n = self.w, self.count
        old = [w.keep(register[0]) for register in self.held]
        for i, register in enumerate(self.held):
            constant = words[1 + n * n + i]
            total = constant
            for factor, state in zip(words[1 + i * n : 1 + (i + 1) * n], old, strict=True):
                both = scalar.add if self.scan.is_max else scalar.mul
                joined = scalar.maximum if self.scan.is_max else scalar.add
                total = joined(both(factor, state), total)
            w.store(register, tirx.Select(tirx.NE(words[0], tirx.const(0.0, self.dtype)), constant, total), 0)

    def step(self, values: Values, active: Expr | None, restart: Expr | None) -> None:
        w, scan, job = self.w, self.scan, self.scan.job
        if restart is not None:
            for state, register in zip(scan.states, self.held, strict=True):
                w.store(register, tirx.Select(restart, self.initial(state), register[0]), 0)
        old = {state: w.keep(register[0]) for state, register in zip(scan.states, self.held, strict=True)}
        made = {row: w.keep(self.fresh(row, values, old)) for row in scan.rows}
        carried = {n: old[n.args[1]] for n in job.group.nodes if n.op == "carried"}

        for node, known in {**made, **carried}.items():
            values.known[(node, self.index)] = known
        for node in job.group.stored:
            self._store(values, node, active)
        for row, register in zip(scan.rows, self.held, strict=True):
            w.store(register, made[row] if active is None else tirx.Select(active, made[row], register[0]), 0)

    def _store(self, values: Values, node: Node, active: Expr | None) -> None:
        index: Index = self.index if node.shape else ()
        found = values.at(node, index)
        if active is not None and node in self.scan.zeroed:
            found = tirx.Select(active, found, tirx.const(0.0, self.dtype))
        self.scan.job.store(self.w, self.scan.arguments, node, values.row, index, found)

    def finish(self) -> None:
        w = self.w
        with w.when(tirx.EQ(self.chunk, w["chunks"] - 1)):
            for n, register in enumerate(self.held):
                w.store(w[f"new_{n}"], register[0], self.flat)


def vector_scan(
    job: Job, replaced: Mapping[Node, Node], initial: Mapping[str, float], zeroed: frozenset[Node], target: Target
) -> VectorScan:
    """The kernels of a group, as fast as the target's records and the template know. The arguments are the fields."""
    plain = VectorScan(job, replaced, initial, zeroed)
    reads = sum(a.role == "read" for a in plain.arguments)
    unit = Unit("recurrence", "before", job.precision, gates=len(plain.rows), width=plain.width, stages=reads)
    _, knobs, record = best(unit, target)
    return VectorScan(job, replaced, initial, zeroed, record=record, **knobs)
