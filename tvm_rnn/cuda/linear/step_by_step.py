"""Few steps of a linear recurrence of matrices, one after the other: the states are read and written once.

In: a `Recurrence`. Out: `Steps`, whose kernel has a block for each batch row, head and 32 values. States stay in the
registers of its threads, four elements side by side in memory to a load; sums over keys go by shuffles, and where
warps share keys, by shared memory. In float32 throughout: this is what a step of decoding takes, bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import wide

from .recurrence import AFTER, BEFORE, DECAYED, Recurrence, Rows

VALUES, WARPS = 32, 4  # of a block
VECTOR = 4
ACROSS = VALUES // VECTOR  # lanes side by side where values lie side by side


@dataclass(frozen=True)
class Steps:
    """Its kernels take the recurrence's pointers, then steps and batch."""

    name: str
    recurrence: Recurrence

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

        pointers = (*self.recurrence.pointers, *(MASK_POINTERS if masked else ()))
        scalars = (("steps", "int32"), ("batch", "int32"), *(MASK_SCALARS if masked else ()))
        name = f"{self.name}_masked" if masked else self.name
        return write(name, pointers, scalars, run, threads=32 * WARPS)


class _Body:
    """A thread has some values and some keys: `values` and `keys` are their numbers, state[key, value] a register.

    Values side by side: a lane has 4 of them, and every 16th key. Keys side by side: a lane has four of each 128, a
    warp eight values."""

    def __init__(self, w: Writer, steps: Steps, masked: bool) -> None:
        self.w, self.steps, self.recurrence, self.masked = w, steps, steps.recurrence, masked

    def run(self) -> None:
        w = self.w
        self._place()
        self.state = w.tile(len(self.keys), len(self.values), 1)
        self._move("state_in", store=False)
        with w.loop(w["steps"]) as t:
            step = w.keep(t)
            if self.masked:
                self._masked(step)
            else:
                self._step(step)
        self._move("state_out", store=True)

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
            self.values = [w.bind(first + warp + WARPS * i) for i in range(VALUES // WARPS)]
            groups = range(ceil_div(own.keys, 32 * VECTOR))
            self.keys = [w.bind(g * 32 * VECTOR + lane * VECTOR + i) for g in groups for i in range(VECTOR)]
            self.turns = 1, 2, 4, 8, 16
        else:
            self.values = [w.bind(first + lane % ACROSS * VECTOR + i) for i in range(VECTOR)]
            apart = 32 // ACROSS * WARPS
            number = w.bind(thread // ACROSS)
            self.keys = [w.bind(i * apart + number) for i in range(ceil_div(own.keys, apart))]
            self.turns = 8, 16
            self.parts = I.alloc_buffer((2 * WARPS * VALUES,), "float32", scope="shared")
        self.lane, self.warp = lane, warp
        self.use = 0

    def _move(self, name: str, store: bool) -> None:
        """All states of the thread from or to memory."""
        w, own = self.w, self.recurrence
        base = w.keep((wide(self.row) * own.heads + wide(self.head)) * (own.keys * own.values))
        last = own.keys if own.keys_last else own.values
        whole = last % VECTOR == 0
        outer, inner = (self.values, self.keys) if own.keys_last else (self.keys, self.values)
        for o, far in enumerate(outer):
            for i in range(0, len(inner), VECTOR):
                group = list(range(i, i + VECTOR))
                numbers = [(j, o) if own.keys_last else (o, j) for j in group]
                far_limit = own.values if own.keys_last else own.keys
                registers = [self.state[n][0] for n in numbers]
                if not store:
                    for n in numbers:
                        self.state.store(tirx.const(0.0, "float32"), *n, 0)
                parts = [group] if whole else [[j] for j in group]
                for part in parts:
                    with w.when(tirx.And(far < far_limit, inner[part[0]] < last)):
                        at = base + wide(far * last + inner[part[0]])
                        chosen = [registers[j - i] for j in part]
                        if store:
                            self._store(name, at, chosen)
                        else:
                            self._load(name, at, chosen)

    def _load(self, name: str, at: TirExpr, registers: list[TirExpr]) -> None:
        kind = "ld.global.v4.f32" if len(registers) == VECTOR else "ld.global.f32"
        self.w.do(I.ptx[kind](*registers, self.w[name].ptr_to([at])))

    def _store(self, name: str, at: TirExpr, registers: list[TirExpr]) -> None:
        kind = "st.global.v4.f32" if len(registers) == VECTOR else "st.global.f32"
        self.w.do(I.ptx[kind](self.w[name].ptr_to([at]), *registers))

    # --- a step ----------------------------------------------------------------------------------------------------

    def _masked(self, step: TirExpr) -> None:
        """A row that has ended keeps its states and has zeros for results."""
        w = self.w
        there = w.local(1, "int32")
        w.store(there, tirx.const(1, "int32"), 0)
        zero = tirx.const(0, "int32")
        with w.when(tirx.NE(w["has_lengths"], zero)):
            w.store(there, tirx.Cast("int32", wide(w["start"] + step) < w["lengths"][wide(self.row)]), 0)
        with w.when(tirx.And(tirx.NE(w["has_reset"], zero), tirx.NE(there[0], zero))):
            flag = w["reset"][wide(w["start"] + step) * wide(w["batch"]) + wide(self.row)]
            with w.when(tirx.NE(tirx.Cast("int32", flag), zero)):
                self.state.fill(tirx.const(0.0, "float32"))
        with I.If(tirx.NE(there[0], zero)):
            with I.Then():
                self._step(step)
            with I.Else():
                for i in range(len(self.recurrence.reads)):
                    self._result(i, step, [tirx.const(0.0, "float32")] * len(self.values))

    def _element(self, rows: Rows, step: TirExpr, within: TirExpr | int) -> TirExpr:
        at = self.w.bind((wide(step) * wide(self.w["batch"]) + wide(self.row)) * rows.stride + rows.offset)
        return at + wide(tirx.truncdiv(self.head, rows.group) * rows.width + within)

    def _vector(self, name: str, rows: Rows, step: TirExpr, at: list[TirExpr]) -> Buffer:
        """Elements of a vector, in float32; 0 behind its end."""
        w = self.w
        found = w.local(len(at))
        for i, within in enumerate(at):
            w.store(found, tirx.const(0.0, "float32"), i)
            with w.when(within < rows.width):
                w.store(found, tirx.Cast("float32", w[name][self._element(rows, step, within)]), i)
        return found

    def _number(self, name: str, rows: Rows, step: TirExpr) -> TirExpr:
        return self.w.keep(self.w[name][self._element(rows, step, 0)])

    def _step(self, step: TirExpr) -> None:
        own, erase = self.recurrence, self.recurrence.erase
        key = self._vector("key", own.key, step, self.keys)
        value = self._vector("value", own.value, step, self.values)
        reads = [self._vector(f"read_{i}", r.vector, step, self.keys) for i, r in enumerate(own.reads)]
        eraser = key
        if erase is not None and erase.vector is not None:
            eraser = self._vector("erase", erase.vector, step, self.keys)
        numbers = {name: self._number(name, rows, step) for name, rows in own.numbers.items() if name != "decay"}
        decays = self._decays(own.decay, step) if own.decay is not None else []
        erased: list[TirExpr] | None = None
        for of in (BEFORE, DECAYED, AFTER):
            if of == DECAYED and decays:
                self._decay(decays)
            if of == AFTER:
                self._write(key, value, erased, numbers)
            if erase is not None and erase.of == of:
                erased = self._sums(eraser)
            for i, read in enumerate(own.reads):
                if read.of == of:
                    self._result(i, step, self._sums(reads[i]))

    def _decays(self, rows: Rows, step: TirExpr) -> list[TirExpr]:
        """Of each key of the thread."""
        w = self.w
        if rows.width == 1:
            found = [self._number("decay", rows, step)]
        else:
            given = self._vector("decay", rows, step, self.keys)
            found = [given[k] for k in range(len(self.keys))]
        if self.recurrence.log_decay:
            found = [w.keep(tirx.call_pure_extern("float32", "expf", log)) for log in found]
        return found * (len(self.keys) // len(found))

    def _decay(self, decays: list[TirExpr]) -> None:
        for k, decay in enumerate(decays):
            for v in range(len(self.values)):
                self.state.store(self.state[k, v][0] * decay, k, v, 0)

    def _write(self, key: Buffer, value: Buffer, erased: list[TirExpr] | None, numbers: dict[str, TirExpr]) -> None:
        w = self.w
        for v in range(len(self.values)):
            u = value[v] * numbers["value_scale"] if "value_scale" in numbers else value[v]
            if erased is not None:
                u = u + (erased[v] * numbers["erase_scale"] if "erase_scale" in numbers else erased[v])
            u = w.keep(u)
            for k in range(len(self.keys)):
                self.state.store(self.state[k, v][0] + key[k] * u, k, v, 0)

    def _sums(self, vector: Buffer) -> list[TirExpr]:
        """Over keys, of each value of the thread: in all threads that have it."""
        w = self.w
        sums = w.local(len(self.values))
        for v in range(len(self.values)):
            total: TirExpr = vector[0] * self.state[0, v][0]
            for k in range(1, len(self.keys)):
                total = total + vector[k] * self.state[k, v][0]
            w.store(sums, total, v)
        everyone = tirx.const(0xFFFFFFFF, "uint32")
        for turn in self.turns:
            for v in range(len(self.values)):
                other = I.tvm_warp_shuffle_xor(everyone, sums[v], turn, 32, 32)
                w.store(sums, sums[v] + other, v)
        if self.parts is None:
            return [w.keep(sums[v]) for v in range(len(self.values))]
        own = self.use % 2 * (WARPS * VALUES)  # of two halves in turn: one barrier is enough
        self.use += 1
        at = w.bind(self.lane % ACROSS * VECTOR)
        with w.when(self.lane < ACROSS):
            for v in range(VECTOR):
                w.store(self.parts, sums[v], own + self.warp * VALUES + at + v)
        w.do(I.cuda.cta_sync())
        found = []
        for v in range(VECTOR):
            total = self.parts[own + at + v]
            for warp in range(1, WARPS):
                total = total + self.parts[own + warp * VALUES + at + v]
            found.append(w.keep(total))
        if self.use == self._uses and self.use % 2:
            w.do(I.cuda.cta_sync())  # the next step begins with the half that was just read
        return found

    @property
    def _uses(self) -> int:
        """Sums of a step."""
        return len(self.recurrence.reads) + (self.recurrence.erase is not None)

    def _result(self, i: int, step: TirExpr, sums: list[TirExpr]) -> None:
        """Stored by the first of the threads that have it."""
        w, output = self.w, self.recurrence.reads[i].output
        first = tirx.EQ(self.lane, 0) if self.parts is None else tirx.And(tirx.EQ(self.warp, 0), self.lane < ACROSS)
        with w.when(first):
            for v, value in zip(self.values, sums, strict=True):
                with w.when(v < output.width):
                    at = self._element(output, step, v)
                    w.store(w[f"output_{i}"], converted(value, output.dtype), at)
