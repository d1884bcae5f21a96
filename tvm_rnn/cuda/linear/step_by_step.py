"""Steps of a linear recurrence of matrices, one after the other: the states are read and written once.

In: a `Recurrence`. Out: `Steps`, whose kernel has a block for each batch row, head and 32 values. States stay in the
registers of its threads, four elements side by side in memory to a load; sums over keys go by shuffles, and where
warps share keys, by shared memory. In float32 throughout: this is what a step of decoding takes, bound by memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.codegen.vector_access import LoadedLanes, store_lanes, unpack
from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.cuda.layer.pointers import Argument, Place
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.row_kernels import Values, unravel
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import wide

from .lane_sums import reduce_scatter
from .recurrence import AFTER, BEFORE, DECAYED, Recurrence, Rows

VALUES, WARPS = 32, 4  # of a block
VECTOR = 4
ACROSS = VALUES // VECTOR  # lanes side by side where values lie side by side
STATES = ("state_in", "state_out")  # pointers

_Slot = dict[str, Buffer]  # what a step reads, in registers, by name


@dataclass(frozen=True)
class Makes:
    """What steps read, of which the kernel makes every element where it reads it: rows of no other kernel are read.

    values: by names of operands the value that each is a part of; given: what these are made of, with its place."""

    values: Mapping[str, Node]
    given: Mapping[Argument, Place]

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return tuple((argument.name, place.dtype) for argument, place in self.given.items())


@dataclass(frozen=True)
class Steps:
    """Its kernels take the recurrence's pointers, then steps and batch. ahead: how many steps what a step reads is
    loaded before it. dtype: of the states in memory, before and after: float32, float16 or bfloat16. reverse: from the
    last step to the first. every: steps of the part of time, of those that begin at a multiple of it, whose states
    before it (in the order of the steps) go to another pointer, `marks`: [parts, B, ...], float32; 0: there is none.
    early: as of `write`. makes: None: all that steps read is in memory."""

    name: str
    recurrence: Recurrence
    ahead: int = 1
    dtype: str = "float32"
    reverse: bool = False
    every: int = 0
    early: bool = False
    makes: Makes | None = None

    @property
    def lanes(self) -> int:
        """Elements of the states that are accessed at once."""
        own = self.recurrence
        return VECTOR if (own.keys if own.keys_last else own.values) % VECTOR == 0 else 1

    @property
    def tiles(self) -> int:
        return ceil_div(self.recurrence.values, VALUES)

    def blocks(self, batch: int) -> int:
        return self.tiles * self.recurrence.heads * batch

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        def run(w: Writer) -> None:
            with flavour(self.recurrence.precision):
                _Body(w, self, masked).run()

        made = {} if self.makes is None else self.makes.values
        pointers = [(n, self.dtype if n in STATES else kind) for n, kind in self.recurrence.pointers if n not in made]
        pointers += [] if self.makes is None else self.makes.pointers
        pointers += [("marks", marks_dtype(self.recurrence.precision))] if self.every else []
        pointers += MASK_POINTERS if masked else ()
        scalars = (("steps", "int32"), ("batch", "int32"), *(MASK_SCALARS if masked else ()))
        name = f"{self.name}_masked" if masked else self.name
        return write(name, pointers, scalars, run, threads=32 * WARPS, early=self.early)


class _Body:
    """A thread has some values and some keys: `values` and `keys` are their numbers, state[key, value] a register.

    Values side by side: a lane has 4 of them, and every 16th key. Keys side by side: as many lanes as it takes have
    four of them each, and share some values; those of 128 keys are a warp."""

    def __init__(self, w: Writer, steps: Steps, masked: bool) -> None:
        self.w, self.steps, self.recurrence, self.masked = w, steps, steps.recurrence, masked
        self.made = {} if steps.makes is None else steps.makes.values

    def run(self) -> None:
        w = self.w
        self._place()
        self.state = w.tile(len(self.keys), len(self.values), 1)
        self._load()
        ahead, steps = self.steps.ahead, w["steps"]
        slots = [self._slot() for _ in range(ahead)]
        for number, slot in enumerate(slots):
            with w.when(number < steps):
                self._prefetch(slot, tirx.const(number, "int32"))
        with w.loop(tirx.truncdiv(steps + (ahead - 1), ahead)) as turn:
            for number, slot in enumerate(slots):
                step = w.keep(turn * ahead + number)
                with nullcontext() if ahead == 1 else w.when(step < steps):
                    if self.masked:
                        self._masked(slot, step, number)
                    else:
                        self._mark(step, number)
                        self._step(slot, step)
                    with w.when(step + ahead < steps):
                        self._prefetch(slot, w.bind(step + ahead))
        self._store()

    def _slot(self) -> _Slot:
        found = {}
        for name, (rows, at) in self.operands.items():
            words = self._vectorised(name) and SIZES[rows.dtype] == 2
            dtype = "float32" if name in self.made else rows.dtype
            found[name] = self.w.local(len(at) // 2, "uint32") if words else self.w.local(len(at), dtype)
        return found

    def _place(self) -> None:
        w, own, steps = self.w, self.recurrence, self.steps
        block = w.keep(I.cta_id([tirx.Cast("int32", wide(w["batch"]) * (steps.tiles * own.heads))]))
        thread = I.thread_id([32 * WARPS])
        lane, warp = w.bind(thread % 32), w.bind(thread // 32)
        first = w.keep(tirx.truncmod(block, steps.tiles) * VALUES)
        rest = w.keep(tirx.truncdiv(block, steps.tiles))
        self.head, self.row = w.keep(tirx.truncmod(rest, own.heads)), w.keep(tirx.truncdiv(rest, own.heads))
        self.turns: tuple[int, ...]
        self.parts: Buffer | None = None
        if own.keys_last:
            across = next(n for n in (4, 8, 16, 32) if n == 32 or n * VECTOR >= own.keys)
            self.apart = 32 // across * WARPS
            begin = w.bind(first + warp * (32 // across) + lane // across)
            self.values = [w.bind(begin + self.apart * i) for i in range(VALUES // self.apart)]
            groups = range(ceil_div(own.keys, across * VECTOR))
            at = w.bind(lane % across * VECTOR)
            self.keys = [w.bind(at + (g * across * VECTOR + i)) for g in groups for i in range(VECTOR)]
            self.turns = tuple(n for n in (1, 2, 4, 8, 16) if n < across)
            self.key_step = across * VECTOR
        else:
            self.values = [w.bind(first + lane % ACROSS * VECTOR + i) for i in range(VECTOR)]
            self.apart, self.key_step = 1, 32 // ACROSS * WARPS
            number = w.bind(thread // ACROSS)
            self.keys = [w.bind(i * self.key_step + number) for i in range(ceil_div(own.keys, self.key_step))]
            self.turns = 8, 16
            self.parts = I.alloc_buffer((2 * WARPS * VALUES,), "float32", scope="shared")
        self.lane, self.warp = lane, warp
        self.use = 0
        by_key = {"decay": own.decay} if own.decay is not None and own.decays_by_key else {}
        self.operands = {name: (rows, self.keys) for name, rows in (own.vectors | by_key).items()}
        self.operands |= {name: (rows, self.values) for name, rows in own.written.items()}
        self.operands |= {name: (rows, [tirx.const(0, "int32")]) for name, rows in own.numbers.items()}

    def _parts(self) -> Iterator[tuple[list[tuple[int, int]], TirExpr, TirExpr]]:
        """(numbers of states that are accessed at once, whether they are there, where the first lies)."""
        w, own = self.w, self.recurrence
        base = w.keep((wide(self.row) * own.heads + wide(self.head)) * (own.keys * own.values))
        last, limit = (own.keys, own.values) if own.keys_last else (own.values, own.keys)
        outer, inner = (self.values, self.keys) if own.keys_last else (self.keys, self.values)
        each = self.steps.lanes
        for o, far in enumerate(outer):
            for i in range(0, len(inner), each):
                numbers = [(j, o) if own.keys_last else (o, j) for j in range(i, i + each)]
                yield numbers, tirx.And(far < limit, inner[i] < last), base + wide(far * last + inner[i])

    def _load(self) -> None:
        """All states of the thread, all of whose loads begin before the first is awaited; 0 where there are none."""
        found = []
        for numbers, there, at in self._parts():
            lanes = LoadedLanes(self.w, self.steps.dtype, len(numbers))
            with self.w.when(there):
                lanes.load("state_in", at)
            found.append((numbers, lanes))
        for numbers, lanes in found:
            for number, value in zip(numbers, lanes.values(), strict=True):
                self.state.store(converted(value, "float32"), *number, 0)

    def _store(self) -> None:
        for numbers, there, at in self._parts():
            with self.w.when(there):
                store_lanes(self.w, "state_out", self.steps.dtype, at, [self.state[n][0] for n in numbers])

    # --- a step ----------------------------------------------------------------------------------------------------

    def _time(self, step: TirExpr) -> TirExpr:
        """Of the step that comes as number `step`."""
        return self.w["steps"] - 1 - step if self.steps.reverse else step

    def _mark(self, step: TirExpr, number: int) -> None:
        """Leave the states before a part of time; number: of the step among those of a turn."""
        w, every, time = self.w, self.steps.every, self.w.bind(self._time(step))
        if not every or (not self.steps.reverse and every % self.steps.ahead == 0 and number):
            return
        begins = tirx.EQ(tirx.truncmod(time + int(self.steps.reverse), every), 0)
        begins = tirx.Or(begins, tirx.EQ(step, 0)) if self.steps.reverse else begins
        own = self.recurrence
        with w.when(begins):
            part = w.keep(wide(tirx.truncdiv(time, every)) * wide(w["batch"]) * (own.heads * own.keys * own.values))
            for numbers, there, at in self._parts():
                with w.when(there):
                    store_lanes(
                        w,
                        "marks",
                        marks_dtype(self.steps.recurrence.precision),
                        part + at,
                        [self.state[n][0] for n in numbers],
                    )

    def _masked(self, slot: _Slot, step: TirExpr, number: int) -> None:
        """A row that has ended keeps its states and has zeros for results. Backwards, a flag of the step after this one
        separates it from that."""
        w, back = self.w, int(self.steps.reverse)
        there = w.local(1, "int32")
        w.store(there, tirx.const(1, "int32"), 0)
        zero = tirx.const(0, "int32")
        time = w.keep(w["start"] + self._time(step))
        again = w.local(1, "int32")
        w.store(again, tirx.Cast("int32", tirx.And(tirx.NE(w["has_reset"], zero), time + back < w["total"])), 0)
        with w.when(tirx.NE(w["has_lengths"], zero)):
            end = w["lengths"][wide(self.row)]
            w.store(there, tirx.Cast("int32", wide(time) < end), 0)
            with w.when(wide(time + back) >= end):
                w.store(again, zero, 0)
        with w.when(tirx.NE(again[0], zero)):
            flag = w["reset"][wide(time + back) * wide(w["batch"]) + wide(self.row)]
            with w.when(tirx.NE(tirx.Cast("int32", flag), zero)):
                self.state.fill(tirx.const(0.0, "float32"))
        self._mark(step, number)
        with I.If(tirx.NE(there[0], zero)):
            with I.Then():
                self._step(slot, step)
            with I.Else():
                for i in range(len(self.recurrence.reads)):
                    self._result(i, step, [tirx.const(0.0, "float32")] * len(self.values))

    def _row(self, step: TirExpr) -> TirExpr:
        return self.w.bind(wide(self._time(step)) * wide(self.w["batch"]) + wide(self.row))

    def _element(self, rows: Rows, step: TirExpr, within: TirExpr | int) -> TirExpr:
        at = self.w.bind(self._row(step) * rows.stride + rows.offset)
        return at + wide(tirx.truncdiv(self.head, rows.group) * rows.width + within)

    def _make(self, name: str, step: TirExpr, within: TirExpr) -> TirExpr:
        """An element of what no memory has."""
        w, makes, (rows, _) = self.w, self.steps.makes, self.operands[name]
        assert makes is not None
        places = {argument.node: place for argument, place in makes.given.items()}
        pointers = {argument.node: argument.name for argument in makes.given}
        node = self.made[name]
        at = w.keep(tirx.truncdiv(self.head, rows.group) * rows.width + (within + rows.offset))
        values = Values(w, self.recurrence.precision, w.keep(self._row(step)), places.get, pointers)
        return w.keep(values.at(node, unravel(w, at, node.shape)))

    def _prefetch(self, slot: _Slot, step: TirExpr) -> None:
        """What a step reads, as it is in memory; 0 behind a vector's end."""
        w = self.w
        for name, raw in slot.items():
            rows, at = self.operands[name]
            if self._vectorised(name):
                kind, each = ("ld.global.v2.b32", 2) if SIZES[rows.dtype] == 2 else ("ld.global.v4.f32", 4)
                for i in range(len(at) // VECTOR):
                    place = w[name].ptr_to([self._element(rows, step, at[i * VECTOR])])
                    w.do(I.ptx[kind](*(raw[i * each + j] for j in range(each)), place))
                continue
            for i, within in enumerate(at):
                if not self._whole(name):
                    w.store(raw, tirx.const(0.0, raw.dtype), i)
                with nullcontext() if self._whole(name) else w.when(within < rows.width):
                    made = name in self.made
                    value = self._make(name, step, within) if made else w[name][self._element(rows, step, within)]
                    w.store(raw, value, i)

    def _vectorised(self, name: str) -> bool:
        """Whether a thread loads four elements at a time: they lie side by side, and begin at a multiple of four."""
        rows, at = self.operands[name]
        if name in self.made:
            return False
        beside = at is (self.keys if self.recurrence.keys_last else self.values)
        places = (rows.width, rows.stride, rows.offset)
        return beside and self._whole(name) and SIZES[rows.dtype] in (2, 4) and not any(n % VECTOR for n in places)

    def _floats(self, name: str, raw: Buffer) -> list[TirExpr]:
        rows, at = self.operands[name]
        if self._vectorised(name) and SIZES[rows.dtype] == 2:
            found = [value for i in range(len(at) // 2) for value in unpack(rows.dtype, raw[i])]
        else:
            found = [tirx.Cast("float32", raw[i]) for i in range(len(at))]
        return [self.w.keep(value if rows.scale == 1.0 else value * rows.scale) for value in found]

    def _whole(self, name: str) -> bool:
        """Whether every thread's elements are there."""
        own = self.recurrence
        if name in own.numbers:
            return True
        if name in own.written:
            return own.values % VALUES == 0
        return own.keys % self.key_step == 0

    def _step(self, slot: _Slot, step: TirExpr) -> None:
        own, erase = self.recurrence, self.recurrence.erase
        now = {name: self._floats(name, raw) for name, raw in slot.items()}
        erased: list[TirExpr] | None = None
        products = dict[int, list[TirExpr]]()
        for of in (BEFORE, DECAYED, AFTER):
            if of == BEFORE:
                for i, other in enumerate(own.others):
                    if other.vector is not None:
                        found = self._sums(now[f"vector_{i}"])
                        scale = None if other.scale is None else now["erase_scale"][0]
                        products[i] = found if scale is None else [value * scale for value in found]
            if of == DECAYED and own.decay is not None:
                self._decay(now["decay"])
            if of == AFTER:
                self._write(now["key"], self._written(now, erased))
                for i in range(len(own.others)):
                    self._write(now[f"column_{i}"], products.get(i) or now[f"value_{i}"])
            if erase is not None and erase.of == of:
                erased = self._sums(now[own.erasing_vector])
            for i, read in enumerate(own.reads):
                if read.of == of:
                    self._read(i, step, now[f"read_{i}"])

    def _decay(self, decays: list[TirExpr]) -> None:
        w = self.w
        if self.recurrence.log_decay:
            decays = [w.keep(tirx.call_pure_extern("float32", "expf", log)) for log in decays]
        for k, decay in enumerate(decays * (len(self.keys) // len(decays))):
            for v in range(len(self.values)):
                self.state.store(self.state[k, v][0] * decay, k, v, 0)

    def _written(self, now: dict[str, list[TirExpr]], erased: list[TirExpr] | None) -> list[TirExpr]:
        """u, of each value of the thread."""
        found = now["value"]
        if "value_scale" in now:
            found = [value * now["value_scale"][0] for value in found]
        if erased is not None:
            scaled = [e * now["erase_scale"][0] for e in erased] if "erase_scale" in now else erased
            found = [value + e for value, e in zip(found, scaled, strict=True)]
        return found

    def _write(self, column: list[TirExpr], row: list[TirExpr]) -> None:
        for v, value in enumerate(row):
            u = self.w.keep(value)
            for k, key in enumerate(column):
                self.state.store(self.state[k, v][0] + key * u, k, v, 0)

    def _sums(self, vector: list[TirExpr]) -> list[TirExpr]:
        """Over keys, of each value of the thread: in all threads that have it."""
        w, everyone = self.w, tirx.const(0xFFFFFFFF, "uint32")
        parts = self._products(vector)
        if self.parts is None:
            for turn in self.turns:
                parts = [w.keep(part + I.tvm_warp_shuffle_xor(everyone, part, turn, 32, 32)) for part in parts]
            return parts
        own = self.use % 2 * (WARPS * VALUES)  # of two halves in turn: one barrier is enough
        self.use += 1
        at = w.bind(self.lane % ACROSS * VECTOR)
        total, number, _ = reduce_scatter(w, self.lane, parts, self.turns)
        w.store(self.parts, total, own + self.warp * VALUES + at + number)
        w.do(I.cuda.cta_sync())
        found = []
        for v in range(VECTOR):
            total = self.parts[own + at + v]
            for warp in range(1, WARPS):
                total = total + self.parts[own + warp * VALUES + at + v]
            found.append(w.keep(total))
        if self.use == self._uses * self.steps.ahead and self.use % 2:
            w.do(I.cuda.cta_sync())  # the next turn begins with the half that was just read
        return found

    def _products(self, vector: list[TirExpr]) -> list[TirExpr]:
        """With this thread's part of the states."""
        found = []
        for v in range(len(self.values)):
            total: TirExpr = vector[0] * self.state[0, v][0]
            for k in range(1, len(self.keys)):
                total = total + vector[k] * self.state[k, v][0]
            found.append(self.w.keep(total))
        return found

    @property
    def _uses(self) -> int:
        """Sums of a step."""
        own = self.recurrence
        products = sum(other.vector is not None for other in own.others)
        return len(own.reads) + (own.erase is not None) + products

    def _read(self, i: int, step: TirExpr, vector: list[TirExpr]) -> None:
        """A result of a step, stored."""
        if self.parts is not None:
            return self._result(i, step, self._sums(vector))
        total, number, same = reduce_scatter(self.w, self.lane, self._products(vector), self.turns)
        with self.w.when(tirx.EQ(self.lane & same, 0)):
            self._put(i, step, self.w.bind(self.values[0] + number * self.apart), total)
        return None

    def _result(self, i: int, step: TirExpr, sums: list[TirExpr]) -> None:
        """Stored by the first of the threads that have it."""
        first = tirx.EQ(self.lane & sum(self.turns), 0)
        with self.w.when(first if self.parts is None else tirx.And(tirx.EQ(self.warp, 0), first)):
            for v, value in zip(self.values, sums, strict=True):
                self._put(i, step, v, value)

    def _put(self, i: int, step: TirExpr, v: TirExpr, value: TirExpr) -> None:
        output = self.recurrence.reads[i].output
        with nullcontext() if self._whole("value") else self.w.when(v < output.width):
            self.w.store(self.w[f"output_{i}"], converted(value, output.dtype), self._element(output, step, v))
