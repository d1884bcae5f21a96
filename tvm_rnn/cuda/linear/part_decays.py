"""What decays of a part's steps are multiplied with, and the product of a matrix and its gradient, of every step.

In: a kernel's writer, a `PartsLayout`, decays of a head. Out: `Decays`: numbers of steps in shared memory, weights of
two steps, and results of the product of both, which warps add up: all of it lies behind the operands. Sums are of
logarithms, as in `chunk_loads.py`; a decay of 0, or a reset, counts as 2^-160.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.tir.expr import TirExpr

from .chunk_loads import GONE
from .chunk_tile import BLOCK, exp2
from .pair import EVERY, GRADIENT, STATE, Read
from .part_layout import SIDE, UNITS
from .part_operands import Operands
from .part_place import Place
from .parts_layout import PartsLayout

PER = EVERY // 32  # steps of a lane
ZERO, ONE = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
NEVER = tirx.const(-1000.0, "float32")  # log2 of 0, once
EVERYONE = tirx.const(0xFFFFFFFF, "uint32")
LANES = (4, 8, 16)  # lanes that differ in these have the same step of a sum


class Decays:
    """weighted: something decays, or is reset."""

    def __init__(self, w: Writer, layout: PartsLayout, place: Place, operands: Operands) -> None:
        self.w, self.layout, self.place, self.operands = w, layout, place, operands
        self.weighted = place.masked or bool(layout.decays)
        self.put: set[tuple[str, int]] = set()  # matrices of which there are sums, from a step on

    # --- numbers of steps ------------------------------------------------------------------------------------------

    def make(self) -> None:
        """The first warp makes them."""
        if self.weighted:
            with self.w.when(tirx.EQ(self.place.warp, 0)):
                self._make()

    def _make(self) -> None:
        w, lane = self.w, self.place.lane
        steps = [w.bind(lane * PER + e) for e in range(PER)]
        own, before, total = [self._log(step) for step in steps], list[TirExpr](), ZERO
        for e, step in enumerate(steps):
            before.append(w.keep(total + self._reset(step)))
            total = w.keep(before[e] + own[e])
        sums = w.local(1)
        w.store(sums, total, 0)
        for apart in (1, 2, 4, 8, 16):
            other = w.keep(tirx.call_extern("float32", "__shfl_up_sync", EVERYONE, sums[0], apart, 32))
            w.store(sums, tirx.Select(lane >= apart, sums[0] + other, sums[0]), 0)
        early = w.keep(tirx.call_extern("float32", "__shfl_up_sync", EVERYONE, sums[0], 1, 32))
        begin = w.keep(tirx.Select(lane > 0, early, ZERO))
        last = tirx.call_extern("float32", "__shfl_sync", EVERYONE, sums[0], 31, 32)
        end = w.keep(last + self._reset(tirx.const(EVERY, "int32")))
        for e, step in enumerate(steps):
            g = w.keep(begin + before[e])
            after = w.keep(g + own[e])
            found = {"before": g, "after": after, "begins": exp2(g), "ends": exp2(end - after), "decay": exp2(own[e])}
            for kind, value in found.items():
                w.store(self.operands.numbers, value, self.layout.number_at(kind) // 4 + step)

    def _log(self, step: TirExpr) -> TirExpr:
        w = self.w
        for name, rows in self.layout.decays.items():
            given = self.place.decay(name, rows, step, tirx.const(0, "int32"))
            log = w.keep(tirx.call_pure_extern("float32", "log2f", given))
            return w.keep(tirx.Select(log < tirx.const(GONE, "float32"), tirx.const(GONE, "float32"), log))
        return ZERO

    def _reset(self, step: TirExpr) -> TirExpr:
        """Log of what is kept before a step."""
        return (ONE - self.place.kept(step)) * tirx.const(GONE, "float32") if self.place.masked else ZERO

    def number(self, kind: str, step: TirExpr) -> TirExpr:
        """Of one step."""
        return self.w.keep(self.operands.numbers[self.layout.number_at(kind) // 4 + step])

    def two(self, kind: str, step: TirExpr) -> tuple[TirExpr, ...]:
        """Of an even step and the next."""
        found = self.w.tile(1, 2)
        at = tirx.Cast("uint32", step * 4 + self.layout.number_at(kind))
        self.w.do(I.ptx["ld.shared.v2.f32"](*found[0], self.operands.base + at))
        return found[0]

    def weight(self, seen: TirExpr, before: TirExpr, after: TirExpr) -> TirExpr:
        """What decays from after a step to before a later one, from sums of logs; 0 where it is not seen."""
        if not self.weighted:
            return tirx.Select(seen, ONE, ZERO)
        return exp2(tirx.Select(seen, before - after, NEVER))

    # --- the product of both: what warps add up --------------------------------------------------------------------

    def _sum_at(self, name: str) -> int:
        """In numbers."""
        return self.layout.sums_at // 4 + EVERY * self.layout.warps * int(name == GRADIENT)

    @property
    def _units_at(self) -> int:
        return self._sum_at(GRADIENT) + EVERY * self.layout.warps

    @property
    def _whole_at(self) -> int:
        return self._units_at + EVERY * UNITS

    def _reduced(self, value: TirExpr, lanes: tuple[int, ...]) -> TirExpr:
        for turn in lanes:
            value = self.w.keep(value + I.tvm_warp_shuffle_xor(EVERYONE, value, turn, 32, 32))
        return value

    def _scattered(self, values: list[TirExpr]) -> TirExpr:
        """The sums of 8 values, or of 4 or 2, over lanes that differ in LANES: a lane has that of number lane / 4, or
        lane / 8 or lane / 16. Half of what is left goes to the other lanes at a time."""
        w, lane, kept, given = self.w, self.place.lane, values, values
        for turn in reversed(LANES):
            if half := len(values) // 2:
                pairs = list(zip(values[:half], values[half:], strict=True))
                kept = [w.keep(tirx.Select(lane & turn > 0, high, low)) for low, high in pairs]
                given = [w.keep(tirx.Select(lane & turn > 0, low, high)) for low, high in pairs]
            others = [I.tvm_warp_shuffle_xor(EVERYONE, one, turn, 32, 32) for one in given]
            values = kept = given = [w.keep(own + other) for own, other in zip(kept, others, strict=True)]
        return values[0]

    def put_whole(self, value: TirExpr) -> None:
        """A lane's part of the product at the borders."""
        total = self._reduced(value, (1, 2, *LANES))
        with self.w.when(tirx.EQ(self.place.lane, 0)):
            self.w.store(self.operands.numbers, total, self._whole_at + self.place.warp)

    def put_parts(self, parts: list[TirExpr], name: str, first: int) -> None:
        """What a matrix gives, of two steps of each 8 from the first on, over a lane's keys."""
        w, lane = self.w, self.place.lane
        own = lane // 8 * 8 + lane // 4 % 2 + lane % 4 * 2
        begin = w.bind(self.place.warp * EVERY + own + (self._sum_at(name) + first))
        for i in range(0, len(parts), 8):
            total, at = self._scattered(parts[i : i + 8]), begin + i * 4
            if (name, first) in self.put:
                total = total + self.operands.numbers[at]
            w.store(self.operands.numbers, total, at)
        self.put.add((name, first))

    def put_unit(self, unit: TirExpr, step: TirExpr, four: list[TirExpr]) -> None:
        """What writes of two blocks of steps give for a lane's two steps of each 8, over some rows. step: the first of
        16."""
        lane, total = self.place.lane, self._scattered(four)
        with self.w.when(tirx.EQ(lane // 4 % 2, 0)):
            at = unit * EVERY + step + lane // 16 * 8 + lane // 8 % 2 + lane % 4 * 2 + self._units_at
            self.w.store(self.operands.numbers, total, at)

    def sum_up(self) -> None:
        """What all warps give for a step, to the first one's place."""
        w, numbers, warps, threads = self.w, self.operands.numbers, self.layout.warps, self.layout.threads
        with w.loop(-(-2 * EVERY // threads)) as turn:
            own = w.bind(turn * threads + self.place.thread)
            with w.when(own < 2 * EVERY):
                begin = w.keep(tirx.truncdiv(own, EVERY) * (EVERY * warps) + tirx.truncmod(own, EVERY))
                at, total = w.keep(begin + self._sum_at(STATE)), ZERO
                for warp in range(warps):
                    total = total + numbers[at + warp * EVERY]
                w.store(numbers, total, at)

    def products(self, i: int, read: Read) -> None:
        """The product of both, of every step of the part, stored. Behind `sum_up`, and a meeting of all warps."""
        with self.w.when(tirx.EQ(self.place.warp, 0)):
            self._products(i, read)

    def _products(self, i: int, read: Read) -> None:
        """By one warp: a lane has steps side by side."""
        w, place, name = self.w, self.place, f"output_{i}"
        steps = [w.bind(place.lane * PER + e) for e in range(PER)]
        whole: TirExpr = ZERO
        for warp in range(self.layout.warps):
            whole = whole + self.operands.numbers[self._whole_at + warp]
        whole, scale = w.keep(whole), self.layout.pair.scale
        found = {kind: self._passed(kind, steps) for kind in (STATE, GRADIENT)}
        for e, step in enumerate(steps):
            begins, ends = (self.number(kind, step) if self.weighted else ONE for kind in ("begins", "ends"))
            state, gradient = (found[kind][e] * scale for kind in (STATE, GRADIENT))  # of the columns that are in them
            total = begins * (ends * whole + state) + ends * gradient + self._of_units(step)
            with w.when(step < place.count):
                total = tirx.Select(step < place.limit, total, ZERO)
                w.store(w[name], converted(total, read.output.dtype), place.at(name, read.output, step))

    def _of_units(self, t: TirExpr) -> TirExpr:
        """What writes before and behind a step give."""
        total: TirExpr = ZERO
        for unit, (later, earlier) in enumerate((a, b) for a in range(SIDE) for b in range(a + 1)):
            inside = tirx.And(t >= earlier * BLOCK, t < (later + 1) * BLOCK)
            total = total + tirx.Select(inside, self.operands.numbers[self._units_at + unit * EVERY + t], ZERO)
        return self.w.keep(total)

    def _passed(self, name: str, steps: list[TirExpr]) -> list[TirExpr]:
        """Of each step the sum of what others give, times what decays between: of those behind it what they read of the
        matrix, of those before it what they read of the gradient. That is a recurrence, from the end or from the start,
        which lanes compose: what is left of what came before, and what is added."""
        w, numbers, back = self.w, self.operands.numbers, name == STATE
        order = list(reversed(range(PER))) if back else list(range(PER))
        factors, sums = [self._passing(steps[e], back) for e in range(PER)], list[TirExpr]()
        for e in range(PER):
            sums.append(w.keep(numbers[self._sum_at(name) + steps[e]] * factors[e][0]))
        factor, total = ONE, ZERO
        for e in order:
            total = w.keep(total * factors[e][1] + sums[e])
            factor = w.keep(factor * factors[e][1])
        lanes = (w.local(1), w.local(1))
        w.store(lanes[0], factor, 0)
        w.store(lanes[1], total, 0)
        lane, how = self.place.lane, "__shfl_down_sync" if back else "__shfl_up_sync"
        for apart in (1, 2, 4, 8, 16):
            there = lane + apart < 32 if back else lane >= apart
            other = [w.keep(tirx.call_extern("float32", how, EVERYONE, one[0], apart, 32)) for one in lanes]
            w.store(lanes[1], lanes[1][0] + tirx.Select(there, lanes[0][0] * other[1], ZERO), 0)
            w.store(lanes[0], lanes[0][0] * tirx.Select(there, other[0], ONE), 0)
        before = w.keep(tirx.call_extern("float32", how, EVERYONE, lanes[1][0], 1, 32))
        passed = w.keep(tirx.Select(lane < 31 if back else lane > 0, before, ZERO))
        found = dict[int, TirExpr]()
        for e in order:
            found[e] = passed
            passed = w.keep(passed * factors[e][1] + sums[e])
        return [found[e] for e in range(PER)]

    def _passing(self, step: TirExpr, back: bool) -> tuple[TirExpr, TirExpr]:
        """What is left, at the next step, of what a step gives, and of what was given to it: backwards, if `back`, the
        next one is the one before it."""
        if not self.weighted:
            return ONE, ONE
        w, decay = self.w, self.number("decay", step)
        near = tirx.max(step - 1, 0) if back else tirx.min(step + 1, EVERY - 1)
        early, late = (near, step) if back else (step, near)
        kept = w.keep(exp2(self.number("before", late) - self.number("after", early)))
        return kept, w.keep(kept * decay)
